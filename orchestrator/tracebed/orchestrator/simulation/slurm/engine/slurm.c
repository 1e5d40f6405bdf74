/* Slurm on a cluster whose jobs share nodes: the same as simulator.py and the modules of scheduling/slurm, which
 * have the rules and their sources. The results are equal to the bit. Sets of nodes are masks of `words` words. */
#define _GNU_SOURCE /* qsort_r */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "accounts.h"

#if __FLT_EVAL_METHOD__ != 0
#error "double arithmetic is not IEEE double on this platform: use the Python simulator"
#endif

/* The structure shared with Python. It is one list, which expands both to the declaration and to the text that
 * `tracebed_slurm_description` returns. */
#define SETUP(_) \
    _(int64_t, jobs) _(int64_t, nodes) _(int64_t, kinds) /* of generic resources */ _(int64_t, partitions) \
    _(int64_t, users) _(int64_t, associations) \
    _(const double *, submit) _(const double *, run_time) _(const int64_t *, limit) _(const double *, launch_s) \
    _(const double *, overrun_s) _(const double *, end_s) /* of each job */ \
    _(const int32_t *, wanted_cores) _(const int32_t *, per_node) _(const int32_t *, fewest) _(const uint8_t *, whole) \
    _(const int64_t *, wanted_memory) _(const uint8_t *, by_core) _(const int32_t *, wanted_gres) /* jobs x kinds */ \
    _(const uint64_t *, eligible) /* jobs x words */ _(const int32_t *, partition) _(const int32_t *, user) \
    _(const double *, fixed) _(const int32_t *, tier) /* of each partition */ \
    _(const int32_t *, cores) _(const int64_t *, memory) _(const int32_t *, gres) /* nodes x kinds */ \
    _(const int32_t *, groups) /* null: blocks of consecutive nodes */ _(const int32_t *, weights) \
    _(const int32_t *, parent) _(const int32_t *, share) _(const uint8_t *, is_user) /* of each association */ \
    _(const int64_t *, resets) _(int64_t, reset_count) _(double, half_life_s) _(int64_t, dampening) \
    _(const int32_t *, association) _(const double *, usage_factor) _(const uint8_t *, reserves) /* of each job */ \
    _(const double *, billing) /* partitions x (4 + kinds) */ _(int64_t, billing_most) \
    _(int64_t, counters) _(const int32_t *, group) /* of each job */ _(const int32_t *, first_limit) /* of each group */ \
    _(const int32_t *, limit_counter) _(const int32_t *, limit_kind) _(const int64_t *, limit_most) \
    _(const int32_t *, first_counted) _(const int32_t *, counted) _(const int32_t *, counted_kind) \
    _(double, age) _(double, max_age_s) _(double, fairshare) _(double, period_s) \
    _(double, first_period_s) _(int64_t, kill_wait_s) _(int64_t, most_idle) \
    _(int64_t, sched_interval) _(int64_t, batch_sched_delay) _(int64_t, default_queue_depth) \
    _(int64_t, sched_max_job_start) _(int64_t, bf_interval) _(int64_t, bf_resolution) _(int64_t, bf_window) \
    _(int64_t, bf_max_job_test) _(int64_t, bf_max_job_start) _(int64_t, bf_max_job_user) _(int64_t, bf_node_space_size) \
    _(int64_t, bf_min_age_reserve) _(int64_t, bf_job_part_count_reserve) _(double, epoch_s) _(double, sched_loop_s) \
    _(double, sched_phase_s) _(double, bf_loop_s) _(double, bf_phase_s) \
    _(double *, start) _(double *, launched) _(double *, end) _(int32_t *, refused) /* results, of each job */
#define DECLARED(type, name) type name;
#define DESCRIBED(type, name) " " #type " " #name ";"
struct setup { SETUP(DECLARED) };

const char *tracebed_slurm_description(void) { return "setup:" SETUP(DESCRIBED) "\n"; }
int64_t tracebed_slurm_setup_size(void) { return sizeof(struct setup); }

enum { SUBMIT, END, COMPUTE, WAKE };
enum { MINUTE_S = 60, WINDOW_S = 30 };
enum { CORES, MEMORY, NODES, BILLING, GRES }; /* the amounts of a job */
static const double ROUNDING_S = 1e-6, COUNTABLE = 9007199254740992.0;

struct event { double at; int64_t sequence; int32_t kind, job; };
struct part { int32_t node, cores; };
struct running { int64_t end; int32_t job; };
struct slot { int64_t begin, end; uint64_t *nodes; };
struct free_resources { int32_t *cores, *gres; int64_t *memory; uint64_t *some; /* the nodes with idle cores */ };
struct group { int32_t first, count, weight; int64_t size, waste; }; /* waste: by which groups compare */

