/* The scheduler: starts, resizes and promises, and what follows from them. Part of engine.c. */

/* Reserve `nodes` nodes, which the shrinking `job` will release, for the promises of `slot`. */
static void earmark_coming(struct engine *e, int32_t slot, int32_t job, int32_t nodes) {
    int32_t at = e->coming_free;
    if (at >= 0) {
        e->coming_free = e->coming[at].next;
    } else {
        if (!make_room(e, &e->coming, e->coming_count, &e->coming_room, sizeof *e->coming)) return;
        at = e->coming_count++;
    }
    e->coming[at] = (struct coming){slot, nodes, e->coming_of[job]};
    e->coming_of[job] = at;
    e->sum_coming += nodes;
}

static void earmark_idle(struct engine *e, int32_t slot, int64_t nodes) {
    e->earmarked[slot] += (int32_t)nodes;
    e->sum_earmarked += nodes;
}

/* Record that `job` has released the nodes of its pending shrink; return their number. */
static int32_t gave_back(struct engine *e, int32_t job) {
    int32_t nodes = e->giving_back[job];
    e->giving_back[job] = 0;
    e->sum_giving_back -= nodes;
    if (!nodes || e->in.promise == POOL) return nodes;
    for (int32_t at; (at = e->coming_of[job]) >= 0;) {
        struct coming *row = &e->coming[at];
        e->sum_coming -= row->nodes;
        earmark_idle(e, row->slot, row->nodes);
        e->coming_of[job] = row->next;
        row->next = e->coming_free;
        e->coming_free = at;
    }
    return nodes;
}

static void expect(struct engine *e, int32_t job, double end) {
    releases_remove(e, job, e->expected_end[job]);
    releases_add(e, job, end, e->size[job]);
    e->expected_end[job] = end;
}

static double due(const struct engine *e, double at) {
    return e->in.interval_s != 0.0 ? next_multiple(e->in.interval_s, at, 0.0, INT64_MIN) : at;
}

/* Count the nodes that `row` lacks up to its bounds: once, or -1 times. */
static void count_lacking(struct engine *e, const struct elastic *row, int64_t times) {
    for (int bound = LOW; bound <= HIGH; bound++)
        if (row->size < row->bound[bound]) e->lacking[bound] += times * (row->bound[bound] - row->size);
}

static void elastic_add(struct engine *e, int32_t job) {
    const struct setup *in = &e->in;
    struct elastic row = {
        .job = job, .size = e->size[job], .new_size = e->size[job], .started_in = e->started_in[job],
        .bound = {in->low[job], in->pref[job], in->high[job]},
    };
    int64_t at = e->resizable_count++;
    for (; in->ties_by_id && at > 0 && e->resizable[at - 1].job > job; at--) {
        e->resizable[at] = e->resizable[at - 1];
        e->place[e->resizable[at].job] = (int32_t)at;
    }
    e->resizable[at] = row;
    e->place[job] = (int32_t)at;
    count_lacking(e, &row, 1);
}

static void elastic_remove(struct engine *e, int32_t job) {
    count_lacking(e, &e->resizable[e->place[job]], -1);
    e->resizable_count--;
    for (int64_t at = e->place[job]; at < e->resizable_count; at++) {
        e->resizable[at] = e->resizable[at + 1];
        e->place[e->resizable[at].job] = (int32_t)at;
    }
    e->place[job] = -1;
}

static void launch(struct engine *e, int32_t job, int32_t nodes) {
    const struct setup *in = &e->in;
    if (e->sharing) {
        start_alone(e, job, nodes);
        return;
    }
    e->size[job] = nodes;
    if (in->low[job] < in->high[job]) elastic_add(e, job);
    if (in->malleable[job]) e->limits[job] = (struct progress){0.0, e->now, planned_rate(e, job, nodes)};
    take(e, job, nodes);
    double ready = e->sleep ? e->sleep->ready : e->now, begin = ready + launch_delay(in, job, nodes);
    if (ready > e->now) { /* the limit counts from when the nodes have booted */
        if (in->malleable[job]) e->limits[job].since = ready;
        expect(e, job, ready + in->limit[job] / planned_rate(e, job, nodes));
        e->lapsed = e->ends_later = 1;
    }
    e->start[job] = e->now;
    e->launched[job] = begin;
    double r = rate_on_nodes(e, job, nodes);
    if (in->malleable[job]) e->progress[job] = (struct progress){0.0, begin, r};
    end_at(e, job, begin + in->work[job] / r + end_delay(in, job, nodes));
}

