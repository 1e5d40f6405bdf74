/* The waiting jobs. Part of engine.c. */

static void queue_append(struct engine *e, int32_t job) {
    e->waiting[job] = 1;
    e->waiting_count++;
    if (job + 1 > e->queue_end) e->queue_end = job + 1;
    if (job < e->queue_head) e->queue_head = job;
    if (e->in.priority != AS_SUBMITTED) e->order[e->order_count++].job = job;
    e->arranged_at = NAN;
    double limit = e->shortest_limit[job];
    int64_t block = job / BLOCK, group = block / GROUP;
    for (int32_t c = e->class_of[job]; c < e->classes && limit < e->block_shortest[c * e->blocks + block]; c++)
        e->block_shortest[c * e->blocks + block] = limit;
    for (int32_t c = e->class_of[job]; c < e->classes && limit < e->group_shortest[c * e->groups + group]; c++)
        e->group_shortest[c * e->groups + group] = limit;
}

static void queue_remove(struct engine *e, int32_t job) {
    CHECK(e->waiting[job]);
    e->waiting[job] = 0;
    e->waiting_count--;
}

/* Return the key of `job` in the order of the priority, as in queue.py. */
static double key_of(const struct engine *e, int32_t job) {
    const struct setup *in = &e->in;
    double wait = e->now - in->submit[job], age = wait / in->max_age_s;
    switch (in->priority) {
    case LARGEST_SLOWDOWN_FIRST: return -wait / (in->limit[job] > SHORTEST_S ? in->limit[job] : SHORTEST_S);
    case SHORTEST_FIRST: return in->limit[job];
    default: return -((age < 1.0 ? age : 1.0) + (double)in->requested[job] / (double)in->nodes);
    }
}

static int ahead(const struct place *a, const struct place *b) {
    return a->key != b->key ? a->key < b->key : a->job < b->job;
}

static int by_place(const void *a, const void *b) { return ahead(a, b) ? -1 : ahead(b, a); }

/* Sort `order` for this instant. Most jobs keep their places, so that an insertion sort moves few of them. */
static void arrange(struct engine *e) {
    if (e->arranged_at == e->now || (e->in.priority == SHORTEST_FIRST && !isnan(e->arranged_at))) return;
    e->arranged_at = e->now;
    struct place *order = e->order;
    int64_t kept = 0, moves = 0, most = MOVES * e->order_count;
    for (int64_t at = 0; at < e->order_count; at++) {
        if (!e->waiting[order[at].job]) continue;
        struct place place = {key_of(e, order[at].job), order[at].job};
        int64_t to = kept++;
        if (moves < most)
            for (; to > 0 && ahead(&place, &order[to - 1]); to--, moves++) order[to] = order[to - 1];
        order[to] = place;
    }
    if (moves >= most) qsort(order, (size_t)kept, sizeof *order, by_place);
    e->order_count = kept;
    for (int64_t at = 0; at < kept; at++) e->rank[order[at].job] = at;
}

/* Return the first waiting job at or after the index `at` of `order`, or -1. */
static int32_t waiting_from(const struct engine *e, int64_t at) {
    for (; at < e->order_count; at++)
        if (e->waiting[e->order[at].job]) return e->order[at].job;
    return -1;
}

/* Return the first waiting job, or -1. */
static int32_t queue_first(struct engine *e) {
    if (!e->waiting_count) return -1;
    if (e->in.priority != AS_SUBMITTED) {
        arrange(e);
        return waiting_from(e, 0);
    }
    while (!e->waiting[e->queue_head]) e->queue_head++;
    return e->queue_head;
}

/* Return the waiting job behind `job`, or -1. */
static int32_t queue_next(const struct engine *e, int32_t job) {
    if (e->in.priority != AS_SUBMITTED) return waiting_from(e, e->rank[job] + 1);
    while (++job < e->queue_end)
        if (e->waiting[job]) return job;
    return -1;
}

