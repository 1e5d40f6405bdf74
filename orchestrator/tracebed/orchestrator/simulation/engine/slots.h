/* Masks of nodes, and the nodes without a reservation over time: consecutive slots of time, each with its nodes, as
 * `Slots` in scheduling/policies/slurm_backfill.py. Masks have `words` words. Part of slurm.c and of engine.c. */

/* Functions that pass over masks are compiled for newer processors, too. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(WIDE)
#define HOT __attribute__((target_clones("avx2", "default")))
#else
#define HOT
#endif

/* Declare `k` as the first number below `count` for which a condition holds that holds for all later ones; `count`: none. */
#define FIRST(k, count, condition) \
    int64_t k = 0; \
    for (int64_t above = (count), least = 0; least < above; k = least) { \
        k = (least + above) / 2; \
        if (condition) above = k; else least = k + 1; \
    }

#define EXTENDS 25.11 /* the same for `Rules.extends` */
#define NEWER 24.11 /* first release of Slurm with other rules, see `Rules` in scheduling/policies/slurm_backfill.py */

struct block { int32_t first, count; }; /* consecutive nodes */

struct slot {
    int64_t begin, end;
    uint64_t *nodes; /* without a reservation */
    uint64_t *since_now; /* without a reservation in this slot and all before */
    uint64_t *until; /* without a reservation in this slot and those before `middle` */
    int64_t size; /* number of `nodes` */
    int32_t *counts; /* of each of SETS sets of nodes: how many of `nodes` are in it */
    int32_t *class, *order; /* of each of REQUESTS classes: where the end is in its order, see slurm.c */
    int more; /* whether the next slot has additional nodes */
};

enum { SETS = 16, REQUESTS = 32, NUMBERS = SETS + 2 * REQUESTS };

struct slots {
    int64_t words, count, room;
    struct slot *slot;
    const uint64_t *everything;
    const uint64_t *sets; int64_t set_count; /* sets x words: the nodes that jobs may use */
    int64_t first, after, next; /* the slots of the trial of a job, and that at whose end the next trial starts */
    int64_t middle, joined, counted; /* see `slots_usable` and `slots_scarce` */
    uint64_t *rest;
    int32_t *where; /* the words in which the nodes of a reservation are */
    int newer; /* whether the rules are those of a newer Slurm */
    int failed; /* out of memory */
};

/* The multiple of `unit` at which a reservation begins, and that at which it ends. */
static int64_t slots_round(int64_t at, int64_t unit) { return at / unit * unit; }
static int64_t slots_round_end(const struct slots *p, int64_t at, int64_t unit) {
    return slots_round(p->newer ? at + unit - 1 : at, unit);
}

HOT static int64_t nodes_in(int64_t words, const uint64_t *mask) {
    int64_t count = 0;
    for (int64_t w = 0; w < words; w++) count += __builtin_popcountll(mask[w]);
    return count;
}

/* Remove the nodes that are not in `mask`. */
HOT static void keep(int64_t words, uint64_t *restrict nodes, const uint64_t *restrict mask) {
    for (int64_t w = 0; w < words; w++) nodes[w] &= mask[w];
}

/* The nodes of `a`, `b` and `c`; return their number. */
HOT static int64_t among_all(
    int64_t words, const uint64_t *restrict a, const uint64_t *restrict b, const uint64_t *restrict c, uint64_t *restrict nodes
) {
    int64_t count = 0;
    for (int64_t w = 0; w < words; w++) {
        nodes[w] = a[w] & b[w] & c[w];
        count += __builtin_popcountll(nodes[w]);
    }
    return count;
}

HOT static int64_t common(int64_t words, const uint64_t *a, const uint64_t *b) {
    int64_t count = 0;
    for (int64_t w = 0; w < words; w++) count += __builtin_popcountll(a[w] & b[w]);
    return count;
}

/* Whether two masks have a node in common. */
HOT static int meet(int64_t words, const uint64_t *a, const uint64_t *b) {
    uint64_t both = 0;
    for (int64_t w = 0; w < words; w++) both |= a[w] & b[w];
    return both != 0;
}