/* Expect every running job past its limit to run for another limit from now on. This drops all reservations. */
static void expect_again(struct engine *e) {
    int64_t count = find_overdue(e, e->overdue);
    if (!count) return;
    for (int64_t at = 0; at < count; at++) {
        int32_t job = e->overdue[at];
        double limit = planned_s(e, job), r = 1.0;
        if (e->in.malleable[job]) {
            const struct progress *p = &e->limits[job];
            r = p->rate;
            e->limit[job] = p->done + (e->now - p->since) * r + limit;
        }
        expect(e, job, e->now + limit / r);
    }
    e->lapsed = 1;
    came_free(e);
}

/* Return the slot of `earmarked` that serves the promise to `job`. */
static int32_t slot_of(const struct engine *e, int32_t job) {
    return e->in.promise == STEAL ? (int32_t)e->in.jobs : job;
}

/* Start every promised job for which enough nodes are idle, in the order of the promises. */
static void serve(struct engine *e) {
    if (!e->promises) return;
    int64_t kept = 0, count = e->promises;
    for (int64_t at = 0; at < count; at++) {
        int32_t job = e->promised[at], nodes = e->promised_nodes[at];
        int pool = e->in.promise == POOL;
        if (nodes <= (pool ? e->cluster_idle : e->earmarked[slot_of(e, job)])) {
            if (pool) e->sum_promised -= nodes; else earmark_idle(e, slot_of(e, job), -nodes);
            e->size[job] = nodes;
            expect(e, job, e->now + e->in.limit[job] / planned_rate(e, job, nodes));
            launch(e, job, nodes);
        } else {
            e->promised[kept] = job;
            e->promised_nodes[kept++] = nodes;
        }
    }
    e->promises = kept;
    set_aside(e);
}

/* Start `job`, or promise it nodes: those of `taken` that are being released, and idle ones. Without `taken`: any. */
static void start_on(struct engine *e, int32_t job, int32_t nodes, const struct taken *taken, int64_t count) {
    int64_t coming = 0;
    for (int64_t at = 0; at < count; at++)
        if (e->giving_back[taken[at].job]) coming += taken[at].nodes;
    CHECK(e->waiting[job] && ((nodes >= e->in.low[job] && nodes <= e->in.high[job]) || nodes == e->in.requested[job]));
    queue_remove(e, job);
    e->decided = 1;
    double end = e->now + e->in.limit[job] / planned_rate(e, job, nodes);
    e->expected_end[job] = end;
    releases_add(e, job, end, nodes);
    e->started_in[job] = e->calls;
    if (nodes <= e->idle && !coming) {
        e->idle -= nodes;
        launch(e, job, nodes);
        return;
    }
    if (e->promises == e->promise_room) {
        int64_t room = e->promise_room * 2;
        if (!grow(e, &e->promised, room, 4) || !grow(e, &e->promised_nodes, room, 4)) return;
        e->promise_room = room;
    }
    e->promised[e->promises] = job;
    e->promised_nodes[e->promises++] = nodes;
    if (count) {
        earmark_idle(e, slot_of(e, job), nodes - coming);
        for (int64_t at = 0; at < count; at++)
            if (e->giving_back[taken[at].job]) earmark_coming(e, slot_of(e, job), taken[at].job, taken[at].nodes);
    } else {
        CHECK(e->in.promise == POOL);
        e->sum_promised += nodes;
    }
    set_aside(e);
    CHECK(e->idle >= 0);
    serve(e);
}

static void start(struct engine *e, int32_t job, int32_t nodes) { start_on(e, job, nodes, NULL, 0); }

