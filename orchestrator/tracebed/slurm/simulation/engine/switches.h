/* The choice of nodes with topology/tree: the same as tests/oracles/slurm_simulation/switches.py, which has the rules. */

enum { APART = -1 };
enum { LINEAR, CONS_RES, CONS_TRES };

struct taker { int64_t cores, fewest; int whole; }; /* what a job still needs */

static int satisfied(const struct taker *own) { return own->cores <= 0 && own->fewest <= 0; }

/* Take a node, of which the job can use `cores`, if the job still needs it. */
static void take_node(struct engine *e, struct taker *own, int32_t node, int64_t cores) {
    int64_t most = own->cores - (own->fewest > 1 ? own->fewest - 1 : 0);
    if (!own->whole && most < cores) cores = most;
    if (satisfied(own) || has(e->picked, node) || cores < 1) return;
    e->picked[node >> 6] |= 1ull << (node & 63);
    e->share[node] = (int32_t)cores;
    own->cores -= cores, own->fewest--;
}

/* Take those of `nodes` that are still needed, in their order, of which the job can use `cores`. */
static void take_nodes(struct engine *e, struct taker *own, const uint64_t *nodes, const int32_t *cores) {
    for (int64_t w = 0; w < e->words && !satisfied(own); w++)
        for (uint64_t left = nodes[w]; left && !satisfied(own); left &= left - 1) {
            int32_t node = (int32_t)(64 * w + __builtin_ctzll(left));
            take_node(e, own, node, cores[node]);
        }
}

/* Whether a choice of `size` comes before the best one, of `best`: see `_fitting`. */
static int fits_better(int64_t size, int enough, int64_t best, int sufficient) {
    return enough ? !sufficient || size < best : size > best;
}

/* Take nodes of `inside`: the smallest one that suffices, or the largest, and so on. */
static void take_fitting(struct engine *e, struct taker *own, uint64_t *inside, const int32_t *cores) {
    while (!satisfied(own)) {
        int32_t best = -1;
        for (int64_t w = 0; w < e->words; w++)
            for (uint64_t left = inside[w]; left; left &= left - 1) {
                int32_t node = (int32_t)(64 * w + __builtin_ctzll(left));
                if (best < 0 || fits_better(cores[node], cores[node] >= own->cores, cores[best], cores[best] >= own->cores))
                    best = node;
            }
        if (best < 0) return;
        inside[best >> 6] &= ~(1ull << (best & 63));
        take_node(e, own, best, cores[best]);
    }
}

static const uint64_t *nodes_below(const struct engine *e, int64_t of) { return e->s->switch_nodes + of * e->words; }

/* The smallest weight of `nodes` above `weight`, in `next`. Return whether there is one. */
static int heavier(const struct engine *e, const uint64_t *nodes, int64_t weight, int32_t *next) {
    int more = 0;
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = nodes[w]; left; left &= left - 1) {
            int32_t own = e->weights[64 * w + __builtin_ctzll(left)];
            if (own <= weight || (more && own >= *next)) continue;
            *next = own;
            more = 1;
        }
    return more;
}

/* Add the nodes of a weight to `among`, and to the number and the cores of its nodes. */
static void add_weight(
    const struct engine *e, const uint64_t *nodes, const int32_t *cores, int32_t weight, uint64_t *among,
    struct taker *sum
) {
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = nodes[w]; left; left &= left - 1) {
            int64_t node = 64 * w + __builtin_ctzll(left);
            if (e->weights[node] != weight) continue;
            among[w] |= left & -left;
            sum->cores += cores[node], sum->fewest++;
        }
}

static void intersect(const struct engine *e, const uint64_t *a, const uint64_t *b, uint64_t *both) {
    for (int64_t w = 0; w < e->words; w++) both[w] = a[w] & b[w];
}

/* The highest switch with enough of the nodes `rest`, the last one of those with nodes of the smallest weight; -1: none. */
static int64_t top_switch(struct engine *e, int64_t fewest) {
    int64_t top = -1;
    int32_t lightest = 0, weight = 0;
    for (int64_t k = 0; k < e->s->switches; k++) {
        if (common(e->words, nodes_below(e, k), e->tree.rest) < (fewest > 1 ? fewest : 1)) continue;
        intersect(e, nodes_below(e, k), e->tree.rest, e->tree.below);
        heavier(e, e->tree.below, INT64_MIN, &weight);
        if (top >= 0 && (e->s->switch_level[k] < e->s->switch_level[top] || weight > lightest)) continue;
        top = k;
        lightest = weight;
    }
    return top;
}

