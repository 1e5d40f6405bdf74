/* Idle nodes as bits, allocated nodes as ranges, and the ledger. Part of engine.c. */

/* Add a row of nodes held from `since` to the ledger; return its index, or -1 without memory. */
static int64_t enter(struct engine *e, int32_t job, int64_t first, int64_t count, double since) {
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

/* Record that `node` is in the state of power `state` from `time` on. */
static void note_power(struct engine *e, int64_t node, double time, uint8_t state) {
    if (e->power_count == e->power_room) {
        int64_t room = e->power_room * 2;
        if (!(1 POWER_CHANGES(GROWN))) return;
        e->power_room = room;
    }
    int64_t row = e->power_count++;
    e->power_node[row] = (int32_t)node;
    e->power_time[row] = time;
    e->power_state[row] = state;
}

static void hold(struct engine *e, int32_t job, int64_t first, int64_t count) {
    int64_t row = enter(e, job, first, count, e->now);  /* in order of allocation, mostly the order of the table */
    if (row < 0) return;
    int32_t at = e->range_free;
    if (at >= 0) {
        e->range_free = e->ranges[at].below;
    } else {
        if (!make_room(e, &e->ranges, e->range_count, &e->range_room, sizeof *e->ranges)) return;
        at = e->range_count++;
    }
    e->ranges[at] = (struct range){row, (int32_t)first, (int32_t)count, e->held[job]};
    e->held[job] = at;
}

/* Allocate the `count` lowest nodes to `job`: of e->among, which are idle, or of all idle nodes. */
static void take(struct engine *e, int32_t job, int64_t count) {
    CHECK(count >= 0 && count <= e->cluster_idle);
    e->cluster_idle -= count;
    int64_t first = -1, length = 0, word = e->lowest;
    while (count > 0) {
        CHECK(word < e->words);
        uint64_t bits = e->among ? e->among[word] & e->idle_bits[word] : e->idle_bits[word];
        if (!bits) { word++; continue; }
        int64_t bit = __builtin_ctzll(bits), at = word * 64 + bit;
        uint64_t ones = ~(bits >> bit);
        int64_t run = ones ? __builtin_ctzll(ones) : 64;
        if (run > 64 - bit) run = 64 - bit;
        if (run > count) run = count;
        e->idle_bits[word] &= ~((run == 64 ? ~UINT64_C(0) : (UINT64_C(1) << run) - 1) << bit);
        if (length && first + length == at) {
            length += run;
        } else {
            if (length) hold(e, job, first, length);
            first = at;
            length = run;
        }
        count -= run;
    }
    if (!e->among) e->lowest = word;
    if (length) hold(e, job, first, length);
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
        e->held_until[row] = e->now;
        give_back(e, first, given);
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
