/* The ledger of a simulation that is done, in the order of the table of allocations. Part of engine.c. */

struct held { int32_t job, first, until, nodes, row; };     /* of rows with the same `since` */
#define FEW_ROWS 32                                         /* as many are sorted by insertion */

static int before_held(const struct held *a, const struct held *b) {
    if (a->job != b->job) return a->job < b->job;
    if (a->first != b->first) return a->first < b->first;
    return a->until != b->until ? a->until < b->until : a->row < b->row;
}

static int by_held(const void *a, const void *b) { return before_held(a, b) ? -1 : before_held(b, a); }

/* Order rows by the instants since which nodes are held; rows of one instant keep their order. Most rows are in it. */
static int order_by_instant(struct engine *e) {
    int64_t rows = e->held_count, row = 1;
    while (row < rows && e->held_since[row - 1] <= e->held_since[row]) row++;
    if (row >= rows) return 1;
    uint32_t *next = make(e, e->instant_count + 1, sizeof *next);  /* of each instant: the place of its next row */
    uint32_t *place = rows > UINT32_MAX ? NULL : malloc((size_t)rows * sizeof *place);
    int32_t *moved = malloc((size_t)rows * sizeof *moved), *from;
    int32_t **columns[] = {&e->held_job, &e->held_first, &e->held_nodes, &e->held_since, &e->held_until};
    int good = next && place && moved;
    for (row = 0; good && row < rows; row++) next[e->held_since[row] + 1]++;
    for (int64_t at = 1; good && at <= e->instant_count; at++) next[at] += next[at - 1];
    for (row = 0; good && row < rows; row++) place[row] = next[e->held_since[row]]++;
    for (int column = 0; good && column < 5; column++) {
        from = *columns[column];
        for (row = 0; row < rows; row++) moved[place[row]] = from[row];
        *columns[column] = moved;
        moved = from;  /* memory for the next column */
    }
    free(next), free(place), free(moved);
    return good;
}

/* Order rows by start, job, first node and end. Return whether there is enough memory. */
static int order_ledger(struct engine *e) {
    if (!order_by_instant(e)) return 0;
    struct held *some = NULL;
    int64_t room = 0;
    for (int64_t begin = 0, end; begin < e->held_count; begin = end) {
        int sorted = 1;
        for (end = begin + 1; end < e->held_count && e->held_since[end] == e->held_since[begin]; end++)
            if (e->held_job[end] < e->held_job[end - 1]
                || (e->held_job[end] == e->held_job[end - 1] && e->held_first[end] <= e->held_first[end - 1])) sorted = 0;
        if (sorted) continue;
        int64_t count = end - begin;
        if (count > room) {
            room = 2 * count;
            if (!grow(e, &some, room, sizeof *some)) { free(some); return 0; }
        }
        for (int64_t at = 0; at < count; at++) {
            int64_t row = begin + at, to = at;
            struct held held = {e->held_job[row], e->held_first[row], e->held_until[row], e->held_nodes[row], (int32_t)at};
            if (count <= FEW_ROWS) for (; to > 0 && before_held(&held, &some[to - 1]); to--) some[to] = some[to - 1];
            some[to] = held;
        }
        if (count > FEW_ROWS) qsort(some, (size_t)count, sizeof *some, by_held);
        for (int64_t at = 0; at < count; at++) {
            e->held_job[begin + at] = some[at].job;
            e->held_first[begin + at] = some[at].first;
            e->held_until[begin + at] = some[at].until;
            e->held_nodes[begin + at] = some[at].nodes;
        }
    }
    free(some);
    return 1;
}

/* Make one row of successive ranges of nodes that a job holds for the same period. */
static void join_ledger(struct engine *e) {
    int64_t kept = 0;
    for (int64_t row = 0; row < e->held_count; row++) {
        int64_t last = kept - 1;
        if (kept && e->held_job[last] == e->held_job[row] && e->held_since[last] == e->held_since[row]
            && e->held_until[last] == e->held_until[row] && e->held_first[last] + e->held_nodes[last] == e->held_first[row]) {
            e->held_nodes[last] += e->held_nodes[row];
            continue;
        }
        e->held_job[kept] = e->held_job[row];
        e->held_first[kept] = e->held_first[row];
        e->held_nodes[kept] = e->held_nodes[row];
        e->held_since[kept] = e->held_since[row];
        e->held_until[kept++] = e->held_until[row];
    }
    e->held_count = kept;
}
