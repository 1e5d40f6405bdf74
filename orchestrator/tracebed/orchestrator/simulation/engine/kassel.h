/* The policies of the Kassel family: shrink, then expand. Part of engine.c. */

/* Collect the resizable running jobs; `started_too`, `shrunk_too`: including those started or shrunk in this call. */
static void find_eligible(struct engine *e, int started_too, int shrunk_too) {
    int64_t kept = 0;
    e->eligible_count = 0;
    for (int64_t at = 0; at < e->resizable_count; at++) {
        int32_t job = e->resizable[at];
        if (job < 0) continue;
        e->resizable[kept] = job;
        e->place[job] = (int32_t)kept++;
        if (e->resizing[job] || (!started_too && e->started_in[job] == e->calls)
            || (!shrunk_too && e->shrunk_in[job] == e->calls)) continue;
        e->eligible[e->eligible_count++] = job;
        e->new_size[job] = e->size[job];
    }
    e->resizable_count = kept;
    if (e->in.ties_by_id) qsort(e->eligible, (size_t)e->eligible_count, sizeof *e->eligible, by_value);
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

/* Return the rank of `job` among those above a floor or below a ceiling: the job of least rank changes first. */
static double rank_of(const struct engine *e, int32_t job, const int32_t *floor) {
    int32_t size = e->new_size[job], low = e->in.low[job];
    double above = e->in.policy == AVG ? (double)(size - low) / (double)(e->in.high[job] - low)
                                       : (double)(size - e->in.pref[job]);
    return floor ? -above : above;
}

static int may_change(const struct engine *e, int32_t job, const int32_t *floor, const int32_t *ceiling) {
    return floor ? e->new_size[job] > floor[job] : e->new_size[job] < ceiling[job];
}

/* Build a heap of the eligible jobs above `floor` or below `ceiling`, whichever is given. */
static int64_t candidates(struct engine *e, const int32_t *floor, const int32_t *ceiling) {
    int64_t count = 0;
    for (int64_t at = 0; at < e->eligible_count; at++) {
        int32_t job = e->eligible[at];
        if (may_change(e, job, floor, ceiling))
            e->candidates[count++] = (struct candidate){rank_of(e, job, floor), (int32_t)at, job};
    }
    for (int64_t at = count / 2; at-- > 0;) sink(e->candidates, count, at);
    return count;
}

/* Return the job at the top of the heap of `candidates`, without the heap; -1: none. */
static int32_t first_candidate(const struct engine *e, const int32_t *floor, const int32_t *ceiling) {
    int32_t first = -1;
    double least = INFINITY;
    for (int64_t at = 0; at < e->eligible_count; at++) {
        int32_t job = e->eligible[at];
        if (!may_change(e, job, floor, ceiling)) continue;
        double rank = rank_of(e, job, floor);
        if (rank < least) { least = rank; first = job; }
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
    if (e->taken_count == e->taken_room) {
        if (!grow(e, &e->taken, e->taken_room * 2, sizeof *e->taken)) return;
        e->taken_room *= 2;
    }
    e->taken_row[job] = e->taken_count;
    e->taken[e->taken_count++] = (struct taken){job, nodes};
}

/* Take `need` nodes from jobs above `floor`: as many as possible from each in turn, or node by node under `avg`. */
static void take_room(struct engine *e, const int32_t *floor, int64_t need, int64_t *above_pref, int64_t *above_low) {
    int64_t begin = e->taken_count, count = -1;
    int one = e->in.policy == AVG, alone = !one || need == 1;  /* most calls change one job: they need no heap */
    struct candidate *heap = e->candidates;
    while (need > 0) {
        if (!alone && count < 0) count = candidates(e, floor, NULL);
        CHECK(alone || count > 0);
        int32_t job = alone ? first_candidate(e, floor, NULL) : heap[0].job;
        int32_t size = e->new_size[job], pref = e->in.pref[job], given = one ? 1 : at_most(need, size - floor[job]);
        e->new_size[job] = size - given;
        if (e->in.promise != POOL) note_taken(e, begin, job, given);
        need -= given;
        *above_low -= given;
        *above_pref -= (size > pref ? size - pref : 0) - (size - given > pref ? size - given - pref : 0);
        if (alone) { alone = 0; continue; }
        if (one && size - given > floor[job]) heap[0].key = rank_of(e, job, floor); else heap[0] = heap[--count];
        sink(heap, count, 0);
    }
}

/* Give `idle` nodes to jobs below `ceiling`: as many as possible to each in turn, or node by node (`spread`, `avg`). */
static int64_t give_room(struct engine *e, const int32_t *ceiling, int64_t idle) {
    int one = e->in.spread || e->in.policy == AVG, alone = !one || idle == 1;  /* as in take_room */
    int64_t count = -1;
    struct candidate *heap = e->candidates;
    while (idle > 0) {
        if (!alone && count < 0) count = candidates(e, NULL, ceiling);
        int32_t job = alone ? first_candidate(e, NULL, ceiling) : count ? heap[0].job : -1;
        if (job < 0) break;
        int32_t size = e->new_size[job], given = one ? 1 : at_most(idle, ceiling[job] - size);
        e->new_size[job] = size + given;
        idle -= given;
        if (alone) { alone = 0; continue; }
        if (one && size + given < ceiling[job]) heap[0].key = rank_of(e, job, NULL); else heap[0] = heap[--count];
        sink(heap, count, 0);
    }
    return idle;
}

static void carry_out(struct engine *e) {
    for (int64_t at = 0; at < e->eligible_count && !e->failed; at++) {
        int32_t job = e->eligible[at];
        if (e->new_size[job] < e->size[job]) e->shrunk_in[job] = e->calls;
        if (e->new_size[job] != e->size[job]) resize(e, job, e->new_size[job]);
    }
}

/* Step 2 of the Kassel family: shrink running jobs for each waiting job, in order. */
static void shrink(struct engine *e) {
    const struct setup *in = &e->in;
    int64_t above_pref = 0, above_low = 0, idle = e->idle, promised = 0, begin = 0;
    e->taken_count = 0;
    find_eligible(e, 0, 1);
    for (int64_t at = 0; at < e->eligible_count; at++) {
        int32_t job = e->eligible[at], size = e->size[job];
        above_low += size - in->low[job];
        if (size > in->pref[job]) above_pref += size - in->pref[job];
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
            take_room(e, attempt == 2 ? in->low : in->pref, need, &above_pref, &above_low);
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
    find_eligible(e, (int)e->in.grow_at_start, 0);
    int64_t idle = e->in.policy == AVG ? e->idle : give_room(e, e->in.pref, e->idle);
    give_room(e, e->in.high, idle);
    carry_out(e);
}

static void kassel(struct engine *e) {
    e->calls++;
    if (e->in.first_fit_only) fit_first(e); else backfill(e);
    if (e->waiting_count && !e->failed) shrink(e);
    if (e->idle && !e->failed) expand(e);
    if (e->in.calls == SETTLE && e->decided) e->wake = e->now;
    if (e->in.calls == TICK && e->chunk_count && (e->decided || e->waiting_count))
        e->wake = due(e, nextafter(e->now, INFINITY));
}
