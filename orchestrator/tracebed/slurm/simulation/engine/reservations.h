/* Advance reservations and licences, as in tests/oracles/slurm_simulation/backfill.py. Part of slurm.c. */

/* The nodes that a job may use from `start` to `start + limit`, in `mask`. */
static void allowed_nodes(const struct engine *e, int32_t job, int64_t start, uint64_t *mask) {
    const struct setup *s = e->s;
    int32_t inside = s->inside[job];
    int bound = inside >= 0 && !s->booked_flexible[inside];
    memcpy(mask, bound ? s->booked_nodes + inside * e->words : e->everything, (size_t)e->words * sizeof *mask);
    for (int64_t k = 0; k < s->bookings; k++)
        if (k != inside && s->booked_begin[k] < start + e->limit[job] && start < s->booked_end[k])
            for (int64_t w = 0; w < e->words; w++) mask[w] &= ~s->booked_nodes[k * e->words + w];
}

static int suffice(const struct engine *e, const int64_t *free, int32_t job) {
    const struct setup *s = e->s;
    for (int64_t k = 0; k < s->license_kinds; k++)
        if (free[k] < s->wanted_licenses[job * s->license_kinds + k]) return 0;
    return 1;
}

static int wants_licenses(const struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    for (int64_t k = 0; k < s->license_kinds; k++)
        if (s->wanted_licenses[job * s->license_kinds + k]) return 1;
    return 0;
}

static int suffice_at(const struct engine *e, int32_t job, int64_t instant) {
    const struct setup *s = e->s;
    memcpy(e->license_room, s->licenses, (size_t)s->license_kinds * sizeof *e->license_room);
    for (int64_t n = 0; n < e->license_count; n++) {
        const struct held_licenses *own = &e->license_plan[n];
        if (own->begin <= instant && instant < own->end)
            for (int64_t k = 0; k < s->license_kinds; k++) e->license_room[k] -= s->wanted_licenses[own->job * s->license_kinds + k];
    }
    return suffice(e, e->license_room, job);
}

static int licensed(const struct engine *e, int32_t job, int64_t start, int64_t now) {
    const struct setup *s = e->s;
    if (!wants_licenses(e, job)) return 1;
    if (start <= now && !suffice(e, e->licenses, job)) return 0;
    if (!s->plan_licenses) return 1;
    if (!suffice_at(e, job, start)) return 0;
    for (int64_t n = 0; n < e->license_count; n++) {
        int64_t begin = e->license_plan[n].begin;
        if (start < begin && begin <= start + e->limit[job] && !suffice_at(e, job, begin)) return 0;
    }
    return 1;
}

static void hold_licenses(struct engine *e, int32_t job, int64_t begin, int64_t end) {
    if (e->s->plan_licenses && wants_licenses(e, job)) e->license_plan[e->license_count++] = (struct held_licenses){begin, end, job};
}

/* The nodes that a job may use from `start` on, in `mask`: none if licences are missing. */
static void open_nodes(const struct engine *e, int32_t job, int64_t start, int64_t now, uint64_t *mask) {
    if (licensed(e, job, start, now)) allowed_nodes(e, job, start, mask);
    else memset(mask, 0, (size_t)e->words * sizeof *mask);
}

static int64_t next_later(const struct engine *e, int32_t job, int64_t after, int64_t found) {
    const struct setup *s = e->s;
    for (int64_t k = 0; k < s->bookings; k++)
        if (s->booked_end[k] > after && (!found || s->booked_end[k] < found)) found = s->booked_end[k];
    if (s->plan_licenses && wants_licenses(e, job))
        for (int64_t n = 0; n < e->license_count; n++) {
            int64_t end = e->license_plan[n].end;
            if (end > after && (!found || end < found)) found = end;
        }
    return found;
}

static int has_bookings(const struct engine *e) { return e->s->bookings || e->s->license_kinds; }

/* Whether some of `nodes` are not in `mask`. */
static int beyond(const struct engine *e, const uint64_t *nodes, const uint64_t *mask) {
    for (int64_t w = 0; w < e->words; w++)
        if (nodes[w] & ~mask[w]) return 1;
    return 0;
}
