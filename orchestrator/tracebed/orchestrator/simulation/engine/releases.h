/* When nodes are expected to become idle. Part of engine.c. */

static int before(const struct release *row, double end, int32_t job) {
    return row->end != end ? row->end < end : row->job < job;
}

/* Return the first chunk whose last row is not before (end, job), or the number of chunks. */
static int64_t chunk_of(const struct engine *e, double end, int32_t job) {
    int64_t low = 0, high = e->chunk_count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const struct chunk *chunk = e->chunks[middle];
        if (before(&chunk->row[chunk->count - 1], end, job)) low = middle + 1; else high = middle;
    }
    return low;
}

static int32_t row_in(const struct chunk *chunk, double end, int32_t job) {
    int32_t low = 0, high = chunk->count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (before(&chunk->row[middle], end, job)) low = middle + 1; else high = middle;
    }
    return low;
}

static int insert_chunk(struct engine *e, int64_t at) {
    if (!make_room(e, &e->chunks, e->chunk_count, &e->chunk_room, sizeof *e->chunks)) return 0;
    struct chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) { e->failed = NO_MEMORY; return 0; }
    memmove(&e->chunks[at + 1], &e->chunks[at], (size_t)(e->chunk_count - at) * sizeof *e->chunks);
    e->chunks[at] = chunk;
    e->chunk_count++;
    return 1;
}

static void releases_add(struct engine *e, int32_t job, double end, int32_t nodes) {
    int64_t at = chunk_of(e, end, job);
    if (at == e->chunk_count && at > 0) at--;
    if (!e->chunk_count && !insert_chunk(e, 0)) return;
    struct chunk *chunk = e->chunks[at];
    if (chunk->count == CHUNK) {
        if (!insert_chunk(e, at + 1)) return;
        struct chunk *next = e->chunks[at + 1];
        next->count = CHUNK / 2;
        chunk->count = CHUNK - CHUNK / 2;
        memcpy(next->row, &chunk->row[chunk->count], (size_t)next->count * sizeof *chunk->row);
        for (int32_t row = 0; row < next->count; row++) next->nodes += next->row[row].nodes;
        chunk->nodes -= next->nodes;
        if (before(&chunk->row[chunk->count - 1], end, job)) chunk = next;
    }
    int32_t row = row_in(chunk, end, job);
    memmove(&chunk->row[row + 1], &chunk->row[row], (size_t)(chunk->count - row) * sizeof *chunk->row);
    chunk->row[row] = (struct release){end, job, nodes};
    chunk->count++;
    chunk->nodes += nodes;
    e->changes++;
}

static void releases_remove(struct engine *e, int32_t job, double end) {
    int64_t at = chunk_of(e, end, job);
    CHECK(at < e->chunk_count);
    struct chunk *chunk = e->chunks[at];
    int32_t row = row_in(chunk, end, job);
    CHECK(row < chunk->count && chunk->row[row].job == job && chunk->row[row].end == end);
    chunk->nodes -= chunk->row[row].nodes;
    chunk->count--;
    memmove(&chunk->row[row], &chunk->row[row + 1], (size_t)(chunk->count - row) * sizeof *chunk->row);
    if (!chunk->count) {
        free(chunk);
        e->chunk_count--;
        memmove(&e->chunks[at], &e->chunks[at + 1], (size_t)(e->chunk_count - at) * sizeof *e->chunks);
    }
    e->changes++;
}

/* Return when `need` nodes will be idle, with `*idle` idle now. Count into `*idle` the nodes that running jobs before row
 * `*row` of chunk `*at` release. */
static double room_for(struct engine *e, int64_t need, int64_t *idle, int64_t *at, int32_t *row) {
    if (*idle >= need) return e->now;
    while (*at < e->chunk_count && *idle + e->chunks[*at]->nodes < need) *idle += e->chunks[(*at)++]->nodes;
    CHECK(*at < e->chunk_count);
    if (*at == e->chunk_count) { e->failed = IMPOSSIBLE; return e->now; }
    while (*idle + e->chunks[*at]->row[*row].nodes < need) *idle += e->chunks[*at]->row[(*row)++].nodes;
    double end = e->chunks[*at]->row[*row].end;
    return end > e->now ? end : e->now;
}

/* Set e->shadow and e->extra to the shadow time and extra nodes of a job that needs more than the idle nodes. */
static void reservation(struct engine *e, int64_t need) {
    int64_t idle = e->idle + e->returning;
    if (e->question_need == need && e->question_idle == idle && e->question_changes == e->changes && e->shadow > e->now)
        return;
    e->question_need = need;
    e->question_idle = idle;
    e->question_changes = e->changes;
    int64_t freed = idle, at = 0;
    int32_t row = 0;
    double shadow = room_for(e, need, &freed, &at, &row);
    if (e->failed) return;
    for (; at < e->chunk_count; at++, row = 0) {
        const struct chunk *chunk = e->chunks[at];
        if (row == 0 && chunk->row[chunk->count - 1].end <= shadow) { freed += chunk->nodes; continue; }
        for (; row < chunk->count && chunk->row[row].end <= shadow; row++) freed += chunk->row[row].nodes;
        if (row < chunk->count) break;
    }
    e->shadow = shadow;
    e->extra = freed - need;
}

/* Return the shortest limit of `job` over all sizes on which it may start. */
static double shortest_limit(const struct setup *in, int64_t job) {
    if (!in->malleable[job] || in->plan_by_limit) return in->limit[job];
    int64_t zero = in->curve[job];
    double best = in->speedup[zero + in->low[job]];
    for (int32_t nodes = in->low[job] + 1; nodes <= in->pref[job]; nodes++)
        if (in->speedup[zero + nodes] > best) best = in->speedup[zero + nodes];
    return in->limit[job] * in->speedup[zero + in->requested[job]] / best;
}

/* Write the running jobs whose expected ends have passed to `list`; return their number. */
static int64_t find_overdue(const struct engine *e, int32_t *list) {
    int64_t count = 0;
    for (int64_t at = 0; at < e->chunk_count && e->chunks[at]->row[0].end <= e->now; at++) {
        const struct chunk *chunk = e->chunks[at];
        for (int32_t row = 0; row < chunk->count && chunk->row[row].end <= e->now; row++)
            if (e->size[chunk->row[row].job]) list[count++] = chunk->row[row].job;  /* else promised */
    }
    return count;
}