/* Pick `count` of the nodes `able` with little fragmentation, as `best_fit` in scheduling/node_masks.py. `blocks` is
 * room for the blocks of consecutive nodes. */
static void best_fit(int64_t words, const uint64_t *able, int64_t count, uint64_t *picked, struct block *blocks) {
    int32_t number = 0, best = -1, largest = -1;
    int64_t begin = -1; /* of a block that ends in a later word */
    memset(picked, 0, (size_t)words * sizeof *picked);
    for (int64_t w = 0; w <= words; w++) {
        uint64_t left = w < words ? able[w] : 0;
        while (left || begin >= 0) {
            int from = begin >= 0 ? 0 : __builtin_ctzll(left);
            uint64_t rest = ~(left >> from);
            int to = from + (rest ? __builtin_ctzll(rest) : 64);
            if (begin < 0) begin = 64 * w + from;
            if (to == 64) break;
            left &= ~0ull << to;
            int32_t size = (int32_t)(64 * w + to - begin);
            if (size >= count && (best < 0 || size < blocks[best].count)) best = number;
            if (largest < 0 || size > blocks[largest].count) largest = number;
            blocks[number++] = (struct block){(int32_t)begin, size};
            begin = -1;
        }
    }
    while (count) {
        struct block *own = &blocks[best >= 0 ? best : largest];
        int64_t taken = own->count < count ? own->count : count, node = own->first;
        for (int64_t left = taken; left;) {
            int64_t from = node & 63, here = 64 - from < left ? 64 - from : left;
            picked[node >> 6] |= (here == 64 ? ~0ull : (1ull << here) - 1) << from;
            node += here;
            left -= here;
        }
        count -= taken;
        own->count = 0;
        best = -1;
        largest = 0;
        for (int32_t k = 0; k < number && count; k++) {
            if (blocks[k].count >= count && (best < 0 || blocks[k].count < blocks[best].count)) best = k;
            if (blocks[k].count > blocks[largest].count) largest = k;
        }
    }
}

static void slots_close(struct slots *p) {
    for (int64_t k = 0; k < p->room; k++) free(p->slot[k].nodes);
    free(p->slot), free(p->rest), free(p->where);
}

static struct slot *slot_new(struct slots *p, int64_t where) {
    size_t size = (size_t)p->words * sizeof(uint64_t);
    if (p->count == p->room) {
        int64_t room = p->room ? 2 * p->room : 64;
        struct slot *larger = realloc(p->slot, (size_t)room * sizeof *larger);
        if (!larger) { p->failed = 1; return NULL; }
        p->slot = larger;
        for (; p->room < room; p->room++) {
            uint64_t *masks = malloc(3 * size + NUMBERS * sizeof(int32_t));
            if (!masks) { p->failed = 1; return NULL; }
            int32_t *numbers = (int32_t *)(masks + 3 * p->words);
            larger[p->room] = (struct slot){
                .nodes = masks, .since_now = masks + p->words, .until = masks + 2 * p->words,
                .counts = numbers, .class = numbers + SETS, .order = numbers + SETS + REQUESTS,
            };
        }
    }
    struct slot spare = p->slot[p->count];
    memmove(p->slot + where + 1, p->slot + where, (size_t)(p->count - where) * sizeof *p->slot);
    p->slot[where] = spare;
    p->count++;
    return &p->slot[where];
}

/* Forget where the end of a slot is in the orders of classes. */
static void slot_forget(struct slot *own) {
    for (int class = 0; class < REQUESTS; class++) own->class[class] = -1;
}

/* Begin a plan of a release of Slurm with one slot from `now` to `end`, in which `everything` is free. Jobs may use the
 * nodes of some of `set_count` sets. */