struct engine {
    const struct setup *s;
    int64_t words, now_left;
    struct event *events; int64_t event_count, event_room, sequence;
    struct part *parts; int64_t part_count, part_room; int64_t *part_first; int32_t *part_size;
    struct free_resources free, expected;
    struct running *running; int64_t running_count;
    int32_t *queue, *order; int64_t queue_count, arrived;
    int64_t *priority;
    uint64_t *everything, *held /* jobs x words: the nodes of each running job */, *partition_nodes, *usable, *allowed;
    struct slot *slots; int64_t slot_count, slot_room;
    int32_t *node_order; /* nodes by group; null: in the order of their numbers */
    int one_weight; /* of all nodes */
    struct part *capacity, *chosen; int32_t chosen_count; struct group *group; uint8_t *used;
    int32_t *jobs_of_user;
    struct shares shares;
    struct limits limits;
    int64_t *amounts; /* of one job */
    double now, wake; int freed;
    double sched_last, full_last, bf_last, sched_due, bf_due; /* NaN: never */
    int out_of_memory;
};

/* -- masks ---------------------------------------------------------------------------------------------------------- */

static int64_t count_of(const struct engine *e, const uint64_t *mask) {
    int64_t count = 0;
    for (int64_t w = 0; w < e->words; w++) count += __builtin_popcountll(mask[w]);
    return count;
}

static int overlaps(const struct engine *e, const uint64_t *a, const uint64_t *b) {
    for (int64_t w = 0; w < e->words; w++)
        if (a[w] & b[w]) return 1;
    return 0;
}

static int has(const uint64_t *mask, int32_t node) { return mask[node >> 6] >> (node & 63) & 1; }

/* -- memory --------------------------------------------------------------------------------------------------------- */

static int grow(void **array, int64_t *room, int64_t wanted, size_t size) {
    if (wanted <= *room) return 1;
    int64_t more = *room ? *room : 256;
    while (more < wanted) more *= 2;
    void *larger = realloc(*array, (size_t)more * size);
    if (!larger) return 0;
    *array = larger;
    *room = more;
    return 1;
}

/* -- events --------------------------------------------------------------------------------------------------------- */

static int before(const struct event *a, const struct event *b) {
    return a->at < b->at || (a->at == b->at && a->sequence < b->sequence);
}

static void at(struct engine *e, double instant, int kind, int32_t job) {
    if (!grow((void **)&e->events, &e->event_room, e->event_count + 1, sizeof *e->events)) { e->out_of_memory = 1; return; }
    struct event new = {instant, e->sequence++, kind, job};
    int64_t k = e->event_count++;
    while (k && before(&new, &e->events[(k - 1) / 2])) {
        e->events[k] = e->events[(k - 1) / 2];
        k = (k - 1) / 2;
    }
    e->events[k] = new;
}

static struct event next_event(struct engine *e) {
    struct event first = e->events[0], last = e->events[--e->event_count];
    int64_t k = 0;
    for (;;) {
        int64_t child = 2 * k + 1;
        if (child >= e->event_count) break;
        if (child + 1 < e->event_count && before(&e->events[child + 1], &e->events[child])) child++;
        if (!before(&e->events[child], &last)) break;
        e->events[k] = e->events[child];
        k = child;
    }
    e->events[k] = last;
    return first;
}

/* -- resources ------------------------------------------------------------------------------------------------------ */

static int64_t memory_of(const struct setup *s, int32_t job, int32_t node, int32_t cores) {
    if (s->whole[job] || s->wanted_memory[job] < 0) return s->memory[node];
    return s->by_core[job] ? s->wanted_memory[job] * cores : s->wanted_memory[job];
}

static void take(struct engine *e, struct free_resources *free, int32_t job, int sign) {
    const struct setup *s = e->s;
    const struct part *parts = e->parts + e->part_first[job];
    for (int32_t p = 0; p < e->part_size[job]; p++) {
        int32_t node = parts[p].node, cores = parts[p].cores;
        free->cores[node] += sign * cores;
        if (free->cores[node]) free->some[node >> 6] |= 1ull << (node & 63);
        else free->some[node >> 6] &= ~(1ull << (node & 63));
        free->memory[node] += sign * memory_of(s, job, node, cores);
        for (int64_t k = 0; k < s->kinds; k++) free->gres[node * s->kinds + k] += sign * s->wanted_gres[job * s->kinds + k];
    }
}

static int32_t capacity(const struct setup *s, const struct free_resources *free, int32_t job, int32_t node) {
    int64_t cores = free->cores[node];
    for (int64_t k = 0; k < s->kinds; k++)
        if (s->wanted_gres[job * s->kinds + k] > free->gres[node * s->kinds + k]) return 0;
    if (s->whole[job]) return cores == s->cores[node] ? (int32_t)cores : 0;
    int64_t least = s->per_node[job] > 1 ? s->per_node[job] : 1, memory = s->wanted_memory[job];
    if (memory < 0) {
        if (free->memory[node] != s->memory[node]) return 0;
    } else if (s->by_core[job] && memory) {
        int64_t most = free->memory[node] / memory;
        if (most < cores) cores = most;
    } else if (memory > free->memory[node]) return 0;
    return cores < least ? 0 : s->per_node[job] ? s->per_node[job] : (int32_t)cores;
}

