/* EASY and conservative backfilling with reservations of named nodes. Part of engine.c. Sets of nodes are bits. */

static int64_t size_of(const struct engine *e, const uint64_t *nodes) {
    int64_t count = 0;
    for (int64_t word = 0; word < e->words; word++) count += __builtin_popcountll(nodes[word]);
    return count;
}

static void copy_nodes(const struct engine *e, uint64_t *to, const uint64_t *from) {
    memcpy(to, from, (size_t)e->words * 8);
}

/* Keep the `count` lowest nodes of `nodes`, which has as many. */
static void keep_lowest(const struct engine *e, uint64_t *nodes, int64_t count) {
    for (int64_t word = 0; word < e->words; word++) {
        int64_t here = __builtin_popcountll(nodes[word]);
        for (; here > count; here--) nodes[word] &= ~(UINT64_C(1) << (63 - __builtin_clzll(nodes[word])));
        count -= here;
    }
    CHECK(count == 0);
}

/* Add the nodes of `job` that are in `among` (null: all) to `mask`. Return the number of new ones. */
static int64_t add_held(const struct engine *e, uint64_t *mask, int32_t job, const uint64_t *among) {
    int64_t added = 0;
    for (int32_t at = e->held[job]; at >= 0; at = e->ranges[at].below) {
        int64_t first = e->ranges[at].first, count = e->ranges[at].count;
        while (count > 0) {
            int64_t bit = first % 64, run = count < 64 - bit ? count : 64 - bit, word = first / 64;
            uint64_t own = (run == 64 ? ~UINT64_C(0) : (UINT64_C(1) << run) - 1) << bit;
            if (among) own &= among[word];
            added += __builtin_popcountll(own & ~mask[word]);
            mask[word] |= own;
            first += run;
            count -= run;
        }
    }
    return added;
}

/* Start `job` on the lowest nodes of `among`; null: of the idle nodes. */
static void start_among(struct engine *e, int32_t job, const uint64_t *among) {
    e->among = among;
    start(e, job, e->in.requested[job]);
    e->among = NULL;
}

/* -- EASY ----------------------------------------------------------------------------------------------------------- */

/* Return the shadow time for a job that needs `need` nodes, more than are idle. Set e->reserved_for_head to its nodes. */
static double reserve_for_head(struct engine *e, int64_t need) {
    uint64_t *free_then = e->reserved_for_head;
    int64_t idle = e->idle;
    double shadow = e->now;
    copy_nodes(e, free_then, e->idle_bits);
    RELEASES(e, r) {
        if (r->end > shadow) {
            if (idle >= need) goto found;
            shadow = r->end;
        }
        add_held(e, free_then, r->job, NULL);
        idle += r->nodes;
    }
found:
    CHECK(idle >= need);
    keep_lowest(e, free_then, need);
    return shadow;
}

static void backfill_outside(struct engine *e) {
    int32_t head = heads(e), job;
    if (head < 0 || !e->idle || e->waiting_count == 1) return;
    double shadow = reserve_for_head(e, e->in.requested[head]);
    int32_t behind = tried(e, head, shadow);
    uint64_t *outside = e->free_nodes;
    while (e->idle && !e->failed) {
        for (int64_t word = 0; word < e->words; word++) outside[word] = e->idle_bits[word] & ~e->reserved_for_head[word];
        int64_t extra = size_of(e, outside);
        if ((job = first_fit(e, behind, e->idle, shadow - e->now, extra)) < 0) return;
        behind = job;
        if (e->now + e->in.limit[job] <= shadow) start_among(e, job, NULL);
        else if (e->in.requested[job] <= extra) start_among(e, job, outside);
    }
}

/* -- conservative: the profile of named nodes, in e->times and e->idle_nodes_then ------------------------------------ */

static uint64_t *nodes_then(const struct engine *e, int64_t step) { return &e->idle_nodes_then[step * e->words]; }

/* Insert a step at `at` that begins at `instant`, with the nodes of the step before. */
static int insert_step(struct engine *e, int64_t at, double instant) {
    if (e->steps == e->step_room) {
        int64_t room = 2 * e->step_room;
        if (!grow(e, &e->times, room, 8) || !grow(e, &e->idle_nodes_then, room * e->words, 8)) return 0;
        e->step_room = room;
    }
    memmove(&e->times[at + 1], &e->times[at], (size_t)(e->steps - at) * 8);
    memmove(nodes_then(e, at + 1), nodes_then(e, at), (size_t)((e->steps - at) * e->words) * 8);
    e->times[at] = instant;
    copy_nodes(e, nodes_then(e, at), nodes_then(e, at - 1));
    e->steps++;
    return 1;
}

/* Return the first step that does not begin before `instant`. */
static int64_t step_from(const struct engine *e, double instant) {
    int64_t low = e->step, high = e->steps;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (e->times[middle] < instant) low = middle + 1; else high = middle;
    }
    return low;
}

/* Return the step that begins at `instant`, not before the first; insert it if it is missing. */
static int64_t node_step_at(struct engine *e, double instant) {
    int64_t at = step_from(e, instant);
    if (at == e->steps || e->times[at] != instant) insert_step(e, at, instant);
    return at;
}