static void slots_begin(
    struct slots *p, int64_t words, int64_t now, int64_t end, const uint64_t *everything, const uint64_t *sets,
    int64_t set_count, double release
) {
    size_t size = (size_t)words * sizeof(uint64_t);
    p->words = words;
    p->everything = everything;
    p->sets = sets;
    p->set_count = set_count < SETS ? set_count : SETS;
    p->newer = release >= NEWER;
    p->count = 0;
    if (!p->rest) p->rest = malloc(size), p->where = malloc((size_t)words * sizeof *p->where);
    if (!p->rest || !p->where) { p->failed = 1; return; }
    struct slot *all = slot_new(p, 0);
    if (!all) return;
    all->begin = now;
    all->end = end;
    all->more = 0;
    all->size = nodes_in(words, everything);
    memcpy(all->nodes, everything, size);
    memcpy(all->since_now, everything, size);
    for (int64_t set = 0; set < p->set_count; set++) all->counts[set] = (int32_t)common(words, everything, sets + set * words);
    slot_forget(all);
}

/* The first slot that ends after `instant`; the number of slots: none. */
static int64_t slot_after(const struct slots *p, int64_t instant) {
    FIRST(slot, p->count, p->slot[slot].end > instant)
    return slot;
}

static void slot_cut(struct slots *p, int64_t at) {
    size_t size = (size_t)p->words * sizeof(uint64_t);
    int64_t k = slot_after(p, at);
    if (k == p->count || p->slot[k].begin >= at) return;
    struct slot *new = slot_new(p, k + 1);
    if (!new) return;
    struct slot *old = &p->slot[k];
    memcpy(new->nodes, old->nodes, size);
    memcpy(new->since_now, old->since_now, size);
    memcpy(new->counts, old->counts, NUMBERS * sizeof(int32_t));
    new->begin = at;
    new->end = old->end;
    new->size = old->size;
    new->more = old->more;
    old->end = at;
    slot_forget(old);
    old->more = 0;
}

/* The words in which `nodes` are, in `p->where`; return their number. */
static int64_t slots_where(const struct slots *p, const uint64_t *nodes) {
    int64_t count = 0;
    for (int64_t w = 0; w < p->words; w++)
        if (nodes[w]) p->where[count++] = (int32_t)w;
    return count;
}

/* Whether the slot after slot `k` has additional nodes. */
static int slot_more(const struct slots *p, int64_t k) {
    const struct slot *own = &p->slot[k];
    if (k + 1 == p->count || own[1].size > own->size) return k + 1 < p->count;
    for (int64_t w = 0; w < p->words; w++)
        if (own[1].nodes[w] & ~own->nodes[w]) return 1;
    return 0;
}

/* Reserve `nodes` from `start` to `end`. Adjacent slots with equal nodes become one; only those at the reservation
 * can be equal. */
HOT static void slots_reserve(struct slots *p, int64_t start, int64_t end, const uint64_t *nodes) {
    if (end <= start) return;
    slot_cut(p, start);
    slot_cut(p, end);
    int64_t first = slot_after(p, start), after = first, words = slots_where(p, nodes);
    for (int64_t k = first; k < p->count; k++) {
        struct slot *own = &p->slot[k];
        for (int64_t n = 0; n < words; n++) own->since_now[p->where[n]] &= ~nodes[p->where[n]];
        if (own->begin >= end) continue;
        after = k + 1;
        for (int64_t n = 0; n < words; n++) {
            int32_t w = p->where[n];
            uint64_t taken = own->nodes[w] & nodes[w];
            own->size -= __builtin_popcountll(taken);
            for (int64_t set = 0; set < p->set_count; set++)
                own->counts[set] -= __builtin_popcountll(taken & p->sets[set * p->words + w]);
            own->nodes[w] &= ~nodes[w];
        }
    }
    for (int64_t k = after < p->count ? after : p->count - 1; k >= (first ? first : 1); k--) {
        if (p->slot[k - 1].size != p->slot[k].size ||
            memcmp(p->slot[k - 1].nodes, p->slot[k].nodes, (size_t)p->words * sizeof(uint64_t))) continue;
        struct slot spare = p->slot[k];
        p->slot[k - 1].end = spare.end;
        memcpy(p->slot[k - 1].counts, spare.counts, NUMBERS * sizeof(int32_t));
        p->count--;
        memmove(p->slot + k, p->slot + k + 1, (size_t)(p->count - k) * sizeof *p->slot);
        p->slot[p->count] = spare;
    }
    for (int64_t k = first ? first - 1 : 0; k <= after && k < p->count; k++) p->slot[k].more = slot_more(p, k);
}

