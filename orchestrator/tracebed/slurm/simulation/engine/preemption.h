/* Preemption, as in tests/oracles/slurm_simulation/preemption.py and simulator.py. Part of slurm.c. */

static const double REQUEUED_S = 121.0;

/* Record that `job` held its nodes from `s->active[job]` until `end`. */
static void stint(struct engine *e, int32_t job, double end) {
    const struct setup *s = e->s;
    if (!grow((void **)&e->stints, &e->stint_room, e->stint_count + 1, sizeof *e->stints)) { e->out_of_memory = 1; return; }
    e->stints[e->stint_count++] = (struct stint){s->active[job], end, s->range_first[job], s->range_size[job], job};
}

/* Note another expected end of a running job. */
static void expect(struct engine *e, int32_t job, int64_t end) {
    remove_running(e, job);
    leave(e, job);
    e->due[job] = end;
    hold(e, job);
    insert_running(e, job);
}

/* Let `job` end after a time of grace, if it does not end before. */
static void kill_job(struct engine *e, int32_t job, int64_t grace, int fate) {
    const struct setup *s = e->s;
    double end = e->now + (double)grace;
    if (!(end < s->end[job])) return;
    s->end[job] = end;
    s->fate[job] = fate;
    e->ends[job] = end + s->end_s[job];
    at(e, e->ends[job], END, job);
    expect(e, job, whole_second(e, e->now) + grace);
}

static void suspend(struct engine *e, int32_t job) {
    if (e->asleep[job]) return;
    e->asleep[job] = 1;
    e->asleep_count++;
    e->asleep_at[job] = e->now;
    e->asleep_left[job] = e->s->end[job] - e->now;
    e->ends[job] = NAN;
    stint(e, job, e->now);
}

/* Let a suspended job that is lost hold its nodes without an end. */
static void wake(struct engine *e, int32_t job) {
    if (!e->asleep[job]) return;
    e->asleep[job] = 0;
    e->asleep_count--;
    e->s->active[job] = e->now;
    e->s->end[job] = INFINITY;
}

static void resume(struct engine *e) {
    const struct setup *s = e->s;
    for (int32_t job = 0; e->asleep_count && job < s->jobs; job++) {
        if (!e->asleep[job]) continue;
        int used = 0;
        const struct range *ranges = e->ranges + s->range_first[job];
        for (int32_t r = 0; r < s->range_size[job]; r++)
            for (int32_t k = 0; k < ranges[r].count; k++) used |= e->free.cores[ranges[r].first + k] < 0;
        if (used) continue;
        e->asleep[job] = 0;
        e->asleep_count--;
        s->active[job] = e->now;
        s->end[job] = e->now + e->asleep_left[job];
        e->ends[job] = s->end[job] + s->end_s[job];
        at(e, e->ends[job], END, job);
        expect(e, job, e->due[job] + whole_second(e, e->now) - whole_second(e, e->asleep_at[job]));
    }
}

static int requeued(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    int again = s->fate[job] == LOST ? s->requeues != 0 : s->fate[job] == PREEMPTED && s->mode[s->stratum[job]] == REQUEUE;
    if (!again) return 0;
    stint(e, job, s->end[job]); /* without the time of its completion, as of other jobs */
    s->restarts[s->first_entry[job]]++;
    s->range_size[job] = 0;
    s->start[job] = s->launched[job] = s->end[job] = NAN;
    for (int32_t each = s->first_entry[job]; each >= 0; each = s->following[each]) {
        e->earliest[each] = e->accrued[each] = e->now + REQUEUED_S;
        e->ready[each] = e->withdrawn[each] = 0;
        e->unready++;
        at(e, e->earliest[each], CHANGE, each);
        enqueue(e, each);
    }
    return 1;
}

static int64_t nodes_held(const struct engine *e, int32_t job) {
    int64_t nodes = 0;
    const struct range *ranges = e->ranges + e->s->range_first[job];
    for (int32_t r = 0; r < e->s->range_size[job]; r++) nodes += ranges[r].count;
    return nodes;
}

/* How many of the nodes `mask` a running job holds. */
static int32_t held_of(const struct engine *e, int32_t job, const uint64_t *mask) {
    int32_t nodes = 0;
    const struct bits *bits = e->bits + e->bits_first[job];
    for (int32_t k = 0; k < e->bits_size[job]; k++) nodes += __builtin_popcountll(bits[k].nodes & mask[bits[k].word]);
    return nodes;
}

