/* Conservative backfilling: expected idle nodes as a step function of time. Part of engine.c. */

/* Rebuild the profile: the idle nodes if every running job ends at its expected end. */
static void profile_of_running(struct engine *e) {
    int64_t rows = 1;
    for (int64_t at = 0; at < e->chunk_count; at++) rows += e->chunks[at]->count;
    if (rows > e->step_room) {
        if (!grow(e, &e->times, 2 * rows, 8) || !grow(e, &e->idle_then, 2 * rows, 4)) return;
        e->step_room = 2 * rows;
    }
    e->step = 0;
    e->steps = 1;
    e->times[0] = e->now;
    e->idle_then[0] = (int32_t)e->idle;
    RELEASES(e, r) {
        if (r->end > e->times[e->steps - 1]) {
            e->times[e->steps] = r->end;
            e->idle_then[e->steps] = e->idle_then[e->steps - 1];
            e->steps++;
        }
        e->idle_then[e->steps - 1] += r->nodes;
    }
    e->steps_merged = e->steps;
}

/* Let the profile begin now; occasionally merge adjacent steps with equal idle nodes. */
static void profile_go_on(struct engine *e) {
    int64_t at = step_from(e, e->now);
    if (at == e->steps || e->times[at] > e->now) at--;
    e->step = at;
    e->times[at] = e->now;
    if (e->steps - e->step < 2 * e->steps_merged + 64 && e->step < e->steps_merged + 1024) return;
    int64_t kept = 0;
    for (; at < e->steps; at++) {
        if (kept && e->idle_then[at] == e->idle_then[kept - 1]) continue;
        e->times[kept] = e->times[at];
        e->idle_then[kept++] = e->idle_then[at];
    }
    e->step = 0;
    e->steps = e->steps_merged = kept;
}

/* Return the step that begins at `instant`, not before the first; insert it if it is missing. */
static int64_t step_at(struct engine *e, double instant) {
    int64_t at = step_from(e, instant);
    CHECK(at > e->step || e->times[at] == instant);
    if (at < e->steps && e->times[at] == instant) return at;
    if (e->steps == e->step_room) {
        if (!grow(e, &e->times, 2 * e->step_room, 8) || !grow(e, &e->idle_then, 2 * e->step_room, 4)) return at - 1;
        e->step_room *= 2;
    }
    memmove(&e->times[at + 1], &e->times[at], (size_t)(e->steps - at) * 8);
    memmove(&e->idle_then[at + 1], &e->idle_then[at], (size_t)(e->steps - at) * 4);
    e->times[at] = instant;
    e->idle_then[at] = e->idle_then[at - 1];
    e->steps++;
    return at;
}

/* Take `nodes` nodes from the profile from `start` to `end`; a negative number returns them. */
static void occupy(struct engine *e, double start, double end, int32_t nodes) {
    int64_t first = step_at(e, start), last = step_at(e, end);
    for (int64_t at = first; at < last; at++) e->idle_then[at] -= nodes;
}

/* As `earliest`, from the step `at` on. */
static double earliest_from(
    const struct engine *e, int64_t at, int32_t nodes, double duration, double own_start, double own_end
) {
    const double *times = e->times;
    const int32_t *idle = e->idle_then;
    int64_t steps = e->steps;
    for (;;) {
        while (at < steps && idle[at] < nodes && times[at] < own_start) at++;
        if (at == steps || times[at] >= own_start) return own_start;
        double start = times[at], end = start + duration;
        at++;
        while (at < steps && times[at] < end
               && (idle[at] >= nodes || (times[at] >= own_start && times[at] < own_end))) at++;
        if (at == steps || times[at] >= end) return start;
    }
}

/* Return the first instant before `own_start` from which `nodes` nodes are idle for `duration` seconds, or `own_start`.
 * The profile contains the job itself from `own_start` to `own_end`. */
static double earliest(const struct engine *e, int32_t nodes, double duration, double own_start, double own_end) {
    return earliest_from(e, e->step, nodes, duration, own_start, own_end);
}

/* Return whether all reservations are kept from call to call. */
static int keeps_reservations(const struct engine *e) {
    return e->in.policy == CONSERVATIVE && !e->in.backfill_depth && e->in.backfill_interval_s == 0.0;
}

/* Plan jobs without a reservation, move other reservations forward after releases, and start jobs planned for now. */
static void keep_reservations(struct engine *e) {
    const struct setup *in = &e->in;
    int32_t started = -1, first = queue_first(e);
    int anew = e->lapsed;
    if (first < 0) return;
    e->lapsed = 0;
    profile_go_on(e);
    for (int32_t job = first; job >= 0 && !anew; job = queue_next(e, job)) anew = e->reserved[job] < e->now;
    if (anew) profile_of_running(e);
    for (int32_t job = first; job >= 0 && !e->failed; job = queue_next(e, job)) {
        int32_t nodes = in->requested[job];
        double limit = planned_s(e, job), held = anew ? NAN : e->reserved[job], at = held;
        if (isnan(held)) {
            at = earliest(e, nodes, limit, INFINITY, INFINITY);
            occupy(e, at, at + limit, nodes);
        } else if (e->freed) {
            at = earliest(e, nodes, limit, held, held + limit);
            if (at != held) {
                occupy(e, held, held + limit, -nodes);
                occupy(e, at, at + limit, nodes);
            }
        }
        e->reserved[job] = at;
        if (at <= e->now && nodes <= e->idle) {
            start(e, job, nodes);
            if (limit != in->limit[job]) {
                e->promises_to[job] = started;  /* chain of jobs whose planned end is not their expected end */
                started = job;
            }
        }
    }
    for (; started >= 0 && !e->failed; started = e->promises_to[started]) {
        occupy(e, e->now, e->now + SHORTEST_S, -in->requested[started]);
        occupy(e, e->now, e->expected_end[started], in->requested[started]);
    }
}

/* Plan the first `backfill_depth` queued jobs in order from an empty plan, and start those planned for now. */
static void plan_anew(struct engine *e) {
    int64_t looked = 0;
    if (queue_first(e) < 0 || !e->idle) return;
    profile_of_running(e);
    for (int32_t job = queue_first(e); job >= 0 && e->idle && !e->failed; job = queue_next(e, job)) {
        if (e->in.backfill_depth && looked++ == e->in.backfill_depth) return;
        int32_t nodes = e->in.requested[job];
        double limit = planned_s(e, job), at = earliest(e, nodes, limit, INFINITY, INFINITY);
        occupy(e, at, at + limit, nodes);
        if (at <= e->now && nodes <= e->idle) start(e, job, nodes);
    }
}

static void conserve(struct engine *e, int woken) {
    double interval = e->in.backfill_interval_s;
    if (keeps_reservations(e)) {
        if (e->in.named_nodes) keep_nodes(e); else keep_reservations(e);
        return;
    }
    heads(e);
    if (woken || interval == 0.0) { if (e->in.named_nodes) plan_nodes_anew(e); else plan_anew(e); }
    else if (e->waiting_count) e->wake = due(e, next_multiple(interval, e->now, 0.0, INT64_MIN));
}
