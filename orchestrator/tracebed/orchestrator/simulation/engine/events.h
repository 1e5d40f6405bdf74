/* The heap of events. Part of engine.c. */

static int sooner(const struct event *a, const struct event *b) {
    if (a->time != b->time) return a->time < b->time;
    if (a->what != b->what) return a->what < b->what;
    return a->job < b->job;
}

static void push(struct engine *e, double time, int32_t what, int32_t job) {
    if (!make_room(e, &e->heap, e->heap_count, &e->heap_room, sizeof *e->heap)) return;
    struct event event = {time, what, job};
    int64_t at = e->heap_count++;
    while (at > 0 && sooner(&event, &e->heap[(at - 1) / 2])) {
        e->heap[at] = e->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    e->heap[at] = event;
}

static struct event pop(struct engine *e) {
    CHECK(e->heap_count > 0);
    struct event top = e->heap[0], last = e->heap[--e->heap_count];
    int64_t at = 0, child;
    while ((child = 2 * at + 1) < e->heap_count) {
        if (child + 1 < e->heap_count && sooner(&e->heap[child + 1], &e->heap[child])) child++;
        if (!sooner(&e->heap[child], &last)) break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    if (e->heap_count) e->heap[at] = last;
    return top;
}

static void end_at(struct engine *e, int32_t job, double end) {
    e->ends[job] = end;
    push(e, end, END, job);
}

/* Continue `job`, which has `ranks` ranks, at the rate `r` after a pause. Return the instant at which it continues. */
static double go_on(struct engine *e, int32_t job, double pause, double r, int32_t ranks) {
    struct progress *p = &e->progress[job];
    double worked = e->now - p->since, done = p->done + (worked > 0.0 ? worked : 0.0) * p->rate;
    double begin = (p->since > e->now ? p->since : e->now) + pause, left = e->in.work[job] - done;
    *p = (struct progress){done, begin, r};
    end_at(e, job, begin + (left > 0.0 ? left : 0.0) / r + end_delay(&e->in, job, ranks));
    return begin;
}
