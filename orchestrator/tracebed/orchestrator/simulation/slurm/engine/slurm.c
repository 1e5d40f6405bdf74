/* Slurm on a cluster whose jobs share nodes: the same as simulator.py and the modules of scheduling/slurm, which
 * have the rules and their sources. The results are equal to the bit. Sets of nodes are masks of `words` words. */
#define _GNU_SOURCE /* qsort_r */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if __FLT_EVAL_METHOD__ != 0
#error "double arithmetic is not IEEE double on this platform: use the Python simulator"
#endif

#ifdef __GLIBC__ /* the same function for systems with a glibc before 2.29; only errno differs */
#if defined(__x86_64__)
__asm__(".symver pow,pow@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver pow,pow@GLIBC_2.17");
#endif
#endif

/* The structure shared with Python. It is one list, which expands both to the declaration and to the text that
 * `tracebed_slurm_description` returns. */
#define SETUP(_) \
    _(int64_t, jobs) _(int64_t, nodes) _(int64_t, kinds) /* of generic resources */ _(int64_t, partitions) \
    _(int64_t, users) _(int64_t, accounts) \
    _(const double *, submit) _(const double *, run_time) _(const int64_t *, limit) _(const double *, launch_s) \
    _(const double *, overrun_s) _(const double *, end_s) /* of each job */ \
    _(const int32_t *, wanted_cores) _(const int32_t *, per_node) _(const int32_t *, fewest) _(const uint8_t *, whole) \
    _(const int64_t *, wanted_memory) _(const uint8_t *, by_core) _(const int32_t *, wanted_gres) /* jobs x kinds */ \
    _(const uint64_t *, eligible) /* jobs x words */ _(const int32_t *, partition) _(const int32_t *, user) \
    _(const double *, fixed) _(const int32_t *, tier) /* of each partition */ \
    _(const int32_t *, cores) _(const int64_t *, memory) _(const int32_t *, gres) /* nodes x kinds */ \
    _(const int32_t *, groups) /* null: blocks of consecutive nodes */ _(const int32_t *, weights) \
    _(const int32_t *, account) /* of each user */ _(const double *, user_share) _(const double *, account_share) \
    _(double, age) _(double, max_age_s) _(double, fairshare) _(double, half_life_s) _(double, period_s) \
    _(double, first_period_s) _(int64_t, kill_wait_s) \
    _(const double *, earliest) _(const int64_t *, condition_first) _(const uint8_t *, any_of) /* of each job */ \
    _(const uint8_t *, condition_kind) _(const int32_t *, condition_of) _(const double *, condition_delay) \
    _(const int32_t *, group) _(const uint8_t *, fails) /* of each job */ _(int64_t, kill_invalid) \
    _(const int32_t *, array) /* of each job */ _(const int32_t *, array_most) _(int64_t, arrays) _(int64_t, array_reservations) \
    _(int64_t, license_kinds) _(const int64_t *, licenses) _(const int64_t *, wanted_licenses) /* jobs x kinds */ \
    _(int64_t, plan_licenses) _(const int32_t *, inside) /* of each job */ _(int64_t, bookings) \
    _(const int64_t *, booked_begin) _(const int64_t *, booked_end) _(const int64_t *, booked_kill) \
    _(const uint64_t *, booked_nodes) /* bookings x words */ _(const double *, notices) _(int64_t, notice_count) \
    _(const double *, changes) _(int64_t, change_count) \
    _(const int32_t *, class_of) /* of each job */ _(int64_t, classes) _(const uint8_t *, may) /* classes x classes */ \
    _(const int64_t *, rank) _(const int32_t *, mode) _(const int64_t *, grace) /* of each class */ \
    _(int64_t, preempts) _(double, exempt) _(int64_t, youngest) _(int64_t, again) \
    _(int64_t, sched_interval) _(int64_t, batch_sched_delay) _(int64_t, default_queue_depth) \
    _(int64_t, sched_max_job_start) _(int64_t, bf_interval) _(int64_t, bf_resolution) _(int64_t, bf_window) \
    _(int64_t, bf_max_job_test) _(int64_t, bf_max_job_start) _(int64_t, bf_max_job_user) _(int64_t, bf_node_space_size) \
    _(int64_t, bf_min_age_reserve) _(int64_t, bf_job_part_count_reserve) _(double, epoch_s) _(double, sched_loop_s) \
    _(double, sched_phase_s) _(double, bf_loop_s) _(double, bf_phase_s) \
    _(double, begin_s) _(const double *, since) /* null: no job runs at the begin */ _(int64_t, held_count) \
    _(const int32_t *, held) /* (job, node, cores), by job */ _(const double *, usage) _(const double *, factors) \
    _(int64_t, watched) \
    _(double *, start) _(double *, launched) _(double *, end) _(double *, active) _(int32_t *, fate) _(int32_t *, restarts) /* results, of each job */ \
    _(double *, stints) /* results: job, start and end of each */ _(int64_t, stint_room) _(int64_t *, stint_count)
#define DECLARED(type, name) type name;
#define DESCRIBED(type, name) " " #type " " #name ";"
struct setup { SETUP(DECLARED) };

const char *tracebed_slurm_description(void) { return "setup:" SETUP(DESCRIBED) "\n"; }
int64_t tracebed_slurm_setup_size(void) { return sizeof(struct setup); }

enum { SUBMIT, END, COMPUTE, WAKE, CHANGE, NOTICE };
enum { AFTER, AFTER_OK, AFTER_NOT_OK, AFTER_ANY, SINGLETON }; /* kinds of conditions */
enum { WAITING, RUNNING, DONE, FAILED, CANCELLED, STUCK };    /* states of jobs */
enum { OPEN, MET, IMPOSSIBLE };
enum { ENDED, KILLED, PREEMPTED };
enum { CANCEL, REQUEUE, SUSPEND };
static const double REQUEUED_S = 121.0;
static const double GIVE_UP_S = 86400.0;
enum { MINUTE_S = 60, WINDOW_S = 30 };
static const double ROUNDING_S = 1e-6, COUNTABLE = 9007199254740992.0;

struct event { double at; int64_t sequence; int32_t kind, job; };
struct part { int32_t node, cores; };
struct running { int64_t end; int32_t job; };
struct slot { int64_t begin, end; uint64_t *nodes; };
struct held_licenses { int64_t begin, end; int32_t job; };
struct free_resources { int32_t *cores, *gres; int64_t *memory; uint64_t *some; /* the nodes with idle cores */ };
struct group { int32_t first, count, weight; int64_t size, waste; }; /* waste: by which groups compare */