/* Apply the pending resize of `job`: its dropped nodes become idle and its end changes. */
static void resized(struct engine *e, int32_t job) {
    e->resizable[e->place[job]].resizing = 0;
    take_back(e, job, gave_back(e, job));
    struct progress *limit = &e->limits[job];
    double worked = e->now - limit->since, done = limit->done + (worked > 0.0 ? worked : 0.0) * limit->rate;
    double begin = worked > 0.0 ? e->now : limit->since, r = planned_rate(e, job, e->size[job]);
    *limit = (struct progress){done, begin, r};
    expect(e, job, begin + (e->limit[job] - done) / r);
    came_free(e);
}

/* Return the first malleability point of `job` at or after `ready`; INFINITY if the job ends before it. A program that is
 * being launched accepts no resize. */
static double point(const struct engine *e, int32_t job, double ready) {
    const struct setup *in = &e->in;
    if (e->launched[job] > ready) ready = e->launched[job];
    if (in->grain_s != 0.0) {
        double iterations = nearbyint(in->run_time[job] / in->grain_s);
        if (iterations <= 1.0) return INFINITY;
        const struct progress *p = &e->progress[job];
        double step = in->run_time[job] / iterations, worked = ready - p->since;
        double number = floor((p->done + (worked > 0.0 ? worked : 0.0) * p->rate) / step + ROUNDING) + 1.0;
        if (number >= iterations) return INFINITY;
        double at = p->since + (number * step - p->done) / p->rate;
        return at > ready ? at : ready;
    }
    if (in->malleability_interval_s != 0.0) return next_multiple(in->malleability_interval_s, ready, e->start[job], 1);
    return ready;
}

/* Continue `job` at the rate of its new size from now on. Return whether the resize is complete: not if nodes are still
 * being released. */
static int take_effect(struct engine *e, int32_t job) {
    int32_t row = e->open[job], added = e->row_to[row] - e->row_from[row], size = e->size[job];
    double pause = reconfiguration_delay(&e->in, row, job, added);
    double begin = go_on(e, job, pause, rate_on_nodes(e, job, size), size);
    e->row_decided[row] = e->now;
    e->row_applied[row] = begin;
    double release_s = release_delay(&e->in, row, job, added);
    if (e->giving_back[job] && release_s != 0.0) {
        e->pending[job] = RELEASING;
        push(e, e->now + release_s, RELEASED, job);
        return 0;
    }
    e->row_ended[row] = begin;
    e->open[job] = -1;
    return 1;
}

static void note_resize(struct engine *e, int32_t job, int32_t from, int32_t to) {
    if (e->row_count == e->row_room) {
        int64_t room = e->row_room * 2;
        if (!(1 RESIZES(GROWN))) return;
        e->row_room = room;
    }
    int64_t row = e->row_count++;
    e->open[job] = (int32_t)row;
    e->row_job[row] = job;
    e->row_from[row] = from;
    e->row_to[row] = to;
    e->row_asked[row] = e->now;
    e->row_decided[row] = e->row_applied[row] = e->row_ended[row] = NAN;
}

static void resize(struct engine *e, int32_t job, int32_t nodes) {
    int32_t from = e->size[job], added = nodes - from;
    double ready = e->now;
    struct elastic *row = &e->resizable[e->place[job]];
    CHECK(from > 0 && added && !row->resizing && nodes >= e->in.low[job] && nodes <= e->in.high[job]);
    CHECK(added <= e->idle);
    e->resized_in_call = e->decided = 1;
    if (added > 0) {
        e->idle -= added;
        take(e, job, added);
        if (e->sleep) ready = e->sleep->ready;
    } else {
        e->giving_back[job] = -added;
        e->sum_giving_back -= added;
    }
    count_lacking(e, row, -1);
    e->size[job] = row->size = row->new_size = nodes;
    count_lacking(e, row, 1);
    row->resizing = 1;
    expect(e, job, e->expected_end[job]);
    note_resize(e, job, from, nodes);
    if (e->failed) return;
    double at = point(e, job, ready + expand_delay(&e->in, e->open[job], added));
    if (at <= e->now && e->in.malleability_interval_s == 0.0) {
        if (take_effect(e, job)) resized(e, job);
    } else {
        e->pending[job] = RESIZING;
        if (at < INFINITY) push(e, at, POINT, job);
    }
}