/* Distribute the cores of `job` over the nodes of weight <= `weight` in `e->capacity` (by group). Return whether it fits. */
static int spread(struct engine *e, const struct free_resources *free, int32_t job, int32_t count, int32_t weight) {
    const struct setup *s = e->s;
    int64_t cores = s->wanted_cores[job], fewest = s->fewest[job];
    int32_t groups = 0, before_node = -2, before_group = -1; /* the group, or the weight, of the node before */
    for (int32_t k = 0; k < count; k++) {
        struct part *each = &e->capacity[k];
        if (s->weights[each->node] > weight) continue;
        int32_t own = s->groups ? s->groups[each->node] : s->weights[each->node];
        if (!groups || own != before_group || (!s->groups && each->node != before_node + 1))
            e->group[groups++] = (struct group){k, 0, s->groups ? 0 : own, 0, 0};
        e->group[groups - 1].count++;
        e->group[groups - 1].size += each->cores;
        e->group[groups - 1].waste += s->groups ? each->cores : free->cores[each->node];
        before_node = each->node;
        before_group = own;
    }
    memset(e->used, 0, (size_t)groups);
    if (s->groups) {
        int32_t best = -1;
        for (int32_t g = 0; g < groups; g++)
            if (e->group[g].size >= cores && e->group[g].count >= fewest && (best < 0 || e->group[g].count < e->group[best].count)) best = g;
        if (best >= 0) {
            memset(e->used, 1, (size_t)groups);
            e->used[best] = 0;
        }
    }
    e->chosen_count = 0;
    while (cores > 0 || fewest > 0) {
        int32_t best = -1;
        int sufficient = 0;
        for (int32_t g = 0; g < groups; g++) {
            if (e->used[g]) continue;
            const struct group *own = &e->group[g], *other = best < 0 ? NULL : &e->group[best];
            int suffices = own->size >= cores && own->count >= fewest;
            if (!other || own->weight < other->weight ||
                (own->weight == other->weight &&
                 (suffices > sufficient || (suffices == sufficient && (suffices ? own->waste < other->waste : own->waste > other->waste))))) {
                best = g;
                sufficient = suffices;
            }
        }
        if (best < 0) return 0;
        e->used[best] = 1;
        int32_t alone = -1; /* the node of the group with the fewest free cores that suffices */
        if (!s->groups && fewest <= 1)
            for (int32_t k = e->group[best].first, left = e->group[best].count; left; k++, left--)
                if (e->capacity[k].cores >= cores &&
                    (alone < 0 || free->cores[e->capacity[k].node] < free->cores[e->capacity[alone].node])) alone = k;
        if (alone >= 0) e->group[best] = (struct group){alone, 1, 0, 0, 0};
        for (int32_t k = e->group[best].first, left = e->group[best].count; left && (cores > 0 || fewest > 0); k++) {
            struct part *each = &e->capacity[k];
            if (s->weights[each->node] > weight) continue;
            left--;
            int64_t most = cores - (fewest > 1 ? fewest - 1 : 0), taken = each->cores;
            if (!s->whole[job] && most < taken) taken = most;
            if (taken < 1) continue;
            e->chosen[e->chosen_count++] = (struct part){each->node, (int32_t)taken};
            cores -= taken;
            fewest--;
        }
    }
    return 1;
}

/* Choose nodes for `job` among the `usable` ones; the result is in `e->chosen`. Return whether enough are free. */
static int choose(struct engine *e, const struct free_resources *free, int32_t job, const uint64_t *usable) {
    const struct setup *s = e->s;
    const uint64_t *eligible = s->eligible + job * e->words;
    int32_t count = 0;
    int64_t cores_left = s->wanted_cores[job], nodes_left = s->fewest[job];
    if (e->node_order)
        for (int64_t k = 0; k < s->nodes; k++) {
            int32_t node = e->node_order[k];
            if (!(has(usable, node) && has(eligible, node))) continue;
            int32_t cores = capacity(s, free, job, node);
            if (!cores) continue;
            e->capacity[count++] = (struct part){node, cores};
            cores_left -= cores, nodes_left--;
        }
    else
        for (int64_t w = 0; w < e->words; w++)
            for (uint64_t left = usable[w] & eligible[w] & free->some[w]; left; left &= left - 1) {
                int32_t node = (int32_t)(64 * w + __builtin_ctzll(left)), cores = capacity(s, free, job, node);
                if (!cores) continue;
                e->capacity[count++] = (struct part){node, cores};
                cores_left -= cores, nodes_left--;
            }
    if (cores_left > 0 || nodes_left > 0) return 0;
    if (e->one_weight) return spread(e, free, job, count, s->weights[0]);
    int32_t weight = INT32_MIN;
    for (;;) { /* the weights of the nodes in ascending order */
        int32_t next = INT32_MAX;
        int more = 0;
        for (int32_t k = 0; k < count; k++) {
            int32_t own = s->weights[e->capacity[k].node];
            if ((own > weight || weight == INT32_MIN) && own <= next && own != weight) {
                next = own;
                more = 1;
            }
        }
        if (!more) return 0;
        weight = next;
        int64_t cores = 0, nodes = 0;
        for (int32_t k = 0; k < count; k++)
            if (s->weights[e->capacity[k].node] <= weight) {
                cores += e->capacity[k].cores;
                nodes++;
            }
        if (cores >= s->wanted_cores[job] && nodes >= s->fewest[job] && spread(e, free, job, count, weight)) return 1;
    }
}

