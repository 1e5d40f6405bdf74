/* The policies of the Kassel family: shrink, then expand. Part of engine.c. */

/* From now on, jobs started in the call `started` or shrunk in the call `shrunk` are not eligible; -1: they are. */
static void bar(struct engine *e, int64_t started, int64_t shrunk) {
    e->bar_started = started;
    e->bar_shrunk = shrunk;
}

/* Return whether a running job may be resized in this step. */
static int eligible(const struct engine *e, const struct elastic *row) {
    return !row->resizing && row->started_in != e->bar_started && row->shrunk_in != e->bar_shrunk;
}

static int less(const struct candidate *a, const struct candidate *b) {
    return a->key != b->key ? a->key < b->key : a->order < b->order;
}

/* Sift down the candidate at `at` in a min-heap. */
static void sink(struct candidate *heap, int64_t count, int64_t at) {
    struct candidate moved = heap[at];
    int64_t child;
    while ((child = 2 * at + 1) < count) {
        if (child + 1 < count && less(&heap[child + 1], &heap[child])) child++;
        if (!less(&heap[child], &moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Return the rank of `row` among those above a floor or below a ceiling: the job of least rank changes first. */
static double rank_of(const struct engine *e, const struct elastic *row, int down) {
    double above = e->in.policy == AVG
        ? (double)(row->new_size - row->bound[LOW]) / (double)(row->bound[HIGH] - row->bound[LOW])
        : (double)(row->new_size - row->bound[PREFERRED]);
    return down ? -above : above;
}

static int may_change(const struct engine *e, const struct elastic *row, int down, int bound) {
    return (down ? row->new_size > row->bound[bound] : row->new_size < row->bound[bound]) && eligible(e, row);
}

/* Build a heap of the eligible jobs above (`down`) or below `bound`. */
static int64_t candidates(struct engine *e, int down, int bound) {
    int64_t count = 0;
    for (int64_t at = 0; at < e->resizable_count; at++) {
        const struct elastic *row = &e->resizable[at];
        if (may_change(e, row, down, bound))
            e->candidates[count++] = (struct candidate){rank_of(e, row, down), (int32_t)at};
    }
    for (int64_t at = count / 2; at-- > 0;) sink(e->candidates, count, at);
    return count;
}

/* Return the index of the job at the top of the heap of `candidates`, without the heap; -1: none. */
static int32_t first_candidate(const struct engine *e, int down, int bound) {
    int32_t first = -1;
    double least = INFINITY;
    for (int64_t at = 0; at < e->resizable_count; at++) {
        const struct elastic *row = &e->resizable[at];
        if (!may_change(e, row, down, bound)) continue;
        double rank = rank_of(e, row, down);
        if (rank < least) { least = rank; first = (int32_t)at; }
    }
    return first;
}

/* Record that `nodes` nodes of `job` are taken for the promise whose rows of `taken` begin at `begin`. */
static void note_taken(struct engine *e, int64_t begin, int32_t job, int32_t nodes) {
    int64_t row = e->taken_row[job];
    if (row >= begin && row < e->taken_count && e->taken[row].job == job) {
        e->taken[row].nodes += nodes;
        return;
    }
    if (!make_room(e, &e->taken, e->taken_count, &e->taken_room, sizeof *e->taken)) return;
    e->taken_row[job] = e->taken_count;
    e->taken[e->taken_count++] = (struct taken){job, nodes};
}

static void decide_size(struct engine *e, struct elastic *row, int32_t nodes) {
    if (row->new_size == row->size) e->undone++;
    row->new_size = nodes;
}

/* Take `need` nodes from jobs above `floor`: as many as possible from each in turn, or node by node under `avg`. */
static void take_room(struct engine *e, int floor, int64_t need, int64_t *above_pref, int64_t *above_low) {
    int64_t begin = e->taken_count, count = -1;
    int one = e->in.policy == AVG, alone = !one || need == 1;  /* most calls change one job: they need no heap */
    struct candidate *heap = e->candidates;
    while (need > 0) {
        if (!alone && count < 0) count = candidates(e, 1, floor);
        CHECK(alone || count > 0);
        struct elastic *row = &e->resizable[alone ? first_candidate(e, 1, floor) : heap[0].order];
        int32_t size = row->new_size, pref = row->bound[PREFERRED];
        int32_t given = one ? 1 : at_most(need, size - row->bound[floor]);
        decide_size(e, row, size - given);
        if (e->in.promise != POOL) note_taken(e, begin, row->job, given);
        need -= given;
        *above_low -= given;
        *above_pref -= (size > pref ? size - pref : 0) - (size - given > pref ? size - given - pref : 0);
        if (alone) { alone = 0; continue; }
        if (one && row->new_size > row->bound[floor]) heap[0].key = rank_of(e, row, 1); else heap[0] = heap[--count];
        sink(heap, count, 0);
    }
}

/* Give `idle` nodes to jobs below `ceiling`: as many as possible to each in turn, or node by node (`spread`, `avg`). */
static int64_t give_room(struct engine *e, int ceiling, int64_t idle) {
    int one = e->in.spread || e->in.policy == AVG, alone = !one || idle == 1;  /* as in take_room */
    int64_t count = -1;
    struct candidate *heap = e->candidates;
    while (idle > 0) {
        if (!alone && count < 0) count = candidates(e, 0, ceiling);
        int64_t at = alone ? first_candidate(e, 0, ceiling) : count ? heap[0].order : -1;
        if (at < 0) break;
        struct elastic *row = &e->resizable[at];
        int32_t size = row->new_size, given = one ? 1 : at_most(idle, row->bound[ceiling] - size);
        decide_size(e, row, size + given);
        idle -= given;
        if (alone) { alone = 0; continue; }
        if (one && row->new_size < row->bound[ceiling]) heap[0].key = rank_of(e, row, 0); else heap[0] = heap[--count];
        sink(heap, count, 0);
    }
    return idle;
}

static void carry_out(struct engine *e) {
    for (int64_t at = 0; e->undone && !e->failed; at++) {
        CHECK(at < e->resizable_count);
        struct elastic *row = &e->resizable[at];
        if (row->new_size == row->size) continue;
        if (row->new_size < row->size) row->shrunk_in = e->calls;
        resize(e, row->job, row->new_size);
        e->undone--;
    }
}

/* Step 2 of the Kassel family: shrink running jobs for each waiting job, in order. */
static void shrink(struct engine *e) {
    const struct setup *in = &e->in;
    int64_t above_pref = 0, above_low = 0, idle = e->idle, promised = 0, begin = 0;
    e->taken_count = 0;
    bar(e, e->calls, -1);
    for (int64_t at = 0; at < e->resizable_count; at++) {
        const struct elastic *row = &e->resizable[at];
        if (!eligible(e, row)) continue;
        above_low += row->size - row->bound[LOW];
        if (row->size > row->bound[PREFERRED]) above_pref += row->size - row->bound[PREFERRED];
    }
    int32_t job = -1, head = in->count_idle == HEAD ? queue_first(e) : -1;
    while (above_low > 0) {
        int64_t counted = in->count_idle == YES || (in->count_idle == HEAD && job < 0) ? idle : 0;
        int64_t most = counted + above_low;
        if ((job = first_fit(e, job, most, 0.0, most)) < 0) break;  /* shrinking cannot help the jobs in between */
        if (in->count_idle == HEAD && job != head) {
            counted = 0;
            if (in->low[job] <= e->idle || in->low[job] > above_low) continue;
        }
        int32_t target = 0;
        for (int attempt = 0; attempt < 3 && !target; attempt++) {
            int32_t wanted = attempt == 0 ? in->pref[job] : in->low[job];
            int64_t need = wanted - counted;
            if (need <= 0) break;
            if (need > (attempt == 2 ? above_low : above_pref)) continue;
            take_room(e, attempt == 2 ? LOW : PREFERRED, need, &above_pref, &above_low);
            target = wanted;
            idle -= target - need;
        }
        if (!target) continue;
        if (in->promise != POOL) e->taken_end[promised] = e->taken_count;
        e->promises_to[promised] = job;
        e->promise_sizes[promised++] = target;
    }
    carry_out(e);
    for (int64_t at = 0; at < promised && !e->failed; at++) {
        int64_t end = in->promise == POOL ? 0 : e->taken_end[at];
        start_on(e, e->promises_to[at], e->promise_sizes[at], end ? e->taken + begin : NULL, end - begin);
        begin = end;
    }
}

/* Step 3: idle nodes go to running jobs. */
static void expand(struct engine *e) {
    if (!e->lacking[HIGH]) return;
    bar(e, e->in.grow_at_start ? -1 : e->calls, e->calls);
    int64_t idle = e->idle;
    if (e->in.policy != AVG && !e->in.straight && e->lacking[PREFERRED]) idle = give_room(e, PREFERRED, idle);
    give_room(e, HIGH, idle);
    carry_out(e);
}

static void kassel(struct engine *e) {
    e->calls++;
    if (e->in.first_fit_only) fit_first(e); else backfill(e);
    if (e->waiting_count && !e->failed && (e->idle || !e->in.if_idle)) shrink(e);
    if (e->idle && !e->failed) expand(e);
    if (e->in.calls == SETTLE && e->decided) e->wake = e->now;
    if (e->in.calls == TICK && e->chunk_count && (e->decided || e->waiting_count))
        e->wake = due(e, nextafter(e->now, INFINITY));
}