static void summarize_block(struct engine *e, int64_t block) {
    int64_t end = (block + 1) * BLOCK < e->in.jobs ? (block + 1) * BLOCK : e->in.jobs;
    for (int32_t c = 0; c < e->classes; c++) e->block_shortest[c * e->blocks + block] = INFINITY;
    for (int64_t job = block * BLOCK; job < end; job++) {
        double *shortest = &e->block_shortest[e->class_of[job] * e->blocks + block];
        if (e->waiting[job] && e->shortest_limit[job] < *shortest) *shortest = e->shortest_limit[job];
    }
    for (int32_t c = 1; c < e->classes; c++) {
        double *shortest = &e->block_shortest[c * e->blocks + block];
        if (shortest[-e->blocks] < *shortest) *shortest = shortest[-e->blocks];
    }
}

static void summarize_group(struct engine *e, int64_t group) {
    int64_t end = (group + 1) * GROUP < e->blocks ? (group + 1) * GROUP : e->blocks;
    for (int32_t c = 0; c < e->classes; c++) {
        double shortest = INFINITY;
        for (int64_t block = group * GROUP; block < end; block++)
            if (e->block_shortest[c * e->blocks + block] < shortest) shortest = e->block_shortest[c * e->blocks + block];
        e->group_shortest[c * e->groups + group] = shortest;
    }
}

/* Return the last class whose smallest size is at most `nodes`, or -1. */
static int32_t class_at_most(const struct engine *e, int64_t nodes) {
    int32_t low = 0, high = e->classes;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (e->smallest[middle] <= nodes) low = middle + 1; else high = middle;
    }
    return low - 1;
}

/* As `first_fit`, of the jobs in the order of submission. */
static int32_t first_submitted(struct engine *e, int32_t after, int64_t idle, double time, int64_t extra) {
    time += SLACK_S;
    if (extra > idle) extra = idle;
    int32_t start = after + 1 > e->queue_head ? after + 1 : e->queue_head;
    int32_t idle_class = class_at_most(e, idle), extra_class = class_at_most(e, extra);
    if (idle_class < 0 || start >= e->queue_end) return -1;
    const double *of_idle = &e->block_shortest[idle_class * e->blocks];
    const double *of_extra = extra_class < 0 ? NULL : &e->block_shortest[extra_class * e->blocks];
    const double *group_idle = &e->group_shortest[idle_class * e->groups];
    const double *group_extra = extra_class < 0 ? NULL : &e->group_shortest[extra_class * e->groups];
    int64_t last = (e->queue_end - 1) / BLOCK;
    for (int64_t group = start / BLOCK / GROUP; group <= last / GROUP; group++) {
        if (!(group_idle[group] <= time || (group_extra && group_extra[group] < INFINITY))) continue;
        int64_t block = group * GROUP, end = block + GROUP - 1 < last ? block + GROUP - 1 : last;
        int looked = block > start / BLOCK;  /* whether the whole group was searched */
        if (block < start / BLOCK) block = start / BLOCK;
        for (; block <= end; block++) {
            if (!(of_idle[block] <= time || (of_extra && of_extra[block] < INFINITY))) continue;
            int32_t job = (int32_t)(block * BLOCK);
            int32_t stop = job + BLOCK < e->queue_end ? job + BLOCK : e->queue_end;
            if (job < start) job = start;
            for (; job < stop; job++)
                if (e->waiting[job] && e->in.low[job] <= idle
                    && (e->shortest_limit[job] <= time || e->in.low[job] <= extra)) return job;
            summarize_block(e, block);
        }
        if (looked) summarize_group(e, group);
    }
    return -1;
}

/* Return the first job behind `after` (-1: of all) that needs at most `idle` nodes and either has a limit of at most
 * `time` seconds or needs at most `extra` nodes; -1 if there is no such job. */
static int32_t first_fit(struct engine *e, int32_t after, int64_t idle, double time, int64_t extra) {
    if (e->in.priority == AS_SUBMITTED) return first_submitted(e, after, idle, time, extra);
    if (first_submitted(e, -1, idle, time, extra) < 0) return -1;
    arrange(e);
    for (int64_t at = after < 0 ? 0 : e->rank[after] + 1; at < e->order_count; at++) {
        int32_t job = e->order[at].job;
        if (e->waiting[job] && e->in.low[job] <= idle
            && (e->shortest_limit[job] <= time + SLACK_S || e->in.low[job] <= extra)) return job;
    }
    return -1;
}
