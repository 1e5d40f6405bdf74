/* Heterogeneous jobs, as in tests/oracles/slurm_simulation/backfill.py, deadlines and shortest time limits. Part of slurm.c. */

static const int64_t YEAR_S = 365 * 86400;

/* The heterogeneous job of a component; -1: none. */
static int32_t het_job_of(const struct engine *e, int32_t job) { return e->s->het_job ? e->s->het_job[job] : -1; }

static void het_begin(struct engine *e) {
    for (int64_t k = 0; k < e->component_count; k++) e->planned_start[e->components[k]] = -1;
    e->component_count = 0;
}

/* Before which instant a pass does not plan a component, which the pass knows from then on. */
static int64_t het_since(struct engine *e, int32_t job, int64_t now) {
    int32_t first = e->s->first_entry[job], own = het_job_of(e, job);
    if (e->planned_start[first] < 0) {
        e->components[e->component_count++] = first;
        e->planned_start[first] = now + YEAR_S;
        e->planned_entry[first] = job;
    }
    int64_t since = now;
    for (int64_t k = 0; k < e->component_count; k++) {
        int32_t other = e->components[k];
        if (other != first && het_job_of(e, other) == own && e->planned_start[other] > since) since = e->planned_start[other];
    }
    return since;
}

static void het_plan(struct engine *e, int32_t job, int64_t start) {
    int32_t first = e->s->first_entry[job];
    if (start >= e->planned_start[first]) return;
    e->planned_start[first] = start;
    e->planned_entry[first] = job;
}

static int64_t needed(const struct engine *e, int32_t job) {
    return e->s->shortest && e->s->shortest[job] ? e->s->shortest[job] : e->s->limit[job];
}

/* Remove a waiting job that can no longer end at its deadline from the queue. Return whether it is one. */
static int expired(struct engine *e, int32_t job, int64_t now) {
    const struct setup *s = e->s;
    if (!s->deadline || s->deadline[job] == INFINITY || e->withdrawn[job]) return 0;
    if (whole_second(e, s->deadline[job]) >= now + needed(e, job)) return 0;
    for (int32_t each = s->first_entry[job]; each >= 0; each = s->following[each]) {
        e->withdrawn[each] = 1;
        unqueue(e, each);
        forget(e, each, CANCELLED);
    }
    return 1;
}

/* The time limit of a job that starts: at most the whole minutes until its deadline. */
static int64_t until_deadline(const struct engine *e, int32_t job, int64_t now) {
    int64_t limit = e->s->limit[job];
    if (!e->s->deadline || e->s->deadline[job] == INFINITY) return limit;
    int64_t left = (whole_second(e, e->s->deadline[job]) - now) / MINUTE_S * MINUTE_S;
    return left < limit ? left : limit;
}

/* Whether backfill plans with the shortest time limit of a job. */
static int cut(const struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    return s->shortest && 0 < s->shortest[job] && s->shortest[job] < s->limit[job] && (!s->deadline || s->deadline[job] == INFINITY);
}

/* The time limit with which backfill starts `job` on `nodes` now. */
static int64_t granted(const struct engine *e, int32_t job, int64_t now, const uint64_t *nodes) {
    const struct setup *s = e->s;
    int64_t limit = e->limit[job], until = now + s->limit[job], most = until_deadline(e, job, now);
    if (cut(e, job) && s->release >= EXTENDS) {
        for (int64_t k = 0; k < e->slots.count; k++)
            if (e->slots.slot[k].begin > now && e->slots.slot[k].begin < until && beyond(e, nodes, e->slots.slot[k].nodes))
                until = e->slots.slot[k].begin;
        for (int64_t k = 0; k < s->bookings; k++)
            if (k != s->inside[job] && s->booked_begin[k] > now && s->booked_begin[k] < until &&
                common(e->words, nodes, s->booked_nodes + k * e->words))
                until = s->booked_begin[k];
        int64_t left = (until - now) / MINUTE_S * MINUTE_S;
        if (left > limit) limit = left;
    }
    return limit < most ? limit : most;
}

/* Choose nodes for a component beside the nodes `e->taken`, which others get. */
static int choose_beside(struct engine *e, int32_t job, int64_t now) {
    allowed_nodes(e, job, now, e->usable);
    for (int64_t w = 0; w < e->words; w++) e->usable[w] &= e->up[w] & ~e->taken[w];
    if (!choose(e, job, e->usable)) return 0;
    for (int64_t w = 0; w < e->words; w++) e->taken[w] |= e->picked[w];
    return 1;
}

/* Start the components `jobs` of a heterogeneous job, each on nodes of its own, if all fit. Return their number. */
static int64_t start_components(struct engine *e, const int32_t *jobs, int64_t count, int64_t now) {
    const struct setup *s = e->s;
    size_t size = (size_t)e->words * sizeof *e->taken, counters = (size_t)s->counters * sizeof *e->limits.used;
    memset(e->taken, 0, size);
    memcpy(e->license_room, e->licenses, (size_t)s->license_kinds * sizeof *e->license_room);
    memcpy(e->used_before, e->limits.used, counters);
    int fits = 1;
    for (int64_t k = 0; k < count && fits; k++) {
        fits = choose_beside(e, jobs[k], now) && suffice(e, e->license_room, jobs[k]) &&
               reached(&e->limits, jobs[k], JOBS) < 0 && !exceeds(e, jobs[k], 1);
        for (int64_t l = 0; l < s->license_kinds; l++) e->license_room[l] -= s->wanted_licenses[jobs[k] * s->license_kinds + l];
        if (fits) count_job(&e->limits, jobs[k], amounts_picked(e, jobs[k]), 1);
    }
    memcpy(e->limits.used, e->used_before, counters);
    for (int64_t k = 0; k < count && fits; k++) fits = waits(e, jobs[k]);
    if (!fits) return 0;
    memset(e->taken, 0, size);
    for (int64_t k = 0; k < count; k++) {
        choose_beside(e, jobs[k], now);
        int64_t most = until_deadline(e, jobs[k], now);
        if (most < e->limit[jobs[k]]) e->limit[jobs[k]] = most;
        start(e, jobs[k]);
    }
    return count;
}

/* End a pass: start the heterogeneous jobs whose components are all planned now. Return the number of components. */
static int64_t het_end(struct engine *e, int64_t now) {
    int64_t started = 0;
    for (int64_t k = 0; k < e->component_count; k++) {
        int32_t own = het_job_of(e, e->components[k]), count = 0;
        int all = 1;
        for (int64_t j = 0; j < e->component_count && all; j++) {
            int32_t first = e->components[j];
            if (het_job_of(e, first) != own) continue;
            all = j >= k && e->planned_start[first] <= now; /* j < k: they were tried before */
            e->members[count++] = e->planned_entry[first];
        }
        if (all && count == e->group_size[own]) started += start_components(e, e->members, count, now);
    }
    return started;
}
