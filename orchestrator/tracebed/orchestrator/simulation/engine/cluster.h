/* Idle nodes as bits, allocated nodes as ranges, and the ledger. Part of engine.c. */

/* Return the row of `time` in e->instants, or -1 without memory. Times ascend, except those of jobs that share nodes. */
static int32_t instant(struct engine *e, double time) {
    int64_t last = e->instant_count - 1;
    if (last >= 0 && e->instants[last] == time) return (int32_t)last;
    if (!make_room(e, &e->instants, e->instant_count, &e->instant_room, sizeof *e->instants)) return -1;
    e->instants[e->instant_count] = time;
    return (int32_t)e->instant_count++;
}

/* Add a row of nodes held from the instant `since` to the ledger; return its index, or -1 without memory. */
static int64_t enter(struct engine *e, int32_t job, int64_t first, int64_t count, int32_t since) {
    if (e->held_count == e->held_room) {
        int64_t room = e->held_room * 2;
        if (!(1 LEDGER(GROWN)) || (e->sharing && !grow(e, &e->held_part, room, 4))) return -1;
        e->held_room = room;
    }
    int64_t row = e->held_count++;
    e->held_job[row] = job;
    e->held_first[row] = (int32_t)first;
    e->held_nodes[row] = (int32_t)count;
    e->held_since[row] = since;
    return row;
}

/* Return the index of an unused item of e->ranges, or -1 without memory. */
static int32_t new_range(struct engine *e) {
    int32_t at = e->range_free;
    if (at >= 0) {
        e->range_free = e->ranges[at].below;
        return at;
    }
    return make_room(e, &e->ranges, e->range_count, &e->range_room, sizeof *e->ranges) ? e->range_count++ : -1;
}

static void hold(struct engine *e, int32_t job, int64_t first, int64_t count) {
    int64_t row = enter(e, job, first, count, instant(e, e->now));
    int32_t at = row < 0 ? -1 : new_range(e);
    if (at < 0) return;
    e->ranges[at] = (struct range){row, (int32_t)first, (int32_t)count, e->held[job]};
    e->held[job] = at;
}

/* Allocate the lowest nodes to `job`, up to `count`: of `among` (null: of all nodes), without those of `without`, which
 * are idle. Return their number. */
static int64_t take_lowest(
    struct engine *e, int32_t job, int64_t count, const uint64_t *among, const uint64_t *without
) {
    int64_t first = -1, length = 0, word = e->lowest, left = count;
    while (left > 0 && word < e->words) {
        uint64_t bits = among ? among[word] & e->idle_bits[word] : e->idle_bits[word];
        if (without) bits &= ~without[word];
        if (!bits) { word++; continue; }
        int64_t bit = __builtin_ctzll(bits), at = word * 64 + bit;
        uint64_t ones = ~(bits >> bit);
        int64_t run = ones ? __builtin_ctzll(ones) : 64;
        if (run > 64 - bit) run = 64 - bit;
        if (run > left) run = left;
        uint64_t taken = (run == 64 ? ~UINT64_C(0) : (UINT64_C(1) << run) - 1) << bit;
        e->idle_bits[word] &= ~taken;
        if (e->sleep) wake(e, word, taken);
        if (length && first + length == at) {
            length += run;
        } else {
            if (length) hold(e, job, first, length);
            first = at;
            length = run;
        }
        left -= run;
    }
    if (!among && !without) e->lowest = word;
    if (length) hold(e, job, first, length);
    e->cluster_idle -= count - left;
    return count - left;
}

/* Allocate `count` idle nodes to `job`, lowest first: of e->among, or of all of them. Of nodes that are off at times,
 * those that are on come first, then those that boot. A policy that names nodes does not look at that. */
static void take(struct engine *e, int32_t job, int64_t count) {
    CHECK(count >= 0 && count <= e->cluster_idle);
    struct sleep *s = e->sleep;
    if (s) {
        s->ready = e->now;
        wake_idle(e);
    }
    if (!s || e->among || e->in.named_nodes || !(s->off_count + s->waking_count)) {
        count -= take_lowest(e, job, count, e->among, NULL);
    } else {
        for (int64_t word = 0; word < e->words; word++) s->unready[word] = s->off[word] | s->waking[word];
        count -= take_lowest(e, job, count, NULL, s->unready);
        if (s->waking_count) count -= take_lowest(e, job, count, s->waking, NULL);
        count -= take_lowest(e, job, count, s->off, NULL);
    }
    CHECK(!count);
}

static void give_back(struct engine *e, int64_t first, int64_t count) {
    e->cluster_idle += count;
    if (first / 64 < e->lowest) e->lowest = first / 64;
    while (count > 0) {
        int64_t bit = first % 64, run = count < 64 - bit ? count : 64 - bit;
        uint64_t bits = (run == 64 ? ~UINT64_C(0) : (UINT64_C(1) << run) - 1) << bit;
        CHECK(first / 64 < e->words && !(e->idle_bits[first / 64] & bits));
        e->idle_bits[first / 64] |= bits;
        first += run;
        count -= run;
    }
}

/* Release the last `count` nodes that `job` took; INT64_MAX releases all. */
static void take_back(struct engine *e, int32_t job, int64_t count) {
    int32_t at;
    while (count > 0 && (at = e->held[job]) >= 0) {
        struct range *range = &e->ranges[at];
        int64_t given = range->count < count ? range->count : count;
        range->count -= (int32_t)given;
        count -= given;
        int64_t first = range->first + range->count, row = range->row;
        if (range->count) {
            e->held_nodes[row] = range->count;
            row = enter(e, job, first, given, e->held_since[row]);
            if (row < 0) return;
        }
        e->held_until[row] = instant(e, e->now);
        give_back(e, first, given);
        if (e->sleep) rest(e, first, given);
        if (!range->count) {
            e->held[job] = range->below;
            range->below = e->range_free;
            e->range_free = at;
        }
    }
}

static void set_aside(struct engine *e) {
    int64_t to_hold = e->sum_promised - (e->sum_giving_back - e->sum_coming);
    e->idle = e->cluster_idle - e->sum_earmarked - (to_hold > 0 ? to_hold : 0);
    e->returning = to_hold < 0 ? -to_hold : 0;
}

static void came_free(struct engine *e) {
    e->freed = 1;
    e->settled = 0;
    set_aside(e);
}
