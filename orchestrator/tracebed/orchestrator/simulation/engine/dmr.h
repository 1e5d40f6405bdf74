/* DMR's throughput-aware policy. Part of engine.c. */

/* Return the least size of a waiting job above `idle`; INT64_MAX if there is no such job. */
static int64_t least_above(struct engine *e, int64_t idle) {
    int64_t least = INT64_MAX;
    for (int32_t job = queue_first(e); job >= 0; job = queue_next(e, job))
        if (e->in.low[job] > idle && e->in.low[job] < least) least = e->in.low[job];
    return least;
}

/* Return the first waiting job that needs more than `idle` and at most `room` nodes; -1 if there is no such job. */
static int32_t first_between(struct engine *e, int64_t idle, int64_t room) {
    int32_t job = -1;
    do job = first_fit(e, job, room, 0.0, room); while (job >= 0 && e->in.low[job] <= idle);
    return job;
}

/* Shrink running jobs, in order of start, each as far as this allows a waiting job to start. */
static void shrink_for_throughput(struct engine *e) {
    const struct setup *in = &e->in;
    if (!e->resizable_count) return;
    bar(e, e->calls, e->calls);
    int64_t idle = e->idle, least = least_above(e, idle);
    for (int64_t at = 0; at < e->resizable_count && least < INT64_MAX && !e->failed; at++) {
        struct elastic *row = &e->resizable[at];
        if (!eligible(e, row)) continue;
        int32_t job = row->job, size = row->size, target = in->workload_pref[job];
        if (in->shrinks_below_pref && idle + size - target < least) target = in->low[job];
        int64_t room = idle + size - target;
        if (room < least) continue;
        int32_t helped = first_between(e, idle, room), nodes = at_most(in->high[helped], room);
        row->shrunk_in = e->calls;
        resize(e, job, target);
        if (e->failed) return;
        start(e, helped, nodes);
        idle = room - nodes;
        least = least_above(e, idle);
    }
}

/* Expand running jobs towards their maximum, in order of start. */
static void expand_to_maximum(struct engine *e) {
    bar(e, e->calls, e->calls);
    for (int64_t at = 0; at < e->resizable_count && !e->failed; at++) {
        const struct elastic *row = &e->resizable[at];
        int32_t size = at_most(row->bound[HIGH], row->size + e->idle);
        if (size > row->size && eligible(e, row)) resize(e, row->job, size);
    }
}

static void reconfigure(struct engine *e) {
    e->calls++;
    backfill(e);
    if (e->waiting_count && !e->failed) shrink_for_throughput(e);
    if (e->idle && !e->failed && first_fit(e, -1, e->idle, 0.0, e->idle) < 0) expand_to_maximum(e);
}