static void mask_of_chosen(const struct engine *e, uint64_t *mask) {
    memset(mask, 0, (size_t)e->words * sizeof *mask);
    for (int32_t k = 0; k < e->chosen_count; k++) mask[e->chosen[k].node >> 6] |= 1ull << (e->chosen[k].node & 63);
}

/* -- accounts and limits -------------------------------------------------------------------------------------------- */

static double billed(const struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    const double *weights = s->billing + s->partition[job] * (GRES + s->kinds);
    double total = 0;
    for (int64_t k = 0; k < GRES + s->kinds; k++) {
        double value = (double)e->amounts[k] * weights[k];
        if (!s->billing_most) total += value;
        else if (value > total) total = value;
    }
    return total;
}

/* Set `e->amounts` to those of a job with these parts of nodes; null: to the requested ones. Return the amounts. */
static const int64_t *amounts_of(struct engine *e, int32_t job, const struct part *parts, int32_t count) {
    const struct setup *s = e->s;
    int64_t cores = 0, memory = 0, nodes = count;
    if (parts)
        for (int32_t p = 0; p < count; p++) {
            cores += parts[p].cores;
            memory += memory_of(s, job, parts[p].node, parts[p].cores);
        }
    else {
        cores = s->wanted_cores[job], nodes = s->fewest[job];
        memory = (s->wanted_memory[job] > 0 ? s->wanted_memory[job] : 0) * (s->by_core[job] ? cores : nodes);
    }
    e->amounts[CORES] = cores, e->amounts[MEMORY] = memory, e->amounts[NODES] = nodes, e->amounts[BILLING] = 0;
    for (int64_t k = 0; k < s->kinds; k++) e->amounts[GRES + k] = s->wanted_gres[job * s->kinds + k] * nodes;
    e->amounts[BILLING] = (int64_t)billed(e, job);
    return e->amounts;
}

static const int64_t *amounts_held(struct engine *e, int32_t job) {
    return amounts_of(e, job, e->parts + e->part_first[job], e->part_size[job]);
}

/* Whether a limit of resources holds a job that would get the `chosen` nodes, or that requests its amounts. */
static int held(struct engine *e, int32_t job, int chosen) {
    if (!e->limits.counters) return 0;
    return exceeded(&e->limits, job, amounts_of(e, job, chosen ? e->chosen : NULL, e->chosen_count));
}

static int64_t whole_second(const struct engine *e, double instant) { return (int64_t)floor(instant + e->s->epoch_s + ROUNDING_S); }

static void use_of(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    amounts_held(e, job);
    use(&e->shares, s->association[job], billed(e, job) * s->usage_factor[job], whole_second(e, s->start[job]), whole_second(e, e->now));
}

/* -- priorities ----------------------------------------------------------------------------------------------------- */

static void rank_job(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    double age = (e->now - s->submit[job]) / s->max_age_s, share = s->association[job] < 0 ? 0.0 : e->shares.factor[s->association[job]];
    if (!(age < 1.0)) age = 1.0;
    e->priority[job] = (int64_t)floor(s->fixed[job] + s->age * age + s->fairshare * share);
}

static void compute(struct engine *e) {
    int64_t now = whole_second(e, e->now);
    decay_usage(&e->shares, now);
    for (int64_t k = 0; k < e->running_count; k++) use_of(e, e->running[k].job);
    e->shares.since = now;
    rank_users(&e->shares);
    for (int64_t k = 0; k < e->queue_count; k++) rank_job(e, e->queue[k]);
}

/* -- jobs ----------------------------------------------------------------------------------------------------------- */

/* Start `job` on the nodes in `e->chosen`. */
static void start(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    if (!grow((void **)&e->parts, &e->part_room, e->part_count + e->chosen_count, sizeof *e->parts)) { e->out_of_memory = 1; return; }
    memcpy(e->parts + e->part_count, e->chosen, (size_t)e->chosen_count * sizeof *e->parts);
    e->part_first[job] = e->part_count;
    e->part_size[job] = e->chosen_count;
    e->part_count += e->chosen_count;
    take(e, &e->free, job, -1);
    count_job(&e->limits, job, amounts_held(e, job), 1);
    mask_of_chosen(e, e->held + job * e->words);
    int64_t k = 0;
    while (e->queue[k] != job) k++;
    memmove(e->queue + k, e->queue + k + 1, (size_t)(--e->queue_count - k) * sizeof *e->queue);
    struct running own = {whole_second(e, e->now) + s->limit[job], job};
    for (k = e->running_count++; k; k--) {
        const struct running *other = &e->running[k - 1];
        if (other->end < own.end || (other->end == own.end && other->job < job)) break;
        e->running[k] = *other;
    }
    e->running[k] = own;
    s->start[job] = e->now;
    s->launched[job] = e->now + s->launch_s[job];
    s->end[job] = s->run_time[job] > (double)s->limit[job] ? e->now + (double)s->limit[job] + s->overrun_s[job]
                                                             : s->launched[job] + s->run_time[job];
    at(e, s->end[job] + s->end_s[job], END, job);
}

