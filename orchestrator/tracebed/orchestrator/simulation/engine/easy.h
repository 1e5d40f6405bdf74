/* FCFS, first fit and EASY. Part of engine.c. */

/* Start the heads of the queue that fit; return the first that does not, or -1 if no waiting job fits. */
static int32_t heads(struct engine *e) {
    if (e->in.priority != AS_SUBMITTED && first_submitted(e, -1, e->idle, 0.0, e->idle) < 0) return -1;  /* no job fits */
    int32_t head;
    while ((head = queue_first(e)) >= 0 && e->in.low[head] <= e->idle) start(e, head, at_most(e->in.pref[head], e->idle));
    return head;
}

static void fit_first(struct engine *e) {
    int32_t job = -1;
    if (e->in.priority == AS_SUBMITTED && !e->freed) job = (e->arrived >= 0 ? e->arrived : e->queue_end) - 1;
    while (e->idle && (job = first_fit(e, job, e->idle, 0.0, e->idle)) >= 0)
        start(e, job, at_most(e->in.pref[job], e->idle));
}

/* Return the last of the jobs that need not be tried, as `_tried` of easy.py. */
static int32_t tried(const struct engine *e, int32_t head, double shadow) {
    if (e->in.priority != AS_SUBMITTED || e->freed || !(e->settled || !e->adaptable) || !(shadow > e->now)) return head;
    int32_t last = (e->arrived >= 0 ? e->arrived : e->queue_end) - 1;
    return e->arrived >= 0 && last < head ? head : last;
}

/* Start the jobs behind the job `behind` that do not delay `head`. */
static void backfill_behind(struct engine *e, int32_t head, int32_t behind) {
    reservation(e, e->in.low[head]);
    double shadow = e->shadow;
    int64_t extra = e->extra;
    while (e->idle && !e->failed && (behind = first_fit(e, behind, e->idle, shadow - e->now, extra)) >= 0) {
        int32_t nodes = at_most(e->in.pref[behind], e->idle);
        int in_time = e->now + e->in.limit[behind] / planned_rate(e, behind, nodes) <= shadow;
        if (e->in.narrow && !in_time && e->in.low[behind] <= extra) nodes = at_most(nodes, extra);
        if (!in_time && nodes > extra) continue;
        start(e, behind, nodes);
        if (!in_time) extra -= nodes;
    }
}

static void backfill(struct engine *e) {
    int32_t head = heads(e);
    if (head < 0 || !e->idle || e->waiting_count == 1) return;
    reservation(e, e->in.low[head]);
    if (!e->failed) backfill_behind(e, head, tried(e, head, e->shadow));
}