struct engine {
    const struct setup *s;
    int64_t words, now_left, to_start; /* to_start < 0: the simulation ends with the last job */
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
    double *usage, *ended, *factor, since;
    double now, wake, last /* event or start */, *accrued /* since when each job waits, for the age */; int freed, changed;
    uint8_t *state, *ready; int64_t upcoming, ready_count /* of the queue */, waited;
    double *due /* of the end of each job */, *earliest, *asleep_at, *asleep_left; uint8_t *asleep; int64_t asleep_count;
    int32_t *level /* number of classes whose jobs a class may preempt */, *candidates, *victims, *order_of, *overlap; int64_t candidate_count, victim_count; uint8_t *yields;
    struct running *rest; uint64_t *victim_nodes; int preempting;
    struct part *stint_parts; int64_t stint_count, stint_part_count, stint_part_room;
    int64_t *licenses /* free */, *license_room, license_count; struct held_licenses *license_plan; /* of a pass */
    uint64_t *open /* nodes that reservations leave */; struct free_resources empty;
    int32_t *array_running, *array_waiting, *array_left, *array_reserved;
    int32_t *group_member, *group_running; int64_t *group_first;
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
    e->upcoming += kind != COMPUTE && kind != WAKE;
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

static void take(struct engine *e, struct free_resources *free, int32_t job, int sign) {
    const struct setup *s = e->s;
    const struct part *parts = e->parts + e->part_first[job];
    for (int32_t p = 0; p < e->part_size[job]; p++) {
        int32_t node = parts[p].node, cores = parts[p].cores;
        free->cores[node] += sign * cores;
        if (free->cores[node]) free->some[node >> 6] |= 1ull << (node & 63);
        else free->some[node >> 6] &= ~(1ull << (node & 63));
        int64_t memory = s->whole[job] || s->wanted_memory[job] < 0 ? s->memory[node] : s->by_core[job] ? s->wanted_memory[job] * cores : s->wanted_memory[job];
        free->memory[node] += sign * memory;
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

/* -- priorities ----------------------------------------------------------------------------------------------------- */

static void rank_job(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    double age = (e->now - e->accrued[job]) / s->max_age_s;
    if (!(age < 1.0)) age = 1.0;
    if (!(age > 0.0)) age = 0.0;
    e->priority[job] = (int64_t)floor(s->fixed[job] + s->age * age + s->fairshare * e->factor[s->user[job]]);
}

static double level(double share, double used, double total) { return used > 0 ? share / (used / total) : INFINITY; }

/* Sort `count` numbers by descending `key`; equal ones keep their order. */
static void by_key(int32_t *numbers, int64_t count, const double *key) {
    for (int64_t k = 1; k < count; k++) {
        int32_t own = numbers[k];
        int64_t to = k;
        while (to && key[own] > key[numbers[to - 1]]) {
            numbers[to] = numbers[to - 1];
            to--;
        }
        numbers[to] = own;
    }
}

static void rank_users(struct engine *e) {
    const struct setup *s = e->s;
    int64_t users = s->users, accounts = s->accounts, room = users > accounts ? users : accounts;
    double *of_account = calloc((size_t)accounts, sizeof(double)), *of = calloc((size_t)room, sizeof(double)), total = 0;
    double *levels = calloc((size_t)accounts, sizeof(double));
    int32_t *order = calloc((size_t)accounts, sizeof(int32_t)), *own = calloc((size_t)users, sizeof(int32_t));
    if (!of_account || !of || !levels || !order || !own) e->out_of_memory = 1;
    else {
        for (int64_t user = 0; user < users; user++) of_account[s->account[user]] += e->usage[user];
        for (int64_t account = 0; account < accounts; account++) total += of_account[account];
        for (int64_t account = 0; account < accounts; account++) {
            levels[account] = level(s->account_share[account], of_account[account], total);
            order[account] = (int32_t)account;
        }
        by_key(order, accounts, levels);
        int64_t rank = users, count = users + 1;
        for (int64_t k = 0; k < accounts; k++) {
            int64_t members = 0, last = -1;
            for (int64_t user = 0; user < users; user++)
                if (s->account[user] == order[k]) {
                    of[user] = level(s->user_share[user], e->usage[user], of_account[order[k]]);
                    own[members++] = (int32_t)user;
                }
            by_key(own, members, of);
            for (int64_t m = 0; m < members; m++) {
                int64_t user = own[m];
                e->factor[user] = last >= 0 && of[user] == of[last] ? e->factor[last] : (double)rank / (double)count;
                last = user;
                rank--;
            }
        }
    }
    free(of_account), free(of), free(levels), free(order), free(own);
}

static int64_t cores_of(const struct engine *e, int32_t job) {
    int64_t cores = 0;
    for (int32_t p = 0; p < e->part_size[job]; p++) cores += e->parts[e->part_first[job] + p].cores;
    return cores;
}

static void compute(struct engine *e) {
    const struct setup *s = e->s;
    double decay = s->half_life_s ? pow(0.5, (e->now - e->since) / s->half_life_s) : 1.0;
    for (int64_t user = 0; user < s->users; user++) {
        e->usage[user] = e->usage[user] * decay + e->ended[user];
        e->ended[user] = 0.0;
    }
    for (int64_t k = 0; k < e->running_count; k++) {
        int32_t job = e->running[k].job;
        double since = s->start[job] > e->since ? s->start[job] : e->since;
        e->usage[s->user[job]] += (double)cores_of(e, job) * (e->now - since);
    }
    e->since = e->now;
    rank_users(e);
    for (int64_t k = 0; k < e->queue_count; k++) rank_job(e, e->queue[k]);
}

static int64_t whole_second(const struct engine *e, double instant) { return (int64_t)floor(instant + e->s->epoch_s + ROUNDING_S); }

/* -- conditions, as in scheduling/slurm/conditions.py --------------------------------------------------------------- */

/* Whether as many tasks of the array of a job run as may. */
static int full_array(const struct engine *e, int32_t job) {
    int32_t array = e->s->array[job];
    return array >= 0 && e->s->array_most[array] > 0 && e->array_running[array] >= e->s->array_most[array];
}

/* Count a job that is ready into the queue (1), or out of it (-1). */
static void count_ready(struct engine *e, int32_t job, int sign) {
    if (e->s->array[job] >= 0) e->array_waiting[e->s->array[job]] += sign;
    if (!full_array(e, job)) e->ready_count += sign;
}

/* A job starts (1) or ends (-1): the tasks of its array and the licences. */
static void count_running(struct engine *e, int32_t job, int sign) {
    int32_t array = e->s->array[job];
    for (int64_t k = 0; k < e->s->license_kinds; k++)
        e->licenses[k] -= sign * e->s->wanted_licenses[job * e->s->license_kinds + k];
    if (array < 0) return;
    int before = full_array(e, job);
    e->array_running[array] += sign;
    e->ready_count += (before - full_array(e, job)) * e->array_waiting[array];
}

static void set_state(struct engine *e, int32_t job, int state) {
    int32_t group = e->s->group[job];
    if (group >= 0) e->group_running[group] += (state == RUNNING) - (e->state[job] == RUNNING);
    e->state[job] = (uint8_t)state;
    if (state == CANCELLED) e->s->start[job] = e->now; /* for the delay of `after`; removed at the end */
}

static int alone(struct engine *e, int32_t job, int32_t group) {
    for (;;) {
        int32_t first = e->group_member[e->group_first[group]];
        int state = e->state[first];
        if (state == DONE || state == FAILED || state == CANCELLED) e->group_first[group]++;
        else if (first < job && state == STUCK) return IMPOSSIBLE;
        else return e->group_running[group] || first < job ? OPEN : MET;
    }
}

static int check_one(struct engine *e, int32_t job, int64_t k, double *at) {
    const struct setup *s = e->s;
    int kind = s->condition_kind[k];
    int32_t of = s->condition_of[k];
    if (kind == SINGLETON) return alone(e, job, of);
    int state = e->state[of];
    if (state == STUCK) return IMPOSSIBLE;
    if (state == WAITING) return OPEN;
    if (kind == AFTER) {
        double instant = s->start[of] + s->condition_delay[k];
        if (instant <= e->now) return MET;
        *at = instant;
        return OPEN;
    }
    if (state == RUNNING) return OPEN;
    if (kind == AFTER_ANY) return MET;
    return (state == DONE) == (kind == AFTER_OK) ? MET : IMPOSSIBLE;
}

static int check(struct engine *e, int32_t job, double *later) {
    const struct setup *s = e->s;
    int any_of = s->any_of[job], undecided = 0;
    *later = INFINITY;
    for (int64_t k = s->condition_first[job]; k < s->condition_first[job + 1]; k++) {
        double instant = INFINITY;
        int result = check_one(e, job, k, &instant);
        if (result == (any_of ? MET : IMPOSSIBLE)) {
            *later = INFINITY;
            return result;
        }
        undecided |= result == OPEN;
        if (instant < *later) *later = instant;
    }
    return undecided ? OPEN : any_of ? IMPOSSIBLE : MET;
}

/* Remove a job that never starts; the caller removes it from the queue. */
static void forget(struct engine *e, int32_t job, int state) {
    set_state(e, job, state);
    e->now_left--;
    if (job < e->s->watched) e->to_start--;
}

static void refresh(struct engine *e) {
    const struct setup *s = e->s;
    int again = 1;
    if (s->bookings) {
        int64_t kept = 0, now = whole_second(e, e->now);
        for (int64_t k = 0; k < e->queue_count; k++) {
            int32_t job = e->queue[k];
            if (s->inside[job] >= 0 && s->booked_end[s->inside[job]] <= now) {
                if (e->ready[job]) count_ready(e, job, -1);
                forget(e, job, STUCK);
            } else e->queue[kept++] = job;
        }
        e->queue_count = kept;
    }
    while (again) {
        again = 0;
        int64_t kept = 0;
        for (int64_t k = 0; k < e->queue_count; k++) {
            int32_t job = e->queue[k];
            if (!e->ready[job]) {
                double later;
                int result = check(e, job, &later);
                if (result == IMPOSSIBLE) {
                    forget(e, job, s->kill_invalid ? CANCELLED : STUCK);
                    again = 1;
                    continue;
                }
                if (result == MET && e->earliest[job] <= e->now + ROUNDING_S) {
                    e->ready[job] = 1;
                    if (e->now < e->accrued[job]) e->accrued[job] = e->now;
                    count_ready(e, job, 1);
                } else if (e->now < later && later < INFINITY) at(e, later, CHANGE, job);
            }
            e->queue[kept++] = job;
        }
        e->queue_count = kept;
    }
}

/* -- jobs ----------------------------------------------------------------------------------------------------------- */

static int64_t place_of(const struct engine *e, int32_t job) {
    int64_t k = 0;
    while (e->running[k].job != job) k++;
    return k;
}

static void insert_running(struct engine *e, struct running own) {
    int64_t k;
    for (k = e->running_count++; k; k--) {
        const struct running *other = &e->running[k - 1];
        if (other->end < own.end || (other->end == own.end && other->job < own.job)) break;
        e->running[k] = *other;
    }
    e->running[k] = own;
}

static void remove_running(struct engine *e, int32_t job) {
    int64_t k = place_of(e, job);
    memmove(e->running + k, e->running + k + 1, (size_t)(--e->running_count - k) * sizeof *e->running);
}

/* Let `job` run on the nodes in `e->chosen` since `instant`. */
static void run(struct engine *e, int32_t job, double instant) {
    const struct setup *s = e->s;
    if (!grow((void **)&e->parts, &e->part_room, e->part_count + e->chosen_count, sizeof *e->parts)) { e->out_of_memory = 1; return; }
    memcpy(e->parts + e->part_count, e->chosen, (size_t)e->chosen_count * sizeof *e->parts);
    e->part_first[job] = e->part_count;
    e->part_size[job] = e->chosen_count;
    e->part_count += e->chosen_count;
    take(e, &e->free, job, -1);
    mask_of_chosen(e, e->held + job * e->words);
    count_running(e, job, 1);
    insert_running(e, (struct running){whole_second(e, instant) + s->limit[job], job});
    s->start[job] = instant;
    s->launched[job] = instant + s->launch_s[job];
    int64_t most = s->limit[job]; /* a job ends with its reservation */
    if (s->inside[job] >= 0) {
        int64_t left = s->booked_kill[s->inside[job]] - whole_second(e, instant);
        if (left < most) most = left > 0 ? left : 0;
    }
    s->fate[job] = s->run_time[job] > (double)most ? KILLED : ENDED;
    double end = s->fate[job] == KILLED ? instant + (double)most + s->overrun_s[job] : s->launched[job] + s->run_time[job];
    s->end[job] = end > e->now ? end : e->now;
    s->active[job] = instant;
    e->due[job] = s->end[job] + s->end_s[job];
    at(e, e->due[job], END, job);
    set_state(e, job, RUNNING);
    e->last = e->now;
}

/* Start `job` on the nodes in `e->chosen`. */
static void start(struct engine *e, int32_t job) {
    int64_t k = 0;
    while (e->queue[k] != job) k++;
    memmove(e->queue + k, e->queue + k + 1, (size_t)(--e->queue_count - k) * sizeof *e->queue);
    count_ready(e, job, -1);
    run(e, job, e->now);
    if (job < e->s->watched && !e->s->restarts[job]) e->to_start--;
}

static void submit(struct engine *e, int32_t job) {
    rank_job(e, job);
    e->queue[e->queue_count++] = job;
    if (e->ready[job]) count_ready(e, job, 1);
    e->arrived++;
    if (e->earliest[job] > e->now) {
        if (e->accrued[job] < e->earliest[job]) e->accrued[job] = e->earliest[job];
        at(e, e->earliest[job], CHANGE, job);
    }
}

/* -- preemption, as in scheduling/slurm/preemption.py and preempting.py ---------------------------------------------- */

/* Record that `job` held its nodes from `s->active[job]` until now. */
static void stint(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    if (!grow((void **)&e->stint_parts, &e->stint_part_room, e->stint_part_count + 2 * e->part_size[job], sizeof *e->stint_parts)) {
        e->out_of_memory = 1;
        return;
    }
    if (e->stint_count < s->stint_room) {
        double *own = s->stints + 3 * e->stint_count;
        own[0] = job, own[1] = s->active[job], own[2] = e->now;
    }
    for (int32_t p = 0; p < e->part_size[job]; p++) { /* the number of the stint, then the part */
        e->stint_parts[e->stint_part_count++] = (struct part){(int32_t)e->stint_count, 0};
        e->stint_parts[e->stint_part_count++] = e->parts[e->part_first[job] + p];
    }
    e->stint_count++;
}

/* Note another expected end of a running job. */
static void expect(struct engine *e, int32_t job, int64_t end) {
    remove_running(e, job);
    insert_running(e, (struct running){end, job});
}

static void kill_job(struct engine *e, int32_t job, int64_t grace) {
    const struct setup *s = e->s;
    double end = e->now + (double)grace;
    if (!(end < s->end[job])) return;
    s->end[job] = end;
    s->fate[job] = PREEMPTED;
    e->due[job] = end + s->end_s[job];
    at(e, e->due[job], END, job);
    expect(e, job, whole_second(e, e->now) + grace);
}

static void suspend(struct engine *e, int32_t job) {
    if (e->asleep[job]) return;
    e->asleep[job] = 1;
    e->asleep_count++;
    e->asleep_at[job] = e->now;
    e->asleep_left[job] = e->s->end[job] - e->now;
    e->due[job] = NAN;
    stint(e, job);
}

static void resume(struct engine *e) {
    const struct setup *s = e->s;
    for (int32_t job = 0; e->asleep_count && job < s->jobs; job++) {
        if (!e->asleep[job]) continue;
        int used = 0;
        for (int32_t p = 0; p < e->part_size[job]; p++) used |= e->free.cores[e->parts[e->part_first[job] + p].node] < 0;
        if (used) continue;
        e->asleep[job] = 0;
        e->asleep_count--;
        s->active[job] = e->now;
        s->end[job] = e->now + e->asleep_left[job];
        e->due[job] = s->end[job] + s->end_s[job];
        at(e, e->due[job], END, job);
        expect(e, job, e->running[place_of(e, job)].end + whole_second(e, e->now) - whole_second(e, e->asleep_at[job]));
    }
}

static int requeued(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    if (s->fate[job] != PREEMPTED || s->mode[s->class_of[job]] != REQUEUE) return 0;
    stint(e, job);
    s->restarts[job]++;
    e->part_size[job] = 0;
    s->start[job] = s->launched[job] = s->end[job] = NAN;
    e->earliest[job] = e->accrued[job] = e->now + REQUEUED_S;
    e->ready[job] = 0;
    at(e, e->earliest[job], CHANGE, job);
    rank_job(e, job);
    e->queue[e->queue_count++] = job;
    return 1;
}

static void end(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    take(e, &e->free, job, 1);
    remove_running(e, job);
    double since = s->start[job] > e->since ? s->start[job] : e->since;
    e->ended[s->user[job]] += (double)cores_of(e, job) * (e->now - since);
    count_running(e, job, -1);
    int state = s->fate[job] != ENDED || s->fails[job] ? FAILED : DONE;
    if (requeued(e, job)) set_state(e, job, WAITING);
    else {
        set_state(e, job, state);
        e->now_left--;
    }
    resume(e);
    e->freed = 1;
}

/* Whether `a` is preempted before `b`. */
static int yields_before(const struct engine *e, int32_t a, int32_t b) {
    const struct setup *s = e->s;
    if (s->youngest) return s->start[a] != s->start[b] ? s->start[a] > s->start[b] : a < b;
    int64_t x = s->rank[s->class_of[a]], y = s->rank[s->class_of[b]];
    if (x != y) return x < y;
    if (e->part_size[a] != e->part_size[b]) return e->part_size[a] < e->part_size[b];
    return a < b;
}

/* The running jobs that `job` may preempt, in `e->candidates`. */
static void gather(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    e->candidate_count = 0;
    if (!s->preempts) return;
    const uint8_t *may = s->may + s->class_of[job] * s->classes;
    for (int64_t k = 0; k < e->running_count; k++) {
        int32_t other = e->running[k].job, own = s->class_of[other];
        if (!may[own] || (s->mode[own] != SUSPEND && !(e->now - s->start[other] >= s->exempt))) continue;
        int64_t to = e->candidate_count++;
        for (; to && yields_before(e, other, e->candidates[to - 1]); to--) e->candidates[to] = e->candidates[to - 1];
        e->candidates[to] = other;
    }
}

static void copy_free(struct engine *e) {
    const struct setup *s = e->s;
    memcpy(e->expected.cores, e->free.cores, (size_t)s->nodes * sizeof *e->free.cores);
    memcpy(e->expected.memory, e->free.memory, (size_t)s->nodes * sizeof *e->free.memory);
    memcpy(e->expected.gres, e->free.gres, (size_t)(s->nodes * s->kinds) * sizeof *e->free.gres);
    memcpy(e->expected.some, e->free.some, (size_t)e->words * sizeof *e->free.some);
}

/* Release in `e->expected` what a preempted job releases: a suspended one keeps its memory and generic resources. */
static void yield(struct engine *e, int32_t job) {
    if (e->s->mode[e->s->class_of[job]] != SUSPEND) {
        take(e, &e->expected, job, 1);
        return;
    }
    for (int32_t p = 0; p < e->part_size[job]; p++) {
        const struct part *own = &e->parts[e->part_first[job] + p];
        e->expected.cores[own->node] += own->cores;
        if (e->expected.cores[own->node]) e->expected.some[own->node >> 6] |= 1ull << (own->node & 63);
        else e->expected.some[own->node >> 6] &= ~(1ull << (own->node & 63));
    }
}

/* Choose the jobs that are preempted for `job` on the `usable` nodes, in `e->victims`, and its nodes, in `e->chosen`. */
static int choose_victims(struct engine *e, int32_t job, const uint64_t *usable) {
    int64_t count = 0, again = e->s->again;
    for (int64_t k = 0; k < e->candidate_count; k++)
        if (overlaps(e, e->held + e->candidates[k] * e->words, usable)) e->order_of[count++] = e->candidates[k];
    for (;;) {
        int64_t taken = 0;
        int found = 0;
        copy_free(e);
        while (taken < count && !found) {
            yield(e, e->order_of[taken++]);
            found = choose(e, &e->expected, job, usable);
        }
        if (!found) return 0;
        mask_of_chosen(e, e->victim_nodes);
        if (again == 0 || taken == 1) {
            e->victim_count = 0;
            for (int64_t k = 0; k < taken; k++)
                if (overlaps(e, e->held + e->order_of[k] * e->words, e->victim_nodes)) e->victims[e->victim_count++] = e->order_of[k];
            return 1;
        }
        again--;
        int32_t last = e->order_of[taken - 1];
        for (int64_t k = 0; k < taken; k++) {
            int32_t own = e->order_of[k], nodes = 0;
            for (int64_t w = 0; w < e->words; w++) nodes += __builtin_popcountll(e->held[own * e->words + w] & e->victim_nodes[w]);
            if (own == last) nodes = INT32_MAX;
            int64_t to = k;
            for (; to && nodes > e->overlap[to - 1]; to--) e->overlap[to] = e->overlap[to - 1], e->order_of[to] = e->order_of[to - 1];
            e->overlap[to] = nodes, e->order_of[to] = own;
        }
        count = taken;
    }
}

/* Preempt candidates for `job` on the `usable` nodes. Return whether it has started; `e->victim_nodes` are its nodes and
 * those of the preempted jobs, and `e->victim_count` is -1 if it does not fit. */
static int preempt(struct engine *e, int32_t job, const uint64_t *usable) {
    const struct setup *s = e->s;
    gather(e, job);
    e->victim_count = -1;
    if (!e->candidate_count || !choose_victims(e, job, usable)) return 0;
    int suspended = 1;
    for (int64_t k = 0; k < e->victim_count; k++) {
        int32_t own = e->victims[k], of = s->class_of[own];
        for (int64_t w = 0; w < e->words; w++) e->victim_nodes[w] |= e->held[own * e->words + w];
        if (s->mode[of] == SUSPEND) suspend(e, own);
        else {
            suspended = 0;
            kill_job(e, own, s->grace[of]);
        }
    }
    if (suspended) start(e, job);
    return suspended;
}

static int young(const struct engine *e, int32_t job) { return e->now - e->s->submit[job] < (double)e->s->bf_min_age_reserve; }

static int by_priority(const void *a, const void *b, void *engine) {
    const struct engine *e = engine;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    int32_t level_x = e->level[e->s->class_of[x]], level_y = e->level[e->s->class_of[y]];
    if (level_x != level_y) return level_x > level_y ? -1 : 1;
    int outside_x = e->s->inside[x] < 0, outside_y = e->s->inside[y] < 0;
    if (outside_x != outside_y) return outside_x - outside_y;
    int32_t tier_x = e->s->tier[e->s->partition[x]], tier_y = e->s->tier[e->s->partition[y]];
    if (tier_x != tier_y) return tier_x > tier_y ? -1 : 1;
    if (e->priority[x] != e->priority[y]) return e->priority[x] > e->priority[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* -- advance reservations and licences, as in scheduling/slurm/outlook.py and licenses.py ---------------------------- */

/* The nodes that a job may use from `start` to `start + limit`, in `mask`. */
static void allowed_nodes(const struct engine *e, int32_t job, int64_t start, uint64_t *mask) {
    const struct setup *s = e->s;
    int32_t inside = s->inside[job];
    memcpy(mask, inside >= 0 ? s->booked_nodes + inside * e->words : e->everything, (size_t)e->words * sizeof *mask);
    for (int64_t k = 0; k < s->bookings; k++)
        if (k != inside && s->booked_begin[k] < start + s->limit[job] && start < s->booked_end[k])
            for (int64_t w = 0; w < e->words; w++) mask[w] &= ~s->booked_nodes[k * e->words + w];
}

static int suffice(const struct engine *e, const int64_t *free, int32_t job) {
    const struct setup *s = e->s;
    for (int64_t k = 0; k < s->license_kinds; k++)
        if (free[k] < s->wanted_licenses[job * s->license_kinds + k]) return 0;
    return 1;
}

static int wants_licenses(const struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    for (int64_t k = 0; k < s->license_kinds; k++)
        if (s->wanted_licenses[job * s->license_kinds + k]) return 1;
    return 0;
}

static int suffice_at(const struct engine *e, int32_t job, int64_t instant) {
    const struct setup *s = e->s;
    memcpy(e->license_room, s->licenses, (size_t)s->license_kinds * sizeof *e->license_room);
    for (int64_t n = 0; n < e->license_count; n++) {
        const struct held_licenses *own = &e->license_plan[n];
        if (own->begin <= instant && instant < own->end)
            for (int64_t k = 0; k < s->license_kinds; k++) e->license_room[k] -= s->wanted_licenses[own->job * s->license_kinds + k];
    }
    return suffice(e, e->license_room, job);
}

static int licensed(const struct engine *e, int32_t job, int64_t start, int64_t now) {
    const struct setup *s = e->s;
    if (!wants_licenses(e, job)) return 1;
    if (start <= now && !suffice(e, e->licenses, job)) return 0;
    if (!s->plan_licenses) return 1;
    if (!suffice_at(e, job, start)) return 0;
    for (int64_t n = 0; n < e->license_count; n++) {
        int64_t begin = e->license_plan[n].begin;
        if (start < begin && begin <= start + s->limit[job] && !suffice_at(e, job, begin)) return 0;
    }
    return 1;
}

static void hold_licenses(struct engine *e, int32_t job, int64_t begin, int64_t end) {
    if (e->s->plan_licenses && wants_licenses(e, job)) e->license_plan[e->license_count++] = (struct held_licenses){begin, end, job};
}

/* The nodes that a job may use from `start` on, in `mask`: none if licences are missing. */
static void open_nodes(const struct engine *e, int32_t job, int64_t start, int64_t now, uint64_t *mask) {
    if (licensed(e, job, start, now)) allowed_nodes(e, job, start, mask);
    else memset(mask, 0, (size_t)e->words * sizeof *mask);
}

static int64_t next_later(const struct engine *e, int32_t job, int64_t after, int64_t found) {
    const struct setup *s = e->s;
    for (int64_t k = 0; k < s->bookings; k++)
        if (s->booked_end[k] > after && (!found || s->booked_end[k] < found)) found = s->booked_end[k];
    if (s->plan_licenses && wants_licenses(e, job))
        for (int64_t n = 0; n < e->license_count; n++) {
            int64_t end = e->license_plan[n].end;
            if (end > after && (!found || end < found)) found = end;
        }
    return found;
}

static int outlook(const struct engine *e) { return e->s->bookings || e->s->license_kinds; }

/* -- passes --------------------------------------------------------------------------------------------------------- */

static int64_t order_queue(struct engine *e) {
    int64_t count = 0;
    refresh(e);
    for (int64_t k = 0; k < e->queue_count; k++)
        if (e->ready[e->queue[k]] && !full_array(e, e->queue[k])) e->order[count++] = e->queue[k];
    qsort_r(e->order, (size_t)count, sizeof *e->order, by_priority, e);
    return count;
}

/* Whether some of `nodes` are not in `mask`. */
static int beyond(const struct engine *e, const uint64_t *nodes, const uint64_t *mask) {
    for (int64_t w = 0; w < e->words; w++)
        if (nodes[w] & ~mask[w]) return 1;
    return 0;
}

static int64_t main_pass(struct engine *e, double at, int *left) {
    const struct setup *s = e->s;
    int64_t depth = s->default_queue_depth, tested = 0, started = 0, waiting = order_queue(e);
    double full = isnan(e->full_last) ? s->sched_phase_s : e->full_last;
    if (at - full >= (double)s->sched_interval) {
        e->full_last = at;
        depth = s->jobs;
    }
    int32_t last = -1;
    uint8_t blocked[s->partitions];
    memset(blocked, 0, sizeof blocked);
    memcpy(e->allowed, e->everything, (size_t)e->words * sizeof *e->allowed);
    uint8_t busy[s->bookings + 1]; /* reservations whose jobs do not fit */
    memset(busy, 0, sizeof busy);
    int64_t second = whole_second(e, at);
    for (int64_t k = 0; k < waiting; k++) {
        int32_t job = e->order[k], partition = s->partition[job], inside = s->inside[job];
        if ((inside >= 0 ? busy[inside] : blocked[partition]) || full_array(e, job)) continue;
        int entry = s->array[job] < 0 || s->array[job] != last; /* all tasks of an array are one entry of the queue */
        last = s->array[job];
        if ((entry && tested == depth) || (s->sched_max_job_start && started == s->sched_max_job_start)) {
            *left = 1;
            break;
        }
        tested += entry;
        const uint64_t *nodes = e->allowed;
        if (outlook(e)) {
            if (!suffice(e, e->licenses, job)) {
                if (s->plan_licenses) break; /* backfill plans the licences */
                continue;
            }
            allowed_nodes(e, job, second, e->open);
            memcpy(e->usable, e->open, (size_t)e->words * sizeof *e->usable);
            for (int64_t w = 0; w < e->words; w++) e->usable[w] &= e->allowed[w];
            nodes = e->usable;
        }
        if (choose(e, &e->free, job, nodes)) {
            start(e, job);
            started++;
        } else if (s->preempts && preempt(e, job, nodes)) started++;
        else if (inside >= 0) busy[inside] = 1;
        else if (outlook(e) && beyond(e, s->eligible + job * e->words, e->open) && !choose(e, &e->empty, job, e->open))
            continue; /* it waits for the end of a reservation */
        else if (!young(e, job)) {
            blocked[partition] = 1;
            for (int64_t w = 0; w < e->words; w++) e->allowed[w] &= ~e->partition_nodes[partition * e->words + w];
        }
    }
    return started;
}

/* The first instant at which the running jobs leave enough of the usable nodes; -1: none. The nodes are in `e->chosen`. */
static int64_t first_start(struct engine *e, int32_t job, int64_t now) {
    const struct setup *s = e->s;
    e->preempting = 0;
    if (choose(e, &e->free, job, e->usable)) return now;
    copy_free(e);
    const struct running *running = e->running;
    int64_t count = e->running_count;
    if (e->candidate_count) {
        for (int64_t k = 0; k < e->candidate_count; k++) {
            e->yields[e->candidates[k]] = 1;
            yield(e, e->candidates[k]);
        }
        e->preempting = choose(e, &e->expected, job, e->usable);
        count = 0;
        for (int64_t k = 0; k < e->running_count; k++)
            if (!e->yields[e->running[k].job]) e->rest[count++] = e->running[k];
        running = e->rest;
        for (int64_t k = 0; k < e->candidate_count; k++) e->yields[e->candidates[k]] = 0;
        if (e->preempting) return now;
    }
    int64_t window = WINDOW_S, barrier = -1, last = -1;
    for (int64_t k = 0; k < count; k++) {
        const struct running *own = &running[k];
        if (!overlaps(e, e->held + own->job * e->words, e->usable)) {
            if (k + 1 < count || last < 0) continue;
        } else {
            take(e, &e->expected, own->job, 1);
            last = own->end;
            if (barrier < 0) barrier = (last / WINDOW_S + 1) * WINDOW_S;
            if (k + 1 < count && own[1].end <= barrier + window) continue;
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
    gather(e, job);
    for (;;) {
        int64_t since = later;
        later = usable(e, job, since);
        if (outlook(e)) {
            open_nodes(e, job, since, now, e->open);
            for (int64_t w = 0; w < e->words; w++) e->usable[w] &= e->open[w];
            later = next_later(e, job, since, later);
        }
        if (count_of(e, e->usable) >= s->fewest[job]) {
            int64_t start = first_start(e, job, now);
            if (start >= 0) {
                if (start < since) start = since;
                if (!later || start <= later) {
                    if (start > now + s->bf_window * MINUTE_S) return -1;
                    mask_of_chosen(e, e->allowed);
                    int64_t begin = start / resolution * resolution, end = (start + s->limit[job]) / resolution * resolution;
                    int blocked = 0;
                    if (start > since && outlook(e)) {
                        open_nodes(e, job, start, now, e->open);
                        blocked = beyond(e, e->allowed, e->open);
                    }
                    if (!blocked && (start <= now || !overlap(e, begin, end, e->allowed))) return start;
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
    int32_t last = -1, skipped = -1;
    e->license_count = 0;
    for (int64_t k = 0; s->plan_licenses && k < e->running_count; k++) {
        int64_t until = e->running[k].end / s->bf_resolution * s->bf_resolution;
        hold_licenses(e, e->running[k].job, now, until > now + 1 ? until : now + 1);
    }
    for (int64_t k = 0; k < s->arrays; k++) {
        e->array_left[k] = s->array_most[k] ? s->array_most[k] - e->array_running[k] : -1; /* -1: any number */
        e->array_reserved[k] = 0;
    }
    for (int64_t k = 0; k < waiting; k++) {
        int32_t job = e->order[k], array = s->array[job];
        if (array < 0 || array != last) {
            if (s->bf_max_job_user && ++e->jobs_of_user[s->user[job]] > s->bf_max_job_user) continue;
            if (considered == s->bf_max_job_test) break;
            considered++;
        }
        last = array;
        if (array >= 0 && array == skipped) continue;
        if (array >= 0 && e->array_left[array] == 0) {
            skipped = array;
            continue;
        }
        if (s->license_kinds && !s->plan_licenses && !suffice(e, e->licenses, job)) continue;
        int64_t begin = plan(e, job, now);
        if (begin < 0) {
            skipped = array;
            continue;
        }
        if (array >= 0 && e->array_left[array] > 0) e->array_left[array]--;
        int began = 0, preempts = begin <= now && e->preempting;
        if (preempts) {
            began = preempt(e, job, e->usable);
            memcpy(e->allowed, e->victim_nodes, (size_t)e->words * sizeof *e->allowed);
        }
        if (began || (begin <= now && !preempts)) {
            hold_licenses(e, job, now, now + s->limit[job]);
            if (!began) start(e, job);
            if (++started == s->bf_max_job_start) {
                *left = 1;
                return started;
            }
        } else if (young(e, job) || (s->bf_job_part_count_reserve && reserved == s->bf_job_part_count_reserve)) skipped = array;
        else if (e->slot_count >= table) break;
        else {
            int64_t resolution = s->bf_resolution;
            reserved++;
            int64_t end = (begin + s->limit[job]) / resolution * resolution;
            begin = begin / resolution * resolution;
            reserve(e, begin, end, e->allowed);
            hold_licenses(e, job, begin, end);
            if (array >= 0 && ++e->array_reserved[array] >= s->array_reservations) skipped = array;
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
    if (s->sched_interval < 0) return INFINITY;
    double since = isnan(e->full_last) ? s->sched_phase_s : e->full_last, least = last + s->sched_loop_s;
    if (0 < s->sched_interval && (double)s->sched_interval < least - since) {
        double period = ceil((double)s->sched_interval / s->sched_loop_s) * s->sched_loop_s;
        since += (ceil((least - since) / period) - 1.0) * period;
    }
    double b = since + (double)s->sched_interval;
    return next_multiple(s->sched_loop_s, least > b ? least : b, s->sched_phase_s, 0);
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
    int event = e->arrived || e->freed || (!e->changed && now < less(due[0], due[1]) - ROUNDING_S);
    if (event || e->changed) {
        if (!isnan(e->bf_last) && e->s->bf_interval > 0 && e->waited) {
            double passes = ceil((now - e->bf_last) / interval(e) - ROUNDING_S) - 1.0;
            if (passes > 0) e->bf_last += passes * interval(e);
        }
        due[0] = less(due[0], event ? next_main(e) : next_full(e, now - e->s->sched_loop_s));
        if (event || e->waited || e->s->sched_interval < 0) due[1] = less(due[1], next_backfill(e, e->bf_last));
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
            e->upcoming--;
            if (event.kind == END && e->due[event.job] != e->now) continue; /* the job has been preempted */
            e->last = e->now;
            if (event.kind == CHANGE) e->changed = 1;
            else if (event.kind == NOTICE) e->freed = 1;
            else if (event.kind == SUBMIT) submit(e, event.job);
            else end(e, event.job);
            call = 1;
        }
    }
    return call;
}

static void simulate(struct engine *e) {
    const struct setup *s = e->s;
    int64_t held = 0;
    e->now = s->begin_s;
    e->to_start = s->watched ? 0 : -1;
    for (int64_t job = 0; job < s->jobs; job++)
        if (held < s->held_count && s->held[3 * held] == job) {
            for (e->chosen_count = 0; held < s->held_count && s->held[3 * held] == job; held++)
                e->chosen[e->chosen_count++] = (struct part){s->held[3 * held + 1], s->held[3 * held + 2]};
            run(e, (int32_t)job, s->since[job]);
        } else {
            at(e, s->submit[job] > s->begin_s ? s->submit[job] : s->begin_s, SUBMIT, (int32_t)job);
            if (job < s->watched) e->to_start++;
        }
    for (int64_t k = 0; k < s->notice_count; k++) at(e, s->notices[k], NOTICE, 0);
    for (int64_t k = 0; k < s->change_count; k++) at(e, s->changes[k], CHANGE, 0);
    if (s->age != 0 || s->fairshare != 0) at(e, s->first_period_s, COMPUTE, 0);
    while (e->now_left && e->to_start && !e->out_of_memory && e->event_count &&
           (e->upcoming || e->events[0].at <= e->last + GIVE_UP_S)) {
        e->now = e->events[0].at;
        if (!handle(e)) continue;
        e->wake = INFINITY;
        double again;
        do {
            again = decide(e);
            e->waited = e->ready_count;
            e->arrived = e->freed = e->changed = 0;
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
        e->jobs_of_user = calloc((size_t)s->users, sizeof(int32_t)), e->usage = calloc((size_t)s->users, sizeof(double)),
        e->ended = calloc((size_t)s->users, sizeof(double)), e->factor = calloc((size_t)s->users, sizeof(double)),
        e->accrued = malloc(jobs * sizeof(double)), e->state = calloc(jobs, 1), e->ready = calloc(jobs, 1),
        e->group_member = malloc(jobs * sizeof(int32_t)), e->group_running = calloc(jobs, sizeof(int32_t)),
        e->group_first = calloc(jobs + 1, sizeof(int64_t)), e->array_running = calloc(jobs, sizeof(int32_t)),
        e->array_waiting = calloc(jobs, sizeof(int32_t)), e->array_left = calloc(jobs, sizeof(int32_t)),
        e->array_reserved = calloc(jobs, sizeof(int32_t)), e->licenses = calloc((size_t)s->license_kinds + 1, sizeof(int64_t)),
        e->license_room = calloc((size_t)s->license_kinds + 1, sizeof(int64_t)),
        e->due = malloc(jobs * sizeof(double)), e->earliest = malloc(jobs * sizeof(double)),
        e->asleep_at = malloc(jobs * sizeof(double)), e->asleep_left = malloc(jobs * sizeof(double)), e->asleep = calloc(jobs, 1),
        e->level = calloc((size_t)s->classes, sizeof(int32_t)), e->candidates = malloc(jobs * sizeof(int32_t)), e->victims = malloc(jobs * sizeof(int32_t)),
        e->order_of = malloc(jobs * sizeof(int32_t)), e->overlap = malloc(jobs * sizeof(int32_t)), e->yields = calloc(jobs, 1),
        e->rest = malloc(jobs * sizeof *e->rest), e->victim_nodes = calloc(words, sizeof(uint64_t)),
        e->license_plan = malloc(2 * jobs * sizeof *e->license_plan), e->open = calloc(words, sizeof(uint64_t)),
    };
    enum { PIECES = sizeof pieces / sizeof *pieces };
    for (int k = 0; k < PIECES; k++) e->out_of_memory |= !pieces[k];
    if (!e->out_of_memory) {
        memcpy(e->free.cores, s->cores, nodes * sizeof(int32_t));
        memcpy(e->free.memory, s->memory, nodes * sizeof(int64_t));
        if (kinds) memcpy(e->free.gres, s->gres, nodes * kinds * sizeof(int32_t));
        for (size_t node = 0; node < nodes; node++) {
            e->node_order[node] = (int32_t)node;
            e->everything[node >> 6] |= 1ull << (node & 63);
            if (s->cores[node]) e->free.some[node >> 6] |= 1ull << (node & 63);
        }
        for (int64_t of = 0; of < s->classes * s->classes; of++) e->level[of / s->classes] += s->may[of];
        memcpy(e->licenses, s->licenses, (size_t)s->license_kinds * sizeof(int64_t));
        e->empty = (struct free_resources){(int32_t *)s->cores, (int32_t *)s->gres, (int64_t *)s->memory, e->everything};
        e->one_weight = 1;
        for (size_t node = 1; node < nodes; node++) e->one_weight &= s->weights[node] == s->weights[0];
        int32_t *by_number = s->groups ? e->node_order : NULL;
        qsort_r(e->node_order, nodes, sizeof *e->node_order, by_group, (void *)s->groups);
        e->node_order = by_number;
        for (size_t job = 0; job < jobs; job++)
            for (size_t w = 0; w < words; w++) e->partition_nodes[(size_t)s->partition[job] * words + w] |= s->eligible[job * words + w];
        for (int64_t user = 0; user < s->users; user++) e->factor[user] = s->factors ? s->factors[user] : 1.0;
        if (s->usage) {
            memcpy(e->usage, s->usage, (size_t)s->users * sizeof *e->usage);
            e->since = s->begin_s;
        }
        for (size_t job = 0; job < jobs; job++) {
            s->start[job] = s->launched[job] = s->end[job] = s->active[job] = NAN;
            s->fate[job] = s->restarts[job] = 0;
            e->earliest[job] = s->earliest[job];
            e->due[job] = NAN;
            e->accrued[job] = s->condition_first[job] == s->condition_first[job + 1] ? s->submit[job] : INFINITY;
            e->ready[job] = s->condition_first[job] == s->condition_first[job + 1] && s->earliest[job] == -INFINITY;
            if (s->group[job] >= 0) e->group_first[s->group[job] + 1]++;
        }
        for (size_t group = 0; group < jobs; group++) e->group_first[group + 1] += e->group_first[group];
        for (size_t job = jobs; job-- > 0;) /* backwards: group_first is each group's end, then its begin */
            if (s->group[job] >= 0) e->group_member[--e->group_first[s->group[job] + 1]] = (int32_t)job;
        memmove(e->group_first, e->group_first + 1, jobs * sizeof *e->group_first);
        simulate(e);
        for (size_t job = 0; job < jobs; job++)
            if (e->state[job] == CANCELLED) s->start[job] = NAN;
    }
    int64_t last_parts = 0;
    for (int64_t job = 0; job < s->jobs; job++) last_parts += e->part_size ? e->part_size[job] : 0;
    int64_t count = e->out_of_memory ? -1 : last_parts + e->stint_part_count / 2, k = 0;
    *s->stint_count = e->stint_count;
    if (count >= 0 && count <= room) {
        for (int64_t job = 0; job < s->jobs; job++)
            for (int32_t p = 0; p < e->part_size[job]; p++, k++) {
                const struct part *each = &e->parts[e->part_first[job] + p];
                parts[3 * k] = (int32_t)job, parts[3 * k + 1] = each->node, parts[3 * k + 2] = each->cores;
            }
        for (int64_t p = 0; p < e->stint_part_count; p += 2, k++) { /* those of a stint have the number jobs + stint */
            const struct part *each = &e->stint_parts[p + 1];
            parts[3 * k] = (int32_t)(s->jobs + e->stint_parts[p].node), parts[3 * k + 1] = each->node, parts[3 * k + 2] = each->cores;
        }
    }
    for (int k = 0; k < PIECES; k++) free(pieces[k]);
    for (int64_t k = 0; k < e->slot_room; k++) free(e->slots[k].nodes);
    free(e->slots), free(e->events), free(e->parts), free(e->stint_parts);
    return count;
}