/* Whether `a` is preempted before `b`. */
static int yields_before(const struct engine *e, int32_t a, int32_t b) {
    const struct setup *s = e->s;
    if (s->youngest) return s->start[a] != s->start[b] ? s->start[a] > s->start[b] : a < b;
    int64_t x = s->rank[s->stratum[a]], y = s->rank[s->stratum[b]];
    if (x != y) return x < y;
    int64_t nodes_a = nodes_held(e, a), nodes_b = nodes_held(e, b);
    if (nodes_a != nodes_b) return nodes_a < nodes_b;
    return a < b;
}

/* The running jobs that `job` may preempt, in `e->candidates`. */
static void gather(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    e->candidate_count = 0;
    if (!s->preempts) return;
    const uint8_t *may = s->may + s->stratum[job] * s->strata;
    int64_t now = whole_second(e, e->now);
    for (int64_t k = 0; k < e->running_count; k++) {
        int32_t other = e->running[k].job, own = s->stratum[other];
        if (!may[own] || (double)(now - whole_second(e, s->start[other])) < exempt_of(s, other)) continue;
        int64_t to = e->candidate_count++;
        for (; to && yields_before(e, other, e->candidates[to - 1]); to--) e->candidates[to] = e->candidates[to - 1];
        e->candidates[to] = other;
    }
}

static void copy_free(struct engine *e) {
    const struct setup *s = e->s;
    memcpy(e->expected.cores, e->free.cores, (size_t)s->nodes * sizeof *e->free.cores);
    memcpy(e->expected.memory, e->free.memory, (size_t)s->nodes * sizeof *e->free.memory);
    memcpy(e->expected.gres, e->free.gres, (size_t)(s->nodes * s->kinds) * sizeof *e->free.gres);
}

/* Release in `e->expected` what a preempted job releases: a suspended one keeps its memory and generic resources. */
static void yield(struct engine *e, int32_t job) {
    if (e->s->mode[e->s->stratum[job]] != SUSPEND) {
        take(e, &e->expected, job, 1);
        return;
    }
    const struct range *ranges = e->ranges + e->s->range_first[job];
    for (int32_t r = 0; r < e->s->range_size[job]; r++)
        for (int32_t k = 0; k < ranges[r].count; k++) e->expected.cores[ranges[r].first + k] += ranges[r].cores;
}

/* Choose the jobs that are preempted for `job` on the `usable` nodes, in `e->victims`, and its nodes, those of the last choice. */
static int choose_victims(struct engine *e, int32_t job, const uint64_t *usable) {
    int64_t count = 0, again = e->s->again;
    for (int64_t k = 0; k < e->candidate_count; k++)
        if (held_of(e, e->candidates[k], usable)) e->order_of[count++] = e->candidates[k];
    for (;;) {
        int64_t taken = 0;
        int found = 0;
        copy_free(e);
        while (taken < count && !found) {
            yield(e, e->order_of[taken++]);
            found = choose_with(e, &e->expected, job, usable);
        }
        if (!found) return 0;
        memcpy(e->victim_nodes, e->picked, (size_t)e->words * sizeof *e->picked);
        if (again == 0 || taken == 1) {
            e->victim_count = 0;
            for (int64_t k = 0; k < taken; k++)
                if (held_of(e, e->order_of[k], e->victim_nodes)) e->victims[e->victim_count++] = e->order_of[k];
            return 1;
        }
        again--;
        int32_t last = e->order_of[taken - 1];
        for (int64_t k = 0; k < taken; k++) {
            int32_t own = e->order_of[k], nodes = own == last ? INT32_MAX : held_of(e, own, e->victim_nodes);
            int64_t to = k;
            for (; to && nodes > e->overlap[to - 1]; to--) e->overlap[to] = e->overlap[to - 1], e->order_of[to] = e->order_of[to - 1];
            e->overlap[to] = nodes, e->order_of[to] = own;
        }
        count = taken;
    }
}

/* Preempt candidates for `job` on the `usable` nodes. Return whether it has started; `e->victim_nodes` are its nodes and
 * those of the preempted jobs, and `e->victim_count` is -1 if it does not fit. */
static int preempt(struct engine *e, int32_t job, const uint64_t *usable) {
    const struct setup *s = e->s;
    gather(e, job);
    e->victim_count = -1;
    if (!e->candidate_count || !choose_victims(e, job, usable)) return 0;
    int suspended = 1;
    for (int64_t k = 0; k < e->victim_count; k++) {
        int32_t own = e->victims[k], of = s->stratum[own];
        const struct bits *bits = e->bits + e->bits_first[own];
        for (int32_t b = 0; b < e->bits_size[own]; b++) e->victim_nodes[bits[b].word] |= bits[b].nodes;
        if (s->mode[of] == SUSPEND) suspend(e, own);
        else {
            suspended = 0;
            kill_job(e, own, s->grace[of], PREEMPTED);
        }
    }
    if (suspended) start(e, job);
    return suspended;
}
