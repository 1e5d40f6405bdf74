/* The power of nodes: which idle nodes are off, boot, or have been idle for how long. Part of engine.c. */

struct rest { double since; int32_t first, count; };        /* nodes that have been idle, and on, since then */
struct stop { double until; int32_t number; };               /* nodes that are being switched off; see sleep.h */

struct sleep {
    double *on_from;                 /* of each node; infinite: it is off, or is being switched off */
    double *idle_since;              /* of each node; NaN: it is not idle, or not on */
    uint64_t *off, *waking;          /* idle nodes that are off; that were booting when their job gave them back */
    uint64_t *unready;               /* scratch */
    int64_t off_count, waking_count;
    double last_on;                  /* the last instant at which a boot ends, so far */
    double ready;                    /* when the nodes of the last `take` are on; not before now */
    struct rest *rests; int64_t rest, rest_count, rest_room;  /* [rest, rest_count): longest idle first, see `before_rest` */
    struct stop *stops; int64_t stop_count;                   /* in descending order */
    int32_t *chosen, *alike;         /* scratch: nodes that are switched off now; those that take as long */
    double due;                      /* when a node may be switched off; infinite: not before an event */
};

#define SLEEP_ARRAYS(_) \
    _(s, on_from, e->in.nodes) _(s, idle_since, e->in.nodes) _(s, chosen, e->in.nodes) _(s, alike, e->in.nodes) _(s, stops, e->in.nodes) \
    _(s, off, e->words) _(s, waking, e->words) _(s, unready, e->words) _(s, rests, s->rest_room)

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

static int has_node(const uint64_t *nodes, int64_t node) { return nodes[node / 64] >> (node % 64) & 1; }

static void add_node(uint64_t *nodes, int64_t node) { nodes[node / 64] |= UINT64_C(1) << node % 64; }

static void drop_node(uint64_t *nodes, int64_t node) { nodes[node / 64] &= ~(UINT64_C(1) << node % 64); }

static void sleep_new(struct engine *e) {
    struct sleep *s = e->sleep = make(e, 1, sizeof *s);
    if (!s) return;
    s->rest_room = 256;
    SLEEP_ARRAYS(MADE)
    if (e->failed) return;
    s->rests[s->rest_count++] = (struct rest){0.0, 0, (int32_t)e->in.nodes};
    s->due = e->in.idle_s;
}

static void sleep_free(struct engine *e) {
    struct sleep *s = e->sleep;
    if (!s) return;
    SLEEP_ARRAYS(FREED)
    free(s);
}

/* Forget that idle nodes boot which are on now. */
static void wake_idle(struct engine *e) {
    struct sleep *s = e->sleep;
    for (int64_t word = 0; word < e->words && s->waking_count; word++)
        for (uint64_t bits = s->waking[word]; bits; bits &= bits - 1) {
            int64_t node = word * 64 + __builtin_ctzll(bits);
            if (s->on_from[node] > e->now) continue;
            drop_node(s->waking, node);
            s->waking_count--;
        }
}

/* A job gets the idle nodes `bits` of a word: boot those that are off. */
static void wake(struct engine *e, int64_t word, uint64_t bits) {
    struct sleep *s = e->sleep;
    if (!s->off_count && !s->waking_count) return;
    for (bits &= s->off[word] | s->waking[word]; bits; bits &= bits - 1) {
        int64_t node = word * 64 + __builtin_ctzll(bits);
        if (has_node(s->off, node)) {
            drop_node(s->off, node);
            s->off_count--;
            double on = e->now + e->in.boot_s[node];
            s->on_from[node] = on;
            if (on > s->last_on) s->last_on = on;
            note_power(e, node, e->now, NODE_BOOT);
            note_power(e, node, on, NODE_ON);
        } else {
            drop_node(s->waking, node);
            s->waking_count--;
        }
        if (s->on_from[node] > s->ready) s->ready = s->on_from[node];
    }
}

/* Whether nodes rest before others: longer, or as long with a higher last number. */
static int before_rest(const struct rest *a, const struct rest *b) {
    return a->since != b->since ? a->since < b->since : a->first + a->count > b->first + b->count;
}

static void add_rest(struct engine *e, double since, int64_t first, int64_t count) {
    struct sleep *s = e->sleep;
    if (s->rest_count == s->rest_room && s->rest > s->rest_room / 2) { /* the first half is done */
        memmove(s->rests, &s->rests[s->rest], (size_t)(s->rest_count - s->rest) * sizeof *s->rests);
        s->rest_count -= s->rest;
        s->rest = 0;
    }
    if (!make_room(e, &s->rests, s->rest_count, &s->rest_room, sizeof *s->rests)) return;
    struct rest rest = {since, (int32_t)first, (int32_t)count};
    int64_t at = s->rest_count++;
    for (; at > s->rest && before_rest(&rest, &s->rests[at - 1]); at--) s->rests[at] = s->rests[at - 1];
    s->rests[at] = rest;
}

/* A job has given nodes back now, which are idle. Some may still boot. */
static void rest(struct engine *e, int64_t first, int64_t count) {
    struct sleep *s = e->sleep;
    int64_t begin = first, end = first + count;
    for (int64_t node = first; node < end; node++) {
        if (!(s->last_on > e->now && s->on_from[node] > e->now)) { /* most nodes */
            s->idle_since[node] = e->now;
            continue;
        }
        s->idle_since[node] = s->on_from[node];
        add_node(s->waking, node);
        s->waking_count++;
        if (node > begin) add_rest(e, e->now, begin, node - begin);
        add_rest(e, s->on_from[node], node, 1);
        begin = node + 1;
    }
    if (end > begin) add_rest(e, e->now, begin, end - begin);
}