static void submit(struct engine *e, int32_t job) {
    e->s->refused[job] = reached(&e->limits, job, SUBMITTED);
    if (e->s->refused[job] >= 0) {
        e->now_left--;
        return;
    }
    count_job(&e->limits, job, NULL, 1);
    rank_job(e, job);
    e->queue[e->queue_count++] = job;
    e->arrived++;
}

static void end(struct engine *e, int32_t job) {
    take(e, &e->free, job, 1);
    int64_t k = 0;
    while (e->running[k].job != job) k++;
    memmove(e->running + k, e->running + k + 1, (size_t)(--e->running_count - k) * sizeof *e->running);
    use_of(e, job);
    count_job(&e->limits, job, amounts_held(e, job), -1);
    count_job(&e->limits, job, NULL, -1);
    e->now_left--;
    e->freed = 1;
}

static int young(const struct engine *e, int32_t job) { return e->now - e->s->submit[job] < (double)e->s->bf_min_age_reserve; }

static int by_priority(const void *a, const void *b, void *engine) {
    const struct engine *e = engine;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    int32_t tier_x = e->s->tier[e->s->partition[x]], tier_y = e->s->tier[e->s->partition[y]];
    if (tier_x != tier_y) return tier_x > tier_y ? -1 : 1;
    if (e->priority[x] != e->priority[y]) return e->priority[x] > e->priority[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* -- passes --------------------------------------------------------------------------------------------------------- */

static int64_t order_queue(struct engine *e) {
    memcpy(e->order, e->queue, (size_t)e->queue_count * sizeof *e->order);
    qsort_r(e->order, (size_t)e->queue_count, sizeof *e->order, by_priority, e);
    return e->queue_count;
}

static int64_t main_pass(struct engine *e, double at, int *left) {
    const struct setup *s = e->s;
    int64_t depth = s->default_queue_depth, tested = 0, started = 0, waiting = order_queue(e);
    double full = isnan(e->full_last) ? s->sched_phase_s : e->full_last;
    if (at - full >= (double)s->sched_interval) {
        e->full_last = at;
        depth = s->jobs;
    }
    uint8_t blocked[s->partitions];
    memset(blocked, 0, sizeof blocked);
    memcpy(e->allowed, e->everything, (size_t)e->words * sizeof *e->allowed);
    for (int64_t k = 0; k < waiting; k++) {
        int32_t job = e->order[k], partition = s->partition[job];
        if (blocked[partition] || reached(&e->limits, job, JOBS) >= 0) continue;
        if (tested == depth || (s->sched_max_job_start && started == s->sched_max_job_start)) {
            *left = 1;
            break;
        }
        tested++;
        int fits = choose(e, &e->free, job, e->allowed);
        if (held(e, job, fits)) continue;
        if (fits) {
            start(e, job);
            started++;
        } else if (!young(e, job)) {
            blocked[partition] = 1;
            for (int64_t w = 0; w < e->words; w++) e->allowed[w] &= ~e->partition_nodes[partition * e->words + w];
        }
    }
    return started;
}

/* The first instant at which the running jobs leave enough of the usable nodes; -1: none. The nodes are in `e->chosen`. */
static int64_t first_start(struct engine *e, int32_t job, int64_t now) {
    const struct setup *s = e->s;
    if (choose(e, &e->free, job, e->usable)) return now;
    memcpy(e->expected.cores, e->free.cores, (size_t)s->nodes * sizeof *e->free.cores);
    memcpy(e->expected.memory, e->free.memory, (size_t)s->nodes * sizeof *e->free.memory);
    memcpy(e->expected.gres, e->free.gres, (size_t)(s->nodes * s->kinds) * sizeof *e->free.gres);
    memcpy(e->expected.some, e->free.some, (size_t)e->words * sizeof *e->free.some);
    int64_t window = WINDOW_S, barrier = -1, last = -1;
    for (int64_t k = 0; k < e->running_count; k++) {
        const struct running *own = &e->running[k];
        if (!overlaps(e, e->held + own->job * e->words, e->usable)) {
            if (k + 1 < e->running_count || last < 0) continue;
        } else {
            take(e, &e->expected, own->job, 1);
            last = own->end;
            if (barrier < 0) barrier = (last / WINDOW_S + 1) * WINDOW_S;
            if (k + 1 < e->running_count && own[1].end <= barrier + window) continue;
        }
        window *= 2;
        if (choose(e, &e->expected, job, e->usable)) {
            int64_t killed = last + s->kill_wait_s;
            return last > now ? last : killed > now + 1 ? killed : now + 1;
        }
        last = -1;
    }
    return -1;
}

static struct slot *new_slot(struct engine *e, int64_t where) {
    int64_t room = e->slot_room;
    if (!grow((void **)&e->slots, &room, e->slot_count + 1, sizeof *e->slots)) { e->out_of_memory = 1; return NULL; }
    for (; e->slot_room < room; e->slot_room++)
        if (!(e->slots[e->slot_room].nodes = malloc((size_t)e->words * sizeof(uint64_t)))) { e->out_of_memory = 1; return NULL; }
    struct slot spare = e->slots[e->slot_count];
    memmove(e->slots + where + 1, e->slots + where, (size_t)(e->slot_count - where) * sizeof *e->slots);
    e->slots[where] = spare;
    e->slot_count++;
    return &e->slots[where];
}

static void cut(struct engine *e, int64_t at) {
    for (int64_t k = 0; k < e->slot_count; k++)
        if (e->slots[k].begin < at && at < e->slots[k].end) {
            struct slot *new = new_slot(e, k + 1);
            if (!new) return;
            struct slot *old = &e->slots[k];
            memcpy(new->nodes, old->nodes, (size_t)e->words * sizeof(uint64_t));
            new->begin = at;
            new->end = old->end;
            old->end = at;
            return;
        }
}

static void reserve(struct engine *e, int64_t start, int64_t end, const uint64_t *nodes) {
    cut(e, start);
    cut(e, end);
    int64_t kept = 0;
    size_t size = (size_t)e->words * sizeof(uint64_t);
    for (int64_t k = 0; k < e->slot_count; k++) {
        struct slot *own = &e->slots[k];
        if (own->begin < end && start < own->end)
            for (int64_t w = 0; w < e->words; w++) own->nodes[w] &= ~nodes[w];
        if (kept && !memcmp(e->slots[kept - 1].nodes, own->nodes, size)) {
            e->slots[kept - 1].end = own->end;
            continue;
        }
        struct slot moved = *own;
        *own = e->slots[kept];
        e->slots[kept++] = moved;
    }
    e->slot_count = kept;
}

/* The nodes free in every slot of the job, in `e->usable`; return the next start worth a trial, 0: none. */
static int64_t usable(struct engine *e, int32_t job, int64_t start) {
    int64_t later = 0, limit = e->s->limit[job];
    memcpy(e->usable, e->everything, (size_t)e->words * sizeof(uint64_t));
    for (int64_t k = 0; k < e->slot_count; k++) {
        const struct slot *own = &e->slots[k];
        if (own->end <= start) continue;
        if (!later && k + 1 < e->slot_count)
            for (int64_t w = 0; w < e->words; w++)
                if (own[1].nodes[w] & ~own->nodes[w]) {
                    later = own->end;
                    break;
                }
        if (own->begin > start + limit) break;
        for (int64_t w = 0; w < e->words; w++) e->usable[w] &= own->nodes[w];
    }
    for (int64_t w = 0; w < e->words; w++) e->usable[w] &= e->s->eligible[job * e->words + w];
    return later;
}

static int overlap(const struct engine *e, int64_t start, int64_t end, const uint64_t *nodes) {
    for (int64_t k = 0; k < e->slot_count; k++) {
        const struct slot *own = &e->slots[k];
        if (!(own->begin < end && start < own->end)) continue;
        for (int64_t w = 0; w < e->words; w++)
            if (nodes[w] & ~own->nodes[w]) return 1;
    }
    return 0;
}

/* When `job` can start at the earliest, -1: never; the nodes are in `e->chosen`, and their mask in `e->allowed`. */
static int64_t plan(struct engine *e, int32_t job, int64_t now) {
    const struct setup *s = e->s;
    int64_t later = now, resolution = s->bf_resolution;
    for (;;) {
        int64_t since = later;
        later = usable(e, job, since);
        if (count_of(e, e->usable) >= s->fewest[job]) {
            int64_t start = first_start(e, job, now);
            if (start >= 0) {
                if (start < since) start = since;
                if (!later || start <= later) {
                    if (start > now + s->bf_window * MINUTE_S) return -1;
                    mask_of_chosen(e, e->allowed);
                    int64_t begin = start / resolution * resolution, end = (start + s->limit[job]) / resolution * resolution;
                    if (start <= now || !overlap(e, begin, end, e->allowed)) return start;
                    later = start;
                }
            }
        }
        if (later <= since) return -1;
    }
}

static int64_t backfill_pass(struct engine *e, double at, int *left) {
    const struct setup *s = e->s;
    int64_t now = whole_second(e, at), waiting = order_queue(e), started = 0, reserved = 0, considered = 0;
    int64_t table = s->bf_node_space_size ? s->bf_node_space_size : s->bf_max_job_test;
    e->slot_count = 0;
    struct slot *all = new_slot(e, 0);
    if (!all) return 0;
    all->begin = now;
    all->end = now + s->bf_window * MINUTE_S;
    memcpy(all->nodes, e->everything, (size_t)e->words * sizeof(uint64_t));
    if (s->bf_max_job_user) memset(e->jobs_of_user, 0, (size_t)s->users * sizeof *e->jobs_of_user);
    for (int64_t k = 0; k < waiting; k++) {
        int32_t job = e->order[k];
        if (s->bf_max_job_user && ++e->jobs_of_user[s->user[job]] > s->bf_max_job_user) continue;
        if (reached(&e->limits, job, JOBS) >= 0) continue;
        if (considered++ == s->bf_max_job_test) break;
        if (held(e, job, 0)) continue;
        int64_t begin = plan(e, job, now);
        if (begin < 0) continue;
        if (begin <= now) {
            if (held(e, job, 1)) continue;
            start(e, job);
            if (++started == s->bf_max_job_start) {
                *left = 1;
                return started;
            }
        } else if (!s->reserves[job] || young(e, job) || (s->bf_job_part_count_reserve && reserved == s->bf_job_part_count_reserve)) continue;
        else if (e->slot_count >= table) break;
        else {
            int64_t resolution = s->bf_resolution;
            reserved++;
            reserve(e, begin / resolution * resolution, (begin + s->limit[job]) / resolution * resolution, e->allowed);
        }
    }
    *left = s->bf_min_age_reserve > 0 && e->queue_count > 0;
    return started;
}

/* -- the instants of the passes, as in scheduling/policies/slurm.py ------------------------------------------------- */

static double next_multiple(double step, double instant, double origin, int positive) {
    if ((instant - origin) / step >= COUNTABLE) return instant;
    double k = ceil((instant - origin) / step) - 1.0;
    if (positive && k < 0) k = 0;
    while (origin + k * step < instant) k += 1.0;
    return origin + k * step;
}

static double next_main(const struct engine *e) {
    const struct setup *s = e->s;
    if (s->sched_interval < 0) return INFINITY;
    double instant = next_multiple(s->sched_loop_s, e->now, s->sched_phase_s, 0);
    if (!isnan(e->sched_last))
        while (whole_second(e, instant) - whole_second(e, e->sched_last) < s->batch_sched_delay) instant += s->sched_loop_s;
    return instant;
}

static double next_full(const struct engine *e, double last) {
    const struct setup *s = e->s;
    double since = isnan(e->full_last) ? s->sched_phase_s : e->full_last;
    double a = last + s->sched_loop_s, b = since + (double)s->sched_interval;
    return next_multiple(s->sched_loop_s, a > b ? a : b, s->sched_phase_s, 0);
}

static double interval(const struct engine *e) { return (double)e->s->bf_interval + e->s->bf_loop_s - 1.0; }

static double next_backfill(const struct engine *e, double last) {
    if (e->s->bf_interval < 0) return INFINITY;
    if (isnan(last)) return next_multiple(e->s->bf_loop_s, e->now, e->s->bf_phase_s, 1);
    return next_multiple(e->s->bf_loop_s, e->now, last + interval(e), 1);
}

static double less(double a, double b) { return b < a ? b : a; }

/* One call of the policy. Return the instant of the next one. */
static double decide(struct engine *e) {
    double now = e->now, due[2] = {isnan(e->sched_due) ? INFINITY : e->sched_due, isnan(e->bf_due) ? INFINITY : e->bf_due};
    if (e->arrived || e->freed || now < less(due[0], due[1]) - ROUNDING_S) {
        if (!isnan(e->bf_last) && e->s->bf_interval > 0 && e->queue_count > e->arrived) {
            double passes = ceil((now - e->bf_last) / interval(e) - ROUNDING_S) - 1.0;
            if (passes > 0) e->bf_last += passes * interval(e);
        }
        due[0] = less(due[0], next_main(e));
        due[1] = less(due[1], next_backfill(e, e->bf_last));
    }
    int first = due[1] < due[0];
    for (int k = 0; k < 2; k++) {
        int backfills = k ? !first : first;
        double instant = due[backfills];
        if (instant > now + ROUNDING_S) continue;
        due[backfills] = INFINITY;
        *(backfills ? &e->bf_last : &e->sched_last) = instant;
        int left = 0;
        int64_t started = backfills ? backfill_pass(e, instant, &left) : main_pass(e, instant, &left);
        if (started) due[1] = less(due[1], next_backfill(e, backfills ? instant : e->bf_last));
        if (left) {
            double again = backfills ? next_backfill(e, instant) : next_full(e, instant);
            due[backfills] = less(due[backfills], again);
        }
    }
    e->sched_due = due[0];
    e->bf_due = due[1];
    return less(due[0], due[1]);
}

/* -- the whole ------------------------------------------------------------------------------------------------------ */

static int handle(struct engine *e) {
    int call = 0;
    while (e->event_count && e->events[0].at == e->now) {
        struct event event = next_event(e);
        if (event.kind == COMPUTE) {
            compute(e);
            at(e, e->now + e->s->period_s, COMPUTE, 0);
            e->freed = call = 1;
        } else if (event.kind == WAKE) call = call || e->wake == e->now;
        else {
            if (event.kind == SUBMIT) submit(e, event.job);
            else end(e, event.job);
            call = 1;
        }
    }
    return call;
}

static void simulate(struct engine *e) {
    const struct setup *s = e->s;
    for (int64_t job = 0; job < s->jobs; job++) at(e, s->submit[job], SUBMIT, (int32_t)job);
    if (s->age != 0 || s->fairshare != 0) at(e, s->first_period_s, COMPUTE, 0);
    int64_t idle = 0;
    while (e->now_left && e->event_count && idle < s->most_idle && !e->out_of_memory) {
        e->now = e->events[0].at;
        idle = e->running_count || e->queue_count < e->now_left ? 0 : idle + 1;
        if (!handle(e)) continue;
        e->wake = INFINITY;
        double again;
        do {
            again = decide(e);
            e->arrived = e->freed = 0;
        } while (again <= e->now && !e->out_of_memory);
        if (again < INFINITY) {
            e->wake = again;
            at(e, again, WAKE, 0);
        }
    }
}

static int by_group(const void *a, const void *b, void *groups) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const int32_t *group = groups;
    if (group && group[x] != group[y]) return group[x] < group[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Simulate. `parts` receives (job, node, cores) of each part of an allocation, `room` of them. Return the number of
 * parts; -1: out of memory. If there are more than `room`, call again with more. */
int64_t tracebed_slurm_simulate(const struct setup *s, int32_t *parts, int64_t room) {
    struct engine own = {.s = s, .words = (s->nodes + 63) / 64, .now_left = s->jobs}, *e = &own;
    size_t jobs = (size_t)s->jobs, nodes = (size_t)s->nodes, words = (size_t)e->words, kinds = (size_t)s->kinds;
    e->sched_last = e->full_last = e->bf_last = e->sched_due = e->bf_due = NAN;
    e->wake = INFINITY;
    e->shares = (struct shares){.count = s->associations, .parent = s->parent, .share = s->share, .is_user = s->is_user, .resets = s->resets, .reset_count = s->reset_count, .dampening = s->dampening};
    e->limits = (struct limits){s->counters, s->group, s->first_limit, s->limit_counter, s->limit_kind, s->first_counted, s->counted, s->counted_kind, s->limit_most, NULL};
    void *pieces[] = {
        e->part_first = calloc(jobs, sizeof *e->part_first), e->part_size = calloc(jobs, sizeof *e->part_size),
        e->free.cores = malloc(nodes * sizeof(int32_t)), e->free.memory = malloc(nodes * sizeof(int64_t)),
        e->free.gres = malloc(nodes * kinds * sizeof(int32_t) + 1), e->expected.cores = malloc(nodes * sizeof(int32_t)),
        e->expected.memory = malloc(nodes * sizeof(int64_t)), e->expected.gres = malloc(nodes * kinds * sizeof(int32_t) + 1),
        e->free.some = calloc(words, sizeof(uint64_t)), e->expected.some = calloc(words, sizeof(uint64_t)),
        e->running = malloc(jobs * sizeof *e->running), e->queue = malloc(jobs * sizeof(int32_t)),
        e->order = malloc(jobs * sizeof(int32_t)), e->priority = calloc(jobs, sizeof(int64_t)),
        e->everything = calloc(words, sizeof(uint64_t)), e->held = calloc(jobs * words, sizeof(uint64_t)),
        e->partition_nodes = calloc((size_t)s->partitions * words, sizeof(uint64_t)), e->usable = calloc(words, sizeof(uint64_t)),
        e->allowed = calloc(words, sizeof(uint64_t)), e->node_order = malloc(nodes * sizeof(int32_t)),
        e->capacity = malloc(nodes * sizeof *e->capacity), e->chosen = malloc(nodes * sizeof *e->chosen),
        e->group = malloc(nodes * sizeof *e->group), e->used = malloc(nodes),
        e->jobs_of_user = calloc((size_t)s->users, sizeof(int32_t)), e->amounts = calloc(GRES + kinds, sizeof(int64_t)),
        e->limits.used = calloc((size_t)s->counters + 1, sizeof(int64_t)),
    };
    enum { PIECES = sizeof pieces / sizeof *pieces };
    for (int k = 0; k < PIECES; k++) e->out_of_memory |= !pieces[k];
    e->out_of_memory |= !begin_shares(&e->shares, s->half_life_s, whole_second(e, s->submit[0]));
    if (!e->out_of_memory) {
        memcpy(e->free.cores, s->cores, nodes * sizeof(int32_t));
        memcpy(e->free.memory, s->memory, nodes * sizeof(int64_t));
        if (kinds) memcpy(e->free.gres, s->gres, nodes * kinds * sizeof(int32_t));
        for (size_t node = 0; node < nodes; node++) {
            e->node_order[node] = (int32_t)node;
            e->everything[node >> 6] |= 1ull << (node & 63);
            if (s->cores[node]) e->free.some[node >> 6] |= 1ull << (node & 63);
        }
        e->one_weight = 1;
        for (size_t node = 1; node < nodes; node++) e->one_weight &= s->weights[node] == s->weights[0];
        int32_t *by_number = s->groups ? e->node_order : NULL;
        qsort_r(e->node_order, nodes, sizeof *e->node_order, by_group, (void *)s->groups);
        e->node_order = by_number;
        for (size_t job = 0; job < jobs; job++)
            for (size_t w = 0; w < words; w++) e->partition_nodes[(size_t)s->partition[job] * words + w] |= s->eligible[job * words + w];
        simulate(e);
    }
    int64_t count = e->out_of_memory ? -1 : e->part_count;
    if (count >= 0 && count <= room)
        for (int64_t job = 0, k = 0; job < s->jobs; job++)
            for (int32_t p = 0; p < e->part_size[job]; p++, k++) {
                const struct part *each = &e->parts[e->part_first[job] + p];
                parts[3 * k] = (int32_t)job, parts[3 * k + 1] = each->node, parts[3 * k + 2] = each->cores;
            }
    for (int k = 0; k < PIECES; k++) free(pieces[k]);
    end_shares(&e->shares);
    for (int64_t k = 0; k < e->slot_room; k++) free(e->slots[k].nodes);
    free(e->slots), free(e->events), free(e->parts);
    return count;
}