/* Whether switch `one` is better than `other` for `fewest` more nodes (1), worse (-1) or equal (0). */
static int compare_switches(const struct engine *e, int32_t one, int32_t other, int64_t fewest) {
    const int32_t *count = e->tree.count, *parent = e->s->switch_parent, *level = e->s->switch_level;
    for (;;) {
        int first = count[one] >= fewest, second = count[other] >= fewest;
        if (first != second) return first ? 1 : -1;
        if (first) {
            if (count[one] != count[other]) return count[one] < count[other] ? 1 : -1;
            break;
        }
        int32_t above = parent[one], beside = parent[other];
        if (above == beside || (above == one && beside == other)) break;
        one = above, other = beside;
    }
    if (count[one] != count[other]) return count[one] > count[other] ? 1 : -1;
    return level[one] == level[other] ? 0 : level[one] < level[other] ? 1 : -1;
}

static void reach_from(struct engine *e, int64_t from) {
    const int32_t *links = e->s->switch_distance + from * e->s->switches;
    for (int64_t k = 0; k < e->s->switches; k++) {
        int32_t *near = &e->tree.near[k];
        *near = *near == APART || links[k] == APART ? APART : *near + links[k];
    }
}

/* Distribute the cores of `job` over those of the nodes `rest` that are below one switch. Return whether they suffice. */
static int in_tree(struct engine *e, int32_t job, const int32_t *cores) {
    const struct setup *s = e->s;
    struct tree *t = &e->tree;
    struct taker own = {s->wanted_cores[job], s->fewest[job], s->whole[job]}, sum = {0, 0, 0};
    size_t size = (size_t)e->words * sizeof(uint64_t);
    int64_t top = top_switch(e, own.fewest);
    if (top < 0) return 0;
    intersect(e, nodes_below(e, top), t->rest, t->below);
    memset(t->among, 0, size);
    int64_t weight = INT64_MIN;
    do {
        int32_t next;
        if (!heavier(e, t->below, weight, &next)) return 0;
        memcpy(t->lighter, t->among, size);
        add_weight(e, t->below, cores, next, t->among, &sum);
        weight = next;
    } while (sum.cores < own.cores || sum.fewest < own.fewest);
    memset(e->picked, 0, size);
    take_nodes(e, &own, t->lighter, cores);
    for (int64_t k = 0; k < s->switches; k++) {
        uint64_t *inside = t->inside + k * e->words;
        intersect(e, nodes_below(e, k), t->among, inside);
        t->count[k] = (int32_t)nodes_in(e->words, inside);
        t->used[k] = common(e->words, inside, t->lighter) > 0;
        t->near[k] = 0;
        if (t->used[k] && !s->switch_level[k]) take_nodes(e, &own, inside, cores);
    }
    for (int64_t k = 0; k < s->switches; k++)
        if (t->used[k]) reach_from(e, k);
    for (int64_t before = INT64_MAX; !satisfied(&own) && before != own.fewest;) {
        int32_t best = -1;
        before = own.fewest;
        for (int32_t k = 0; k < s->switches; k++) {
            if (s->switch_level[k] || t->used[k] || !t->count[k] || t->near[k] == APART) continue;
            if (best >= 0) {
                int order = compare_switches(e, k, best, own.fewest);
                if (!(t->near[k] < t->near[best] && order >= 0) && !(t->near[k] == t->near[best] && order > 0)) continue;
            }
            best = k;
        }
        if (best < 0) break;
        reach_from(e, best);
        take_nodes(e, &own, t->inside + best * e->words, cores);
        t->count[best] = 0;
    }
    return satisfied(&own);
}