/* Allocate `nodes` from `start` to `end`, or release them. */
static void occupy_nodes(struct engine *e, double start, double end, const uint64_t *nodes, int release) {
    int64_t first = node_step_at(e, start), last = node_step_at(e, end);
    for (int64_t at = first; at < last && !e->failed; at++) {
        uint64_t *idle = nodes_then(e, at);
        for (int64_t word = 0; word < e->words; word++)
            if (release) idle[word] |= nodes[word]; else idle[word] &= ~nodes[word];
    }
}

/* Rebuild the profile: the idle nodes if every running job ends at its expected end and reservations are kept. */
static void profile_of_nodes(struct engine *e) {
    e->steps = 1;
    e->times[0] = e->now;
    copy_nodes(e, nodes_then(e, 0), e->idle_bits);
    RELEASES(e, r) {
        if (r->end > e->times[e->steps - 1] && !insert_step(e, e->steps, r->end)) return;
        add_held(e, nodes_then(e, e->steps - 1), r->job, NULL);
    }
    for (int32_t job = queue_first(e); job >= 0 && !e->failed; job = queue_next(e, job))
        if (e->reserved_nodes[job])
            occupy_nodes(e, e->reserved[job], e->reserved[job] + planned_s(e, job), e->reserved_nodes[job], 0);
}

/* Set e->free_nodes to the nodes that are idle for `duration` from the first instant at which they are at least
 * `count`; return this instant. */
static double earliest_on_nodes(struct engine *e, int64_t count, double duration) {
    uint64_t *common = e->free_nodes;
    for (int64_t step = 0; step < e->steps; step++) {
        const uint64_t *here = nodes_then(e, step), *before = step ? nodes_then(e, step - 1) : NULL;
        uint64_t added = 0;
        for (int64_t word = 0; word < e->words; word++) added |= here[word] & ~(before ? before[word] : 0);
        if (!added) continue;  /* a job that fits from here fits from the previous step */
        copy_nodes(e, common, here);
        double end = e->times[step] + duration;
        for (int64_t later = step + 1; size_of(e, common) >= count; later++) {
            if (later == e->steps || e->times[later] >= end) return e->times[step];
            for (int64_t word = 0; word < e->words; word++) common[word] &= nodes_then(e, later)[word];
        }
    }
    e->failed = IMPOSSIBLE;
    return e->now;
}

/* Allocate nodes to `job` in the profile for its earliest start; set its reservation. */
static void plan_nodes(struct engine *e, int32_t job) {
    int64_t count = e->in.requested[job], idle = 0;
    double limit = planned_s(e, job), at = earliest_on_nodes(e, count, limit);
    if (e->failed) return;
    uint64_t *nodes = e->free_nodes;
    for (int64_t word = 0; word < e->words; word++) idle += __builtin_popcountll(nodes[word] & e->idle_bits[word]);
    if (at <= e->now && idle >= count)  /* not on the nodes of jobs that have exceeded their limits */
        for (int64_t word = 0; word < e->words; word++) nodes[word] &= e->idle_bits[word];
    keep_lowest(e, nodes, count);
    occupy_nodes(e, at, at + limit, nodes, 0);
    if (!e->reserved_nodes[job] && !(e->reserved_nodes[job] = make(e, e->words, 8))) return;
    copy_nodes(e, e->reserved_nodes[job], nodes);
    e->reserved[job] = at;
}

static void drop_reservation(struct engine *e, int32_t job) {
    free(e->reserved_nodes[job]);
    e->reserved_nodes[job] = NULL;
    e->reserved[job] = NAN;
}

/* Start `job` if it is planned for now on idle nodes. */
static void start_if_planned(struct engine *e, int32_t job) {
    const uint64_t *nodes = e->reserved_nodes[job];
    uint64_t busy = 0;
    for (int64_t word = 0; word < e->words; word++) busy |= nodes[word] & ~e->idle_bits[word];
    if (busy || e->reserved[job] > e->now) return;
    start_among(e, job, nodes);
    drop_reservation(e, job);
}

/* Plan jobs without a reservation, plan the others again after releases, and start jobs planned for now. */
static void keep_nodes(struct engine *e) {
    int anew = e->lapsed;
    int32_t first = queue_first(e);
    if (first < 0) return;
    e->lapsed = 0;
    for (int32_t job = first; job >= 0 && !anew; job = queue_next(e, job)) anew = e->reserved[job] < e->now;
    for (int32_t job = first; job >= 0 && anew; job = queue_next(e, job)) drop_reservation(e, job);
    profile_of_nodes(e);
    for (int32_t job = first; job >= 0 && !e->failed; job = queue_next(e, job)) {
        if (e->reserved_nodes[job] && e->freed)
            occupy_nodes(e, e->reserved[job], e->reserved[job] + planned_s(e, job), e->reserved_nodes[job], 1);
        if (!e->reserved_nodes[job] || e->freed) plan_nodes(e, job);
        if (!e->failed) start_if_planned(e, job);
    }
}

/* As `plan_anew`. */
static void plan_nodes_anew(struct engine *e) {
    int64_t looked = 0;
    if (queue_first(e) < 0 || !e->idle) return;
    profile_of_nodes(e);
    for (int32_t job = queue_first(e); job >= 0 && e->idle && !e->failed; job = queue_next(e, job)) {
        if (e->in.backfill_depth && looked++ == e->in.backfill_depth) return;
        plan_nodes(e, job);
        if (!e->failed) start_if_planned(e, job);
        if (e->waiting[job]) drop_reservation(e, job);
    }
}