/* Whether the slot after `own` has additional nodes `among` (null: any). */
static int more_among(const struct slots *p, const struct slot *own, const uint64_t *among) {
    if (!own->more || !among) return own->more;
    for (int64_t w = 0; w < p->words; w++)
        if (own[1].nodes[w] & ~own->nodes[w] & among[w]) return 1;
    return 0;
}

/* The trials of another job follow. */
static void slots_next_job(struct slots *p) { p->first = p->after = p->middle = p->counted = 0; }

/* Move to the slots from `start` to `start + limit`. The starts of one job ascend. */
static void slots_move(struct slots *p, int64_t start, int64_t limit) {
    while (p->first < p->count && p->slot[p->first].end <= start) p->first++;
    while (p->after < p->count && p->slot[p->after].begin <= start + limit) p->after++;
}

/* The next start after `start` that is worth a trial for a job with this limit on the nodes `among` (null: any); 0:
 * none. */
static int64_t slots_later(struct slots *p, int64_t start, int64_t limit, const uint64_t *among) {
    slots_move(p, start, limit);
    for (int64_t k = p->first; k < p->count; k++) {
        const struct slot *own = &p->slot[k];
        p->next = k;
        if (more_among(p, own, among)) return own->end;
        if (own->begin > start + limit) {
            p->next++;
            return p->newer && k + 2 < p->count ? own[1].end : 0;
        }
    }
    return 0;
}

/* The first slot that begins after `instant`; the number of slots: none. */
static int64_t slot_from(const struct slots *p, int64_t instant) {
    FIRST(slot, p->count, p->slot[slot].begin > instant)
    return slot;
}

/* The nodes that a job with this limit can use now. Reservations only remove some. */
static const uint64_t *slots_now(const struct slots *p, int64_t limit) {
    return p->slot[slot_from(p, p->slot[0].begin + limit) - 1].since_now;
}

/* The nodes `among` that are free in every slot from `start` to `start + limit`, in `usable`. These slots are a window
 * that moves. The common nodes of its first part, up to `middle`, are in `until`, those of its second part, up to
 * `joined`, in `rest`. Return their number. */
static int64_t slots_usable(struct slots *p, int64_t start, int64_t limit, const uint64_t *among, uint64_t *usable) {
    slots_move(p, start, limit);
    int64_t first = p->first, after = p->after, words = p->words;
    size_t size = (size_t)words * sizeof(uint64_t);
    const uint64_t *a = p->everything, *b = p->everything;
    if (first < after && !first) a = p->slot[after - 1].since_now;
    else if (first < after) {
        if (first >= p->middle) {
            memcpy(p->slot[after - 1].until, p->slot[after - 1].nodes, size);
            for (int64_t k = after - 2; k >= first; k--)
                among_all(words, p->slot[k + 1].until, p->slot[k].nodes, p->everything, p->slot[k].until);
            p->middle = p->joined = after;
            memcpy(p->rest, p->everything, size);
        }
        for (; p->joined < after; p->joined++) keep(words, p->rest, p->slot[p->joined].nodes);
        a = p->slot[first].until;
        b = p->rest;
    }
    return among_all(words, a, b, among, usable);
}

/* The end of the last slot of the window with fewer than `needed` nodes of a set; `known`, that of an earlier window: none. */
static int64_t slots_scarce(struct slots *p, int64_t known, int64_t needed, int64_t set) {
    int64_t k = p->after;
    while (k-- > p->counted)
        if ((set < p->set_count ? p->slot[k].counts[set] : p->slot[k].size) < needed) {
            known = p->slot[k].end;
            break;
        }
    p->counted = p->after;
    return known;
}

/* Whether some of `nodes` are reserved between `start` and `end`. */
static int slots_overlap(const struct slots *p, int64_t start, int64_t end, const uint64_t *nodes) {
    int64_t words = slots_where(p, nodes);
    for (int64_t k = slot_after(p, start); k < p->count && p->slot[k].begin < end; k++)
        for (int64_t n = 0; n < words; n++)
            if (nodes[p->where[n]] & ~p->slot[k].nodes[p->where[n]]) return 1;
    return 0;
}