/* Choose the lowest switch that suffices, of these the one with the fewest of the nodes `among`, and its leaves. */
static int in_lowest(struct engine *e, int32_t job, const int32_t *cores) {
    const struct setup *s = e->s;
    struct tree *t = &e->tree;
    struct taker own = {s->wanted_cores[job], s->fewest[job], s->whole[job]};
    int64_t best = -1;
    for (int64_t k = 0; k < s->switches; k++) {
        uint64_t *inside = t->inside + k * e->words;
        intersect(e, nodes_below(e, k), t->among, inside);
        t->count[k] = (int32_t)nodes_in(e->words, inside);
        t->size[k] = 0;
        for (int64_t w = 0; w < e->words; w++)
            for (uint64_t left = inside[w]; left; left &= left - 1) t->size[k] += cores[64 * w + __builtin_ctzll(left)];
        if (t->size[k] < own.cores || t->count[k] < (own.fewest > 1 ? own.fewest : 1)) continue;
        int32_t level = s->switch_level[k], least = best < 0 ? level + 1 : s->switch_level[best];
        if (level < least || (level == least && t->count[k] < t->count[best])) best = k;
    }
    if (best < 0) return 0;
    const uint64_t *below = t->inside + best * e->words;
    for (int64_t k = 0; k < s->switches; k++)
        t->used[k] = s->switch_level[k] || !t->count[k] || common(e->words, below, t->inside + k * e->words) < t->count[k];
    memset(e->picked, 0, (size_t)e->words * sizeof(uint64_t));
    while (!satisfied(&own)) {
        int64_t leaf = -1;
        int sufficient = 0;
        for (int64_t k = 0; k < s->switches; k++) {
            if (t->used[k]) continue;
            int enough = t->size[k] >= own.cores && t->count[k] >= own.fewest;
            int better = s->select_rules == LINEAR ? leaf >= 0 && t->size[k] < t->size[leaf]
                                                   : leaf >= 0 && fits_better(t->size[k], enough, t->size[leaf], sufficient);
            if (leaf < 0 || better) leaf = k, sufficient = enough;
        }
        if (leaf < 0) return 0;
        t->used[leaf] = 1;
        if (s->select_rules == LINEAR) take_nodes(e, &own, t->inside + leaf * e->words, cores);
        else take_fitting(e, &own, t->inside + leaf * e->words, cores);
    }
    return 1;
}

/* Put the cores that `job` holds on its nodes into `e->share` in place of those that it uses. Return 1. */
static int held_below(struct engine *e, int32_t job, const struct free_resources *free) {
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = e->picked[w]; left; left &= left - 1) {
            int32_t node = (int32_t)(64 * w + __builtin_ctzll(left));
            e->share[node] = held_on(e->s, free, job, node, e->share[node]);
        }
    return 1;
}

/* Choose nodes for `job` among the nodes `able`, of which it can use `cores`, as `choose_of` does. */
static int choose_switches(
    struct engine *e, int32_t job, const uint64_t *able, const int32_t *cores, const struct free_resources *free
) {
    const struct setup *s = e->s;
    struct tree *t = &e->tree;
    size_t size = (size_t)e->words * sizeof(uint64_t);
    if (s->select_rules != CONS_TRES) {
        struct taker sum = {0, 0, 0};
        int32_t next;
        memset(t->among, 0, size);
        for (int64_t weight = INT64_MIN; heavier(e, able, weight, &next); weight = next) {
            add_weight(e, able, cores, next, t->among, &sum);
            if (sum.cores >= s->wanted_cores[job] && sum.fewest >= s->fewest[job] && in_lowest(e, job, cores))
                return held_below(e, job, free);
        }
        return 0;
    }
    int32_t most = 0, least = 0; /* usable cores of the largest node, and of those that are left out */
    memcpy(t->rest, able, size);
    int64_t nodes = nodes_in(e->words, able);
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = able[w]; left; left &= left - 1) {
            int32_t own = cores[64 * w + __builtin_ctzll(left)];
            if (own > most) most = own;
        }
    while (!in_tree(e, job, cores)) {
        int32_t next = most;
        if (nodes <= s->fewest[job]) return 0;
        for (int64_t w = 0; w < e->words; w++)
            for (uint64_t left = t->rest[w]; left; left &= left - 1) {
                int32_t own = cores[64 * w + __builtin_ctzll(left)];
                if (own > least && own < next) next = own;
            }
        if (next == most) return 0;
        least = next;
        for (int64_t w = 0; w < e->words; w++)
            for (uint64_t left = t->rest[w]; left && nodes > s->fewest[job]; left &= left - 1)
                if (cores[64 * w + __builtin_ctzll(left)] <= least) t->rest[w] &= ~(left & -left), nodes--;
    }
    return held_below(e, job, free);
}
