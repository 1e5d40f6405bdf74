/* The heap of events. Part of engine.c. */

static int sooner(const struct event *a, const struct event *b) {
    if (a->time != b->time) return a->time < b->time;
    if (a->what != b->what) return a->what < b->what;
    return a->job < b->job;
}

static void push(struct engine *e, double time, int32_t what, int32_t job) {
    if (e->heap_count == e->heap_room) {
        if (!grow(e, &e->heap, e->heap_room * 2, sizeof *e->heap)) return;
        e->heap_room *= 2;
    }
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
