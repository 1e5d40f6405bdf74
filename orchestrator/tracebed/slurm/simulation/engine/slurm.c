/* Slurm on a cluster whose jobs share nodes: the same as tests/oracles/slurm_simulation, whose modules
 * have the rules and their sources. The results are equal to the bit. Sets of nodes are masks of `words` words. */
#define _GNU_SOURCE /* qsort_r */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "accounts.h"
#include "../../../orchestrator/simulation/engine/loops.h"
#include "../../../orchestrator/simulation/engine/slots.h"

#if __FLT_EVAL_METHOD__ != 0
#error "double arithmetic is not IEEE double on this platform"
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
    _(int64_t, users) _(int64_t, associations) \
    _(const double *, submit) _(const double *, run_time) _(const int64_t *, limit) _(const double *, launch_s) \
    _(const double *, overrun_s) _(const double *, over_limit_s) _(const double *, end_s) /* of each job */ \
    _(const int32_t *, wanted_cores) _(const int32_t *, per_node) _(const int32_t *, fewest) _(const uint8_t *, whole) \
    _(const int64_t *, wanted_memory) _(const uint8_t *, by_core) _(const int64_t *, wanted_gres) /* jobs x kinds */ \
    _(const uint8_t *, by_socket) _(const uint8_t *, least_loaded) _(const uint8_t *, one_thread) /* of each job */ \
    _(int64_t, sets) _(const uint64_t *, eligible) /* sets x words: the nodes eligible for jobs */ \
    _(const int32_t *, set) /* of each job */ \
    _(int64_t, classes) _(const int32_t *, class) /* of each job; jobs of one class differ in cores and fewest only */ \
    _(const int32_t *, partition) _(const int32_t *, user) \
    _(const double *, fixed) _(const int32_t *, tier) /* of each partition */ \
    _(const int32_t *, cores) _(const int64_t *, memory) _(const int64_t *, gres) /* nodes x kinds */ \
    _(const int32_t *, threads) /* null: 1 */ _(const int32_t *, sockets) /* cores of each node together; null: no sockets */ \
    _(const uint8_t *, kept) /* nodes x kinds; null: none */ \
    _(const int32_t *, weights) _(int64_t, switches) _(int64_t, select_rules) /* see Switches of resources.py */ \
    _(const uint64_t *, switch_nodes) /* switches x words */ _(const int32_t *, switch_level) \
    _(const int32_t *, switch_parent) _(const int32_t *, switch_distance) /* switches x switches */ \
    _(const int32_t *, parent) _(const double *, shares) _(const uint8_t *, is_user) /* of each association */ \
    _(const int64_t *, resets) _(int64_t, reset_count) _(double, half_life_s) _(int64_t, dampening) \
    _(const int32_t *, association) _(const double *, usage_factor) _(const uint8_t *, reserve) /* of each job */ \
    _(const double *, billing) /* partitions x (4 + kinds) */ _(int64_t, billing_most) \
    _(int64_t, counters) _(const int32_t *, limit_group) /* of each job */ _(const int32_t *, first_limit) /* of each group */ \
    _(const int32_t *, limit_counter) _(const int32_t *, limit_kind) _(const int64_t *, limit_most) \
    _(const int32_t *, first_counted) _(const int32_t *, counted) _(const int32_t *, counted_kind) \
    _(double, age) _(double, max_age_s) _(double, fairshare) _(double, period_s) \
    _(double, first_period_s) _(int64_t, kill_wait_s) _(double, check_s) \
    _(const double *, earliest) _(const int64_t *, condition_first) _(const uint8_t *, any_of) /* of each job */ \
    _(const uint8_t *, condition_kind) _(const int32_t *, condition_of) _(const double *, condition_delay) \
    _(const int32_t *, group) _(const uint8_t *, fails) /* of each job */ _(int64_t, kill_invalid) \
    _(const int32_t *, array) /* of each job */ _(const int32_t *, array_most) _(int64_t, arrays) _(int64_t, array_reservations) \
    _(const int32_t *, first_entry) _(const int32_t *, following) /* of each job, see Entries of inputs.py; -1: no further entry */ \
    _(int64_t, several) _(int64_t, one_reservation) \
    _(int64_t, job_depth) _(int64_t, part_test) _(int64_t, user_part_test) _(int64_t, complete_wait_s) \
    _(int64_t, license_kinds) _(const int64_t *, licenses) _(const int64_t *, wanted_licenses) /* jobs x kinds */ \
    _(int64_t, plan_licenses) _(const int32_t *, inside) /* of each job */ _(int64_t, bookings) \
    _(const int64_t *, booked_begin) _(const int64_t *, booked_end) _(const int64_t *, booked_kill) _(const uint8_t *, booked_flexible) \
    _(const uint64_t *, booked_nodes) /* bookings x words */ _(const double *, notices) _(int64_t, notice_count) \
    _(const double *, changes) _(int64_t, change_count) \
    _(const double *, out_at) _(const int32_t *, out_node) _(const uint8_t *, out_kind) _(int64_t, out_count) _(int64_t, requeues) /* see Availability */ \
    _(const int32_t *, stratum) /* of each job */ _(int64_t, strata) _(const uint8_t *, may) /* strata x strata */ \
    _(const int64_t *, rank) _(const int32_t *, mode) _(const int64_t *, grace) _(const double *, exempt) /* of each stratum */ \
    _(int64_t, preempts) _(int64_t, youngest) _(int64_t, again) \
    _(int64_t, sched_interval) _(int64_t, batch_sched_delay) _(int64_t, default_queue_depth) \
    _(int64_t, sched_max_job_start) _(int64_t, bf_interval) _(int64_t, bf_resolution) _(int64_t, bf_window) \
    _(int64_t, bf_max_job_test) _(int64_t, bf_max_job_start) _(int64_t, bf_max_job_user) _(int64_t, bf_node_space_size) \
    _(int64_t, bf_min_age_reserve) _(int64_t, bf_job_part_count_reserve) _(double, release) _(double, epoch_s) \
    _(double, sched_loop_s) \
    _(double, sched_phase_s) _(double, bf_loop_s) _(double, bf_phase_s) \
    _(double, begin_s) _(const double *, since) /* null: no job runs at the begin */ _(int64_t, held_count) \
    _(const int32_t *, held) /* (job, node, cores), by job */ _(const double *, usage) _(const double *, factors) \
    _(const int64_t *, shortest) _(const double *, deadline) _(const int32_t *, het_job) /* of each job, see Inputs; null: none */ \
    _(int64_t, resize_policy) /* -1: no layer, see Resizing of inputs.py */ _(double, resize_interval_s) _(double, resize_phase_s) \
    _(int64_t, expanders) _(const int32_t *, least) _(const int32_t *, preferred) _(const int32_t *, most) _(const int64_t *, rate_first) \
    _(const double *, rates) _(const int32_t *, expander) _(const uint8_t *, shrinks) _(const uint8_t *, grows) _(double, pause_s) _(double, release_s) \
    _(double, merge_s) _(double, merge_rank_s) _(int64_t, merged_counted) \
    _(const int64_t *, suspend_s) _(const int64_t *, suspend_timeout_s) _(const double *, boot_s) _(const uint8_t *, begins_off) \
    _(const uint64_t *, spared) /* of each node, see PowerSaving of inputs.py; null: no power saving */ \
    _(int64_t, kept_count) _(const uint64_t *, kept_nodes) /* kept_count x words */ _(const int64_t *, kept_least) \
    _(int64_t, suspend_rate) _(int64_t, resume_rate) _(int64_t, power_interval_s) _(int64_t, power_least_s) _(double, power_phase_s) \
    _(int64_t, power_linear) \
    _(int64_t, watched) _(int64_t, trial) /* whether the fates are only whether each job fits on the empty cluster */ \
    _(double *, start) _(double *, launched) _(double *, end) _(double *, active) /* results, of each job */ \
    _(int32_t *, fate) _(int32_t *, restarts) _(int32_t *, refused) /* results, of each job */ \
    _(int64_t *, range_first) _(int32_t *, range_size) /* results: the ranges of each job among those returned */
#define DECLARED(type, name) type name;
#define DESCRIBED(type, name) " " #type " " #name ";"
struct setup { SETUP(DECLARED) };

#ifndef WIDE
const char *tracebed_slurm_description(void) { return "setup:" SETUP(DESCRIBED) "\n"; }
int64_t tracebed_slurm_setup_size(void) { return sizeof(struct setup); }
void tracebed_slurm_free(void *results) { free(results); }
#endif

enum { SUBMIT, END, COMPUTE, WAKE, CHANGE, NOTICE, OUTAGE, LOOK, BOOTED, BEGIN, LAYER, SHRUNK, JOINED };
enum { ENDED, KILLED, PREEMPTED, LOST }; /* fates */
enum { BACK, DRAINED, DOWN };              /* what becomes of a node */
enum { MINUTE_S = 60, WINDOW_S = 30 };
enum { CORES, MEMORY, NODES, BILLING, GRES }; /* the amounts of a job */
enum { BLOCK = 32 }; /* running jobs whose nodes are summarized */
enum { SHIFT = 5, MANY = 8192 }; /* 1 << SHIFT nodes are between two masks of an order of nodes, twice as many for MANY nodes */
enum { VIEW_BYTES = 1 << 26 }; /* of all views: of more classes, some take turns */
enum { CANCEL, REQUEUE, SUSPEND };    /* what happens to a preempted job */
static const double ROUNDING_S = 1e-6, GIVE_UP_S = 86400.0, CHECK_S = 30.0;

struct event { double at; int64_t sequence; int32_t kind, job; };
struct part { int32_t node, cores; };
struct load { int32_t node, cores, weight, free; };
struct range { int32_t first, count, cores; }; /* consecutive nodes, and the cores on each */
struct bits { int32_t word; uint64_t nodes; };
struct running { int64_t end; int32_t job, words; struct bits first; /* words of its nodes, and the first one */ };
struct stint { double start, end; int64_t range_first; int32_t range_size, job; };
struct resized { double asked, decided, applied, ended; int32_t job, before, after; };
struct switched { double at; int32_t node, on; };
struct held_licenses { int64_t begin, end; int32_t job; };
struct free_resources { int32_t *cores; int64_t *gres, *memory; };
struct tree { /* scratch of a choice of nodes below switches, see switches.h */
    uint64_t *rest, *below, *among, *lighter, *inside /* switches x words */;
    int32_t *count, *near; int64_t *size; uint8_t *used;
};
struct group { int32_t first, count, weight; int64_t size, waste; }; /* waste: by which groups compare */

/* The layer that resizes running jobs, see layer.h. */
struct release { int32_t job, node, cores; };
struct resizable { int32_t job, size, least, preferred, most; };

struct layer {
    int32_t *asking, *owner /* of each expander; -1: it is none */, *wanted, *largest, *size;
    double *asked, *shrink_at /* NaN: no expander, no shrink */, *done, *since;
    uint64_t **leaving; /* the nodes that each job is about to leave */
    int64_t asking_count, running /* malleable jobs */, touched, count /* of the following */;
    struct resizable *jobs, *growing;
    struct release *releases; int64_t release_count, release_room;
    uint64_t *closed, *able /* of each growing job */, *taken;
    int64_t head_cores, head_nodes; /* that the first waiting job of a partition can use */
    double next;
    struct resized *resizes; int64_t resize_count, resize_room;
};

/* The power of the nodes, see power.h. */
struct power {
    uint8_t *state; int64_t *since; /* second since when each node is idle, or falls */
    uint64_t *sleepy /* idle nodes that may be switched off */, *falling, *waking, *kept;
    int64_t sleepy_count, falling_count, soonest /* second after which a sleepy node is switched off */;
    int32_t *jobs; int64_t job_count; double *ready_at; /* the jobs that wait for their nodes, and when they begin */
    int wanted; /* whether any of them waits for a node that is off */
    double due, last, recent_off, recent_on; /* next and last look; nodes switched lately, less as time passes */
    int64_t looked, touched; /* seconds of the last look, and of the last change of a node */
    struct switched *switched; int64_t switched_count, switched_room;
};

struct engine {
    const struct setup *s;
    int64_t words, now_left, to_start; /* to_start < 0: the simulation ends with the last job */
    struct event *events; int64_t event_count, event_room, sequence;
    struct range *ranges; int64_t range_count, range_room; /* of all jobs that have started */
    struct bits *bits; int64_t bits_count, bits_room; int64_t *bits_first; int32_t *bits_size; /* the same nodes */
    struct free_resources free, expected, empty;
    struct running *running; int64_t running_count; int64_t *due; /* expected end of each running job */
    struct holders *holders; uint64_t *alone; /* the nodes that one job holds */
    uint64_t *held; int64_t held_room, held_at; /* the nodes that each BLOCK running jobs hold, and the change of nodes they know */
    uint32_t *version; /* of each node */
    int32_t *changed; int64_t change_count, change_room; /* the nodes whose free resources have changed, as a ring */
    struct view *views; int64_t view_count; int shift /* see `order_nodes` */; struct class *classes;
    int32_t *queue, *order; int64_t queue_count, arrived; int unsorted;
    int64_t *priority, *limit; /* with which each job is planned, and starts */
    int64_t component_count, *planned_start; int32_t *components, *planned_entry, *group_size, *members; /* see het_jobs.h */
    uint64_t *taken; int64_t *used_before;
    uint64_t *everything, *up /* nodes without an outage */, *partition_nodes, *usable, *allowed, *then, *later, *picked;
    struct slots slots; int64_t slots_at; /* the change of nodes that its orders know */
    struct tree tree;
    int one_weight; /* of all nodes */
    struct part *capacity, *chosen; struct load *by_load; int32_t chosen_count; struct group *group; int32_t *heap; struct block *blocks; uint8_t *used; int32_t *share, *room, alike;
    int32_t *jobs_of_user, *jobs_of_part, *jobs_of_both;
    struct shares shares;
    struct limits limits;
    int64_t *amounts; /* of one job */
    double *billed; /* of each running job */
    double now, wake, last /* event or start */; int freed, changed_later, noticed /* see slurm_backfill.py */; int64_t upcoming;
    double *accrued /* since when each job waits, for its age */, *earliest; uint8_t *state, *ready;
    int64_t unready, ready_count /* of the queue */, waited; int32_t *group_member, *group_running; int64_t *group_first;
    int32_t *array_running, *array_waiting, *array_left, *array_reserved;
    int64_t *licenses /* free */, *license_room, license_count; struct held_licenses *license_plan; /* of a pass */
    uint64_t *open /* nodes that reservations leave */, *victim_nodes;
    double *ends /* the valid event at the end of each job */, *asleep_at, *asleep_left; uint8_t *asleep, *yielding /* strata that some stratum preempts */, *yields, *withdrawn /* the job has started as another entry */, *booked /* has a reservation in this pass */;
    int64_t asleep_count, candidate_count, victim_count; int preempting;
    int32_t *level /* number of strata that a stratum preempts */, *candidates, *victims, *order_of, *overlap;
    struct running *rest; struct stint *stints; int64_t stint_count, stint_room;
    struct loops loops;
    struct layer layer;
    struct power power;
    int32_t *weights; /* of each node; a node that is off comes last */
    int out_of_memory;
};

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
    e->upcoming += kind != COMPUTE && kind != WAKE && kind != LOOK;
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

#include "views.h"
#include "switches.h"

/* -- the choice of nodes ------------------------------------------------------------------------------------------- */

/* Whether group `a` comes before `b` while none suffices. */
static int larger(const struct group *group, int32_t a, int32_t b) {
    if (group[a].weight != group[b].weight) return group[a].weight < group[b].weight;
    return group[a].waste > group[b].waste || (group[a].waste == group[b].waste && a < b);
}

static void sift(const struct group *group, int32_t *heap, int32_t count, int32_t at) {
    int32_t own = heap[at];
    for (int32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && larger(group, heap[child + 1], heap[child])) child++;
        if (!larger(group, heap[child], own)) break;
        heap[at] = heap[child];
    }
    heap[at] = own;
}

static int by_load(const void *a, const void *b) {
    const struct load *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? -1 : 1;
    if (x->free != y->free) return x->free > y->free ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

/* Choose a node, of which `job` can use `able` cores, if it leaves enough of the `cores` that the job still needs for the
 * other ones of the `fewest` nodes: one core on each. */
static void pick(struct engine *e, const struct free_resources *free, int32_t job, int32_t node, int64_t able, int64_t *cores, int64_t *fewest) {
    int64_t most = *cores - (*fewest > 1 ? *fewest - 1 : 0), taken = !e->s->whole[job] && most < able ? most : able;
    if (taken < 1) return;
    e->chosen[e->chosen_count++] = (struct part){node, held_on(e->s, free, job, node, (int32_t)taken)};
    *cores -= taken;
    --*fewest;
}

/* `spread` over the nodes with the most free cores. */
static int spread_by_load(struct engine *e, const struct free_resources *free, int32_t job, int32_t count, int32_t weight, int one) {
    const struct setup *s = e->s;
    int64_t cores = s->wanted_cores[job], fewest = s->fewest[job];
    int32_t able = 0;
    for (int32_t k = 0; k < count; k++) {
        int32_t node = e->capacity[k].node, own = e->weights[node];
        if (own <= weight) e->by_load[able++] = (struct load){node, one ? 1 : e->capacity[k].cores, own, free->cores[node]};
    }
    qsort(e->by_load, (size_t)able, sizeof *e->by_load, by_load);
    e->chosen_count = 0;
    for (int32_t k = 0; k < able && (cores > 0 || fewest > 0); k++) {
        const struct load *each = &e->by_load[k];
        pick(e, free, job, each->node, each->cores, &cores, &fewest);
    }
    return cores <= 0 && fewest <= 0;
}

/* Distribute the cores of `job` over the nodes of weight <= `weight` in `e->capacity` (by group). `free`: what is
 * free. Return whether the job fits. */
static int spread(struct engine *e, const struct free_resources *free, int32_t job, int32_t count, int32_t weight) {
    const struct setup *s = e->s;
    int64_t cores = s->wanted_cores[job], fewest = s->fewest[job];
    int32_t groups = 0, before_node = -2, before_group = -1; /* the node before, and its weight */
    int gres = 0; /* whether the job wants generic resources */
    for (int64_t k = 0; k < s->kinds; k++) gres |= s->wanted_gres[job * s->kinds + k] > 0;
    int one = gres && cores == 1 && !s->whole[job];
    if (s->least_loaded[job]) return spread_by_load(e, free, job, count, weight, one);
    for (int32_t k = 0; k < count; k++) {
        struct part *each = &e->capacity[k];
        if (e->weights[each->node] > weight) continue;
        if (one) each->cores = 1;
        int32_t own = s->power_linear ? s->weights[each->node] : e->weights[each->node];
        if (!groups || own != before_group || each->node != before_node + 1)
            e->group[groups++] = (struct group){k, 0, own, 0, 0};
        e->group[groups - 1].count++;
        e->group[groups - 1].size += each->cores;
        e->group[groups - 1].waste += gres ? each->cores : free->cores[each->node];
        before_node = each->node;
        before_group = own;
    }
    memset(e->used, 0, (size_t)groups);
    e->chosen_count = 0;
    int64_t most_cores = INT64_MAX, most_nodes = INT64_MAX; /* of a group */
    int32_t heap = -1; /* length of `e->heap`, the groups by size; -1: it is not made */
    while (cores > 0 || fewest > 0) {
        int32_t best = -1;
        int sufficient = 0, some = cores <= most_cores && fewest <= most_nodes; /* whether some group may suffice */
        if (!some && heap < 0) {
            for (heap = 0; heap < groups; heap++) e->heap[heap] = heap;
            for (int32_t k = heap / 2 - 1; k >= 0; k--) sift(e->group, e->heap, heap, k);
        }
        while (!some && heap && best < 0) {
            if (!e->used[e->heap[0]]) best = e->heap[0];
            e->heap[0] = e->heap[--heap];
            if (heap) sift(e->group, e->heap, heap, 0);
        }
        if (some) most_cores = most_nodes = 0;
        for (int32_t g = 0; g < groups && some; g++) {
            if (e->used[g]) continue;
            if (e->group[g].size > most_cores) most_cores = e->group[g].size;
            if (e->group[g].count > most_nodes) most_nodes = e->group[g].count;
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
        int32_t alone = -1; /* the node of the group that suffices: that with the fewest cores, see `_in_order` */
        if (fewest <= 1)
            for (int32_t k = e->group[best].first, left = e->group[best].count; left; k++, left--) {
                struct part *own = &e->capacity[k], *other = &e->capacity[alone < 0 ? k : alone];
                if (own->cores < cores) continue;
                if (alone < 0 || (gres || s->release >= NEWER ? own->cores < other->cores : free->cores[own->node] < free->cores[other->node])) alone = k;
            }
        if (alone >= 0) e->group[best] = (struct group){alone, 1, 0, 0, 0};
        for (int32_t k = e->group[best].first, left = e->group[best].count; left && (cores > 0 || fewest > 0); k++) {
            struct part *each = &e->capacity[k];
            if (e->weights[each->node] > weight) continue;
            left--;
            pick(e, free, job, each->node, each->cores, &cores, &fewest);
        }
    }
    return 1;
}

/* The number of nodes with room that `job` needs at least. */
static int64_t nodes_for(const struct engine *e, int32_t job) {
    int64_t unit = e->classes[e->s->class[job]].unit, fewest = e->s->fewest[job];
    int64_t full = unit ? (e->s->wanted_cores[job] + unit - 1) / unit : 0;
    return full > fewest ? full : fewest;
}

/* `spread` for a job that needs one of the nodes `able` of one weight, of which it can use `cores`, if one suffices in the
 * best group of consecutive nodes. Return whether it does. */
static int choose_one(struct engine *e, int32_t job, const uint64_t *able, const int32_t *cores, const struct free_resources *free) {
    const struct setup *s = e->s;
    int32_t wanted = s->wanted_cores[job], best = -1, node = -1, before = -2;
    int gres = 0; /* whether the job wants generic resources */
    for (int64_t k = 0; k < s->kinds; k++) gres |= s->wanted_gres[job * s->kinds + k] > 0;
    int one = gres && wanted == 1 && !s->whole[job], by_cores = gres || s->release >= NEWER;
    int64_t size = 0, waste = 0, least = INT64_MAX;
    for (int64_t w = 0; w <= e->words; w++)
        for (uint64_t left = w < e->words ? able[w] : 1; left; left &= left - 1) {
            int32_t own = (int32_t)(64 * w + __builtin_ctzll(left));
            if (own != before + 1 || w == e->words) { /* another group */
                if (size >= wanted && waste < least) least = waste, best = node;
                size = waste = 0, node = -1, before = own;
                if (w == e->words) break;
            }
            int32_t here = one ? 1 : cores[own], there = node < 0 ? 0 : by_cores ? one ? 1 : cores[node] : free->cores[node];
            if (here >= wanted && (node < 0 || (by_cores ? here : free->cores[own]) < there)) node = own;
            size += here;
            waste += gres ? here : free->cores[own];
            before = own;
        }
    if (best < 0) return 0;
    memset(e->picked, 0, (size_t)e->words * sizeof *e->picked);
    e->picked[best >> 6] = 1ull << (best & 63);
    e->share[best] = held_on(s, free, job, best, s->whole[job] ? cores[best] : wanted);
    return 1;
}

/* Whether `job` uses all cores of each of its nodes, which are alike. */
static int in_blocks(const struct engine *e, int32_t job) {
    const struct class *class = &e->classes[e->s->class[job]];
    int64_t cores = e->s->wanted_cores[job];
    return class->blocks && (e->s->whole[job] || (cores % class->unit == 0 && e->s->fewest[job] <= cores / class->unit));
}

/* Choose nodes for `job` among the nodes `able`, of which it can use `cores`. `free`: what is free. The
 * result is the mask `e->picked`, and `e->share`, the cores of each node. Return whether the nodes suffice. */
static int choose_of(struct engine *e, int32_t job, const uint64_t *able, const int32_t *cores, const struct free_resources *free) {
    const struct setup *s = e->s;
    const struct class *class = &e->classes[s->class[job]];
    int32_t count = 0;
    int64_t cores_left = s->wanted_cores[job], nodes_left = s->fewest[job];
    if (class->unit) {
        int64_t wanted = (cores_left + class->unit - 1) / class->unit;
        if (wanted < nodes_left) wanted = nodes_left;
        if (nodes_in(e->words, able) < wanted) return 0;
        if (in_blocks(e, job)) {
            best_fit(e->words, able, wanted, e->picked, e->blocks);
            e->alike = class->unit;
            return 1;
        }
    }
    e->alike = 0;
    if (nodes_left <= 1 && e->one_weight && !s->switches && !s->least_loaded[job] && choose_one(e, job, able, cores, free)) return 1;
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = able[w]; left; left &= left - 1) {
            int32_t node = (int32_t)(64 * w + __builtin_ctzll(left));
            e->capacity[count++] = (struct part){node, cores[node]};
            cores_left -= cores[node], nodes_left--;
        }
    if (cores_left > 0 || nodes_left > 0) return 0;
    if (s->switches && !s->least_loaded[job]) return choose_switches(e, job, able, cores, free);
    int fits = e->one_weight && spread(e, free, job, count, s->weights[0]);
    int32_t weight = INT32_MIN;
    while (!e->one_weight && !fits) { /* the weights of the nodes in ascending order */
        int32_t next = INT32_MAX;
        int more = 0;
        for (int32_t k = 0; k < count; k++) {
            int32_t own = e->weights[e->capacity[k].node];
            if ((own > weight || weight == INT32_MIN) && own <= next && own != weight) {
                next = own;
                more = 1;
            }
        }
        if (!more) break;
        weight = next;
        int64_t sum = 0, nodes = 0;
        for (int32_t k = 0; k < count; k++)
            if (e->weights[e->capacity[k].node] <= weight) {
                sum += e->capacity[k].cores;
                nodes++;
            }
        fits = sum >= s->wanted_cores[job] && nodes >= s->fewest[job] && spread(e, free, job, count, weight);
    }
    if (!fits) return 0;
    memset(e->picked, 0, (size_t)e->words * sizeof *e->picked);
    for (int32_t k = 0; k < e->chosen_count; k++) {
        int32_t node = e->chosen[k].node;
        e->picked[node >> 6] |= 1ull << (node & 63);
        e->share[node] = e->chosen[k].cores;
    }
    return 1;
}

/* Whether the free resources of all nodes together suffice for `job`. */
static int may_fit(struct engine *e, int32_t job) {
    const struct view *v = view_of(e, job);
    return v->sum >= e->s->wanted_cores[job] && v->count >= e->s->fewest[job];
}

/* Whether the plan may leave enough nodes for a start of `job` now. Starts and reservations only remove some. */
static int may_start(struct engine *e, int32_t job) {
    if (e->s->het_job && e->s->het_job[job] >= 0) return 1; /* at the end of the pass */
    if (e->level[e->s->stratum[job]]) return 1; /* by preemption */
    if (!may_fit(e, job)) return 0;
    return common(e->words, slots_now(&e->slots, e->limit[job]), view_of(e, job)->able) >= nodes_for(e, job);
}

/* Choose nodes for `job` now among the `usable` ones. Return whether enough are free. */
static int choose(struct engine *e, int32_t job, const uint64_t *usable) {
    if (!may_fit(e, job)) return 0;
    const struct view *v = view_of(e, job);
    for (int64_t w = 0; w < e->words; w++) e->then[w] = usable[w] & v->able[w];
    return choose_of(e, job, e->then, v->cores, &e->free);
}

/* Choose nodes for `job` among the `usable` ones if the resources `free` are free. */
static int choose_with(struct engine *e, const struct free_resources *free, int32_t job, const uint64_t *usable) {
    const struct setup *s = e->s;
    const uint64_t *eligible = s->eligible + s->set[job] * e->words;
    int64_t cores = s->wanted_cores[job], nodes = s->fewest[job];
    for (int64_t w = 0; w < e->words; w++) {
        e->then[w] = 0;
        for (uint64_t left = usable[w] & eligible[w]; left; left &= left - 1) {
            int32_t node = (int32_t)(64 * w + __builtin_ctzll(left)), own = capacity(s, free, job, node);
            if (!own) continue;
            e->then[w] |= left & -left;
            e->room[node] = own;
            cores -= own, nodes--;
        }
    }
    return cores <= 0 && nodes <= 0 && choose_of(e, job, e->then, e->room, free);
}

/* Whether `job` fits on the `usable` nodes when they are empty. */
static int fits_empty(struct engine *e, int32_t job, const uint64_t *usable) {
    const struct class *class = &e->classes[e->s->class[job]];
    if (!class->step || !class->unit || e->s->switches || e->s->wanted_cores[job] < e->s->fewest[job])
        return choose_with(e, &e->empty, job, usable);
    return common(e->words, usable, view_of(e, job)->empty) >= nodes_for(e, job);
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

static const int64_t *amounts(struct engine *e, int32_t job, int64_t cores, int64_t memory, int64_t nodes) {
    e->amounts[CORES] = cores, e->amounts[MEMORY] = memory, e->amounts[NODES] = nodes, e->amounts[BILLING] = 0;
    for (int64_t k = 0; k < e->s->kinds; k++) e->amounts[GRES + k] = e->s->wanted_gres[job * e->s->kinds + k] * nodes;
    e->amounts[BILLING] = (int64_t)billed(e, job);
    return e->amounts;
}

/* The amounts that `job` requests. */
static const int64_t *amounts_wanted(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    int64_t memory = s->wanted_memory[job] > 0 ? s->wanted_memory[job] : 0;
    return amounts(e, job, s->wanted_cores[job], memory * (s->by_core[job] ? s->wanted_cores[job] : s->fewest[job]), s->fewest[job]);
}

/* The amounts that `job` gets on the nodes of the last choice. */
static const int64_t *amounts_picked(struct engine *e, int32_t job) {
    int64_t cores = 0, memory = 0, nodes = 0;
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = e->picked[w]; left; left &= left - 1, nodes++) {
            int32_t node = (int32_t)(64 * w + __builtin_ctzll(left)), own = e->alike ? e->alike : e->share[node];
            cores += own;
            memory += memory_of(e->s, job, node, own);
        }
    return amounts(e, job, cores, memory, nodes);
}

/* The amounts that `job` holds. */
static const int64_t *amounts_held(struct engine *e, int32_t job) {
    const struct range *ranges = e->ranges + e->s->range_first[job];
    int64_t cores = 0, memory = 0, nodes = 0;
    for (int32_t r = 0; r < e->s->range_size[job]; r++)
        for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--, nodes++) {
            cores += ranges[r].cores;
            memory += memory_of(e->s, job, node, ranges[r].cores);
        }
    return amounts(e, job, cores, memory, nodes);
}

/* Whether a limit of resources holds a job that requests its amounts, or that gets the nodes of the last choice. */
static int exceeds(struct engine *e, int32_t job, int picked) {
    return e->limits.counters && exceeded(&e->limits, job, picked ? amounts_picked(e, job) : amounts_wanted(e, job));
}

static int64_t whole_second(const struct engine *e, double instant) { return loops_second(&e->loops, instant); }

static void use_of(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    use(&e->shares, s->association[job], e->billed[job] * s->usage_factor[job], whole_second(e, s->start[job]), whole_second(e, e->now));
}

/* -- priorities ----------------------------------------------------------------------------------------------------- */

static void rank_job(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    double accrued = e->accrued[job], share = s->association[job] < 0 ? 0.0 : e->shares.factor[s->association[job]];
    double age = accrued < INFINITY ? (double)(whole_second(e, e->now) - whole_second(e, accrued)) / s->max_age_s : 0.0;
    if (!(age < 1.0)) age = 1.0;
    if (!(age > 0.0)) age = 0.0;
    e->priority[job] = (int64_t)floor(s->fixed[job] + s->age * age + s->fairshare * share);
}

static void compute(struct engine *e) {
    int64_t now = whole_second(e, e->now);
    decay_usage(&e->shares, now);
    for (int64_t k = 0; k < e->running_count; k++) use_of(e, e->running[k].job);
    e->shares.since = now;
    rank_users(&e->shares);
    for (int64_t k = 0; k < e->queue_count; k++) rank_job(e, e->queue[k]);
    e->unsorted = 1;
}

#include "conditions.h"

/* -- jobs ----------------------------------------------------------------------------------------------------------- */

/* Note the nodes chosen for `job` as ranges and as words of a mask. */
static void note_nodes(struct engine *e, int32_t job) {
    if (!grow((void **)&e->bits, &e->bits_room, e->bits_count + e->words, sizeof *e->bits) ||
        !grow((void **)&e->ranges, &e->range_room, e->range_count + e->s->nodes, sizeof *e->ranges)) {
        e->out_of_memory = 1;
        return;
    }
    e->bits_first[job] = e->bits_count;
    e->s->range_first[job] = e->range_count;
    struct range *last = NULL;
    for (int64_t w = 0; w < e->words; w++) {
        if (!e->picked[w]) continue;
        e->bits[e->bits_count++] = (struct bits){(int32_t)w, e->picked[w]};
        for (uint64_t left = e->picked[w]; left; left &= left - 1) {
            int32_t node = (int32_t)(64 * w + __builtin_ctzll(left)), cores = e->alike ? e->alike : e->share[node];
            if (last && last->first + last->count == node && last->cores == cores && e->s->cores[node - 1] == e->s->cores[node]) last->count++;
            else {
                last = &e->ranges[e->range_count++];
                *last = (struct range){node, 1, cores};
            }
        }
    }
    e->bits_size[job] = (int32_t)(e->bits_count - e->bits_first[job]);
    e->s->range_size[job] = (int32_t)(e->range_count - e->s->range_first[job]);
}

/* Insert `job` into the running jobs, which are in the order of their expected ends. */
static void insert_running(struct engine *e, int32_t job) {
    struct running own = {e->due[job], job, e->bits_size[job], e->bits[e->bits_first[job]]};
    int64_t k = e->running_count++;
    for (; k && earlier(own.end, job, e->running[k - 1].end, e->running[k - 1].job); k--) e->running[k] = e->running[k - 1];
    e->running[k] = own;
}

static void remove_running(struct engine *e, int32_t job) {
    FIRST(place, e->running_count, !earlier(e->running[place].end, e->running[place].job, e->due[job], job))
    memmove(e->running + place, e->running + place + 1, (size_t)(--e->running_count - place) * sizeof *e->running);
}

/* When slurmctld kills a job with the limit `most` that started at `instant`; it tolerates `allowed` seconds. */
static double killed_at(const struct engine *e, int32_t job, double instant, int64_t most, double allowed) {
    const struct setup *s = e->s;
    if (!isnan(s->overrun_s[job])) return instant + (double)most + s->overrun_s[job];
    double end = (double)whole_second(e, instant) + allowed;
    return multiple_after(CHECK_S, end - s->epoch_s, s->check_s, 0);
}

/* The time after its start in which a job is not preempted. */
static double exempt_of(const struct setup *s, int32_t job) {
    int32_t own = s->stratum[job];
    return s->mode[own] == SUSPEND ? 0.0 : s->exempt[own];
}

/* Note when the time lapses in which a job that has started is not preempted. No event tells slurmctld of it. */
static void lapse(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    double exempt = exempt_of(s, job);
    if (!s->preempts || exempt == 0.0 || !e->yielding[s->stratum[job]]) return;
    double instant = (double)whole_second(e, s->start[job]) + exempt - s->epoch_s;
    if (e->now < instant && instant < e->ends[job]) at(e, instant, CHANGE, job);
}

/* Let `job` end when its work is done at `end`, after it `ran`, unless Slurm kills it at the limit `most`. */
static void ends(struct engine *e, int32_t job, double end, double ran, int64_t most) {
    const struct setup *s = e->s;
    double allowed = (double)most + (most == e->limit[job] ? s->over_limit_s[job] : 0.0);
    if (ran > (double)most) end = sooner_of(end, killed_at(e, job, s->start[job], most, allowed));
    s->fate[job] = ran > allowed ? KILLED : ENDED;
    s->end[job] = end > e->now ? end : e->now;
    e->ends[job] = s->end[job] + s->end_s[job];
    at(e, e->ends[job], END, job);
}

/* Let a job hold the nodes of its ranges. */
static void occupy(struct engine *e, int32_t job) {
    take(e, &e->free, job, -1);
    hold(e, job);
    const int64_t *amounts = amounts_held(e, job);
    e->billed[job] = billed(e, job);
    count_job(&e->limits, job, amounts, 1);
    insert_running(e, job);
}

/* Release what a job holds, and record its use until now. */
static void vacate(struct engine *e, int32_t job) {
    take(e, &e->free, job, 1);
    leave(e, job);
    remove_running(e, job);
    use_of(e, job);
    if (e->limits.counters) count_job(&e->limits, job, amounts_held(e, job), -1);
}

static void layer_started(struct engine *e, int32_t job);
static void expect(struct engine *e, int32_t job, int64_t end);

#include "power.h"

/* Let `job` begin at `instant` on nodes that run. Slurm counts its start, and its limit, from then on. */
static void begin(struct engine *e, int32_t job, double instant) {
    const struct setup *s = e->s;
    if (s->start[job] != instant) {
        s->start[job] = s->active[job] = instant;
        if (s->end[job] < INFINITY) return; /* it is preempted */
        expect(e, job, whole_second(e, instant) + e->limit[job]);
    }
    s->launched[job] = instant + s->launch_s[job];
    int64_t most = e->limit[job]; /* a job ends with its reservation */
    if (s->inside[job] >= 0 && !s->booked_flexible[s->inside[job]]) {
        int64_t left = s->booked_kill[s->inside[job]] - whole_second(e, instant);
        if (left < most) most = left > 0 ? left : 0;
    }
    ends(e, job, s->launched[job] + s->run_time[job], s->run_time[job], most);
    lapse(e, job);
}

/* Let `job` run on the nodes of the last choice since `instant`. */
static void run(struct engine *e, int32_t job, double instant) {
    const struct setup *s = e->s;
    note_nodes(e, job);
    if (e->out_of_memory) return;
    e->due[job] = whole_second(e, instant) + e->limit[job];
    occupy(e, job);
    count_running(e, job, 1);
    s->start[job] = s->active[job] = instant;
    if (power_started(e, job)) s->end[job] = INFINITY;
    else begin(e, job, instant);
    set_state(e, s->first_entry[job], RUNNING);
    e->last = e->now;
    layer_started(e, job);
}

static int waits(const struct engine *e, int32_t job) {
    for (int64_t k = 0; k < e->queue_count; k++)
        if (e->queue[k] == job) return 1;
    return 0;
}

/* Remove `job` from the queue. */
static void unqueue(struct engine *e, int32_t job) {
    int64_t k = 0;
    while (e->queue[k] != job) k++;
    memmove(e->queue + k, e->queue + k + 1, (size_t)(--e->queue_count - k) * sizeof *e->queue);
    if (e->ready[job]) count_ready(e, job, -1);
    else e->unready--;
}

/* Start `job` on the nodes of the last choice. Its entries of other partitions leave the queue. */
static void start(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    int32_t first = s->first_entry[job];
    for (int32_t each = first; each >= 0; each = s->following[each]) {
        unqueue(e, each);
        e->withdrawn[each] = 1;
        if (each < s->watched && !s->restarts[first]) e->to_start--;
    }
    run(e, job, e->now);
}

static int by_priority(const void *a, const void *b, void *engine) {
    const struct engine *e = engine;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    int32_t level_x = e->level[e->s->stratum[x]], level_y = e->level[e->s->stratum[y]];
    if (level_x != level_y) return level_x > level_y ? -1 : 1;
    int outside_x = e->s->inside[x] < 0, outside_y = e->s->inside[y] < 0;
    if (outside_x != outside_y) return outside_x - outside_y;
    int32_t tier_x = e->s->tier[e->s->partition[x]], tier_y = e->s->tier[e->s->partition[y]];
    if (tier_x != tier_y) return tier_x > tier_y ? -1 : 1;
    if (e->priority[x] != e->priority[y]) return e->priority[x] > e->priority[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Add `job` to the queue, whose order is kept until priorities are computed again. */
static void enqueue(struct engine *e, int32_t job) {
    rank_job(e, job);
    int64_t k = e->queue_count++;
    if (!e->unsorted)
        for (; k && by_priority(&job, &e->queue[k - 1], e) < 0; k--) e->queue[k] = e->queue[k - 1];
    e->queue[k] = job;
}

static int64_t needed(const struct engine *e, int32_t job);

static void submit(struct engine *e, int32_t job) {
    int32_t first = e->s->first_entry[job];
    if (job == first) {
        e->s->refused[job] = reached(&e->limits, job, SUBMITTED);
        count_job(&e->limits, job, NULL, 1);
    }
    if (e->s->refused[first] >= 0) {
        forget(e, job, STUCK);
        return;
    }
    enqueue(e, job);
    if (e->ready[job]) count_ready(e, job, 1);
    else e->unready++;
    e->arrived++;
    if (e->earliest[job] > e->now) {
        if (e->accrued[job] < e->earliest[job]) e->accrued[job] = e->earliest[job];
        at(e, e->earliest[job], CHANGE, job);
    }
    if (e->s->deadline && e->s->deadline[job] < INFINITY) {
        double late = e->s->deadline[job] - (double)needed(e, job) + 1.0;
        at(e, late > e->now ? late : e->now, CHANGE, job);
    }
}

#include "preemption.h"

static int is_expander(const struct engine *e, int32_t job);
static void layer_ended(struct engine *e, int32_t job);
static void withdraw(struct engine *e, int32_t entry);

static void end(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    layer_ended(e, job);
    e->ends[job] = NAN; /* a job that is suspended and resumes at once has two events at its end */
    vacate(e, job);
    power_ended(e, job);
    count_running(e, job, -1);
    int state = s->fate[job] != ENDED || s->fails[job] ? FAILED : DONE;
    int32_t first = s->first_entry[job];
    if (requeued(e, job)) set_state(e, first, WAITING);
    else {
        set_state(e, first, state);
        count_job(&e->limits, first, NULL, -1);
        for (int32_t each = first; each >= 0; each = s->following[each]) e->now_left--;
    }
    resume(e);
    e->freed = 1;
}

/* Begin or end an outage of a node. Jobs on a node that is down end now. */
static void change_node(struct engine *e, int64_t number) {
    const struct setup *s = e->s;
    int32_t node = s->out_node[number];
    uint64_t own = 1ull << (node & 63);
    e->freed = 1;
    if (s->out_kind[number] == BACK) {
        e->up[node >> 6] |= own;
        return;
    }
    e->up[node >> 6] &= ~own;
    int32_t count = s->out_kind[number] == DOWN ? e->holders[node].count : 0;
    for (int32_t k = 0; k < count; k++) e->victims[k] = e->holders[node].list[k].job;
    for (int32_t k = 0; k < count; k++) {
        if (is_expander(e, e->victims[k])) {
            withdraw(e, e->victims[k]);
            continue;
        }
        wake(e, e->victims[k]);
        kill_job(e, e->victims[k], 0, LOST);
    }
}

static int young(const struct engine *e, int32_t job) { return e->now - e->accrued[job] < (double)e->s->bf_min_age_reserve; }

#include "reservations.h"
#include "het_jobs.h"
#include "layer.h"

/* -- passes --------------------------------------------------------------------------------------------------------- */

/* The waiting jobs that may start, in their order, in `e->order`; return their number. */
static int64_t order_queue(struct engine *e) {
    refresh(e);
    if (e->unsorted) qsort_r(e->queue, (size_t)e->queue_count, sizeof *e->queue, by_priority, e);
    e->unsorted = 0;
    int64_t count = 0;
    for (int64_t k = 0; k < e->queue_count; k++)
        if (e->ready[e->queue[k]] && !full_array(e, e->queue[k])) e->order[count++] = e->queue[k];
    return count;
}

/* Until when no job starts, since other jobs are completing. */
static double held_until(const struct engine *e) {
    const struct setup *s = e->s;
    double until = -INFINITY;
    for (int64_t k = 0; s->complete_wait_s && k < e->running_count; k++) {
        int32_t job = e->running[k].job;
        if (!(s->end[job] <= e->now && e->now < e->ends[job])) continue;
        double own = sooner_of((double)(whole_second(e, s->end[job]) + s->complete_wait_s + 1) - s->epoch_s, e->ends[job]);
        if (own > until) until = own;
    }
    return until;
}

/* Let no job of the rest of the pass use the nodes of a partition. */
static void block(struct engine *e, int32_t partition) {
    for (int64_t w = 0; w < e->words; w++) e->allowed[w] &= ~e->partition_nodes[partition * e->words + w];
}

static int64_t main_pass(struct engine *e, double at, int *left) {
    const struct setup *s = e->s;
    int64_t depth = s->default_queue_depth, tested = 0, started = 0, waiting = order_queue(e), of_part[s->partitions];
    memset(of_part, 0, sizeof of_part);
    if (at - last_full(&e->loops) >= (double)s->sched_interval) {
        e->loops.full_last = at;
        depth = s->jobs;
    }
    int64_t last = -1;
    uint8_t blocked[s->partitions];
    memset(blocked, 0, sizeof blocked);
    memcpy(e->allowed, e->up, (size_t)e->words * sizeof *e->allowed);
    int whole = 1; /* whether the pass reaches the expanders, the last jobs of the queue */
    uint8_t busy[s->bookings + 1]; /* reservations whose jobs do not fit */
    memset(busy, 0, sizeof busy);
    int64_t second = whole_second(e, at);
    for (int64_t k = 0; k < waiting; k++) {
        int32_t job = e->order[k], partition = s->partition[job], inside = s->inside[job];
        if (het_job_of(e, job) >= 0) { /* only backfill starts components of heterogeneous jobs */
            block(e, partition);
            blocked[partition] = 1;
            continue;
        }
        if (e->withdrawn[job] || (inside >= 0 ? busy[inside] : blocked[partition]) || full_array(e, job)) continue;
        if (expired(e, job, second) || reached(&e->limits, job, JOBS) >= 0) continue;
        e->limit[job] = until_deadline(e, job, second);
        int64_t own = array_entry(e, job);
        int entry = own < 0 || own != last;
        last = own;
        of_part[partition] += entry;
        if (s->job_depth && of_part[partition] > s->job_depth) {
            *left = LEFT;
            continue;
        }
        if ((entry && tested == depth) || (s->sched_max_job_start && started == s->sched_max_job_start)) {
            *left = LEFT;
            whole = 0;
            break;
        }
        tested += entry;
        const uint64_t *nodes = e->allowed;
        if (has_bookings(e)) {
            if (!suffice(e, e->licenses, job)) {
                if (s->plan_licenses) { /* backfill plans the licences */
                    whole = 0;
                    break;
                }
                continue;
            }
            allowed_nodes(e, job, second, e->open);
            memcpy(e->usable, e->open, (size_t)e->words * sizeof *e->usable);
            for (int64_t w = 0; w < e->words; w++) e->usable[w] &= e->allowed[w];
            nodes = e->usable;
        }
        int fits = choose(e, job, nodes);
        if (exceeds(e, job, fits)) continue;
        if (fits) {
            start(e, job);
            started++;
        } else if (s->preempts && preempt(e, job, nodes)) started++;
        else if (inside >= 0) busy[inside] = 1;
        else if (beyond(e, s->eligible + s->set[job] * e->words, nodes) && !fits_empty(e, job, nodes))
            continue; /* it waits for nodes of other partitions, or for the end of a reservation */
        else if (!young(e, job)) {
            blocked[partition] = 1;
            block(e, partition);
        }
    }
    for (int64_t k = 0; whole && k < e->layer.asking_count;) {
        int32_t job = e->layer.asking[k];
        if (s->sched_max_job_start && started == s->sched_max_job_start) break;
        k++;
        if (blocked[s->partition[job]] || reached(&e->limits, job, JOBS) >= 0) continue;
        allowed_nodes(e, job, second, e->usable);
        for (int64_t w = 0; w < e->words; w++) e->usable[w] &= e->allowed[w];
        if (!expand(e, job, e->usable)) continue;
        started++;
        k--;
    }
    return started;
}

/* Choose nodes for `job` among `able`, the nodes with room after the end of the job `last`, of which it can use `cores`. */
static int choose_after(struct engine *e, int32_t job, const uint64_t *able, const int32_t *cores, int32_t last) {
    if (!in_blocks(e, job) && (!e->s->switches || e->s->least_loaded[job] || holds_more(e->s, job)))
        for (int64_t w = 0; w < e->words; w++)
            for (uint64_t left = able[w]; left; left &= left - 1) {
                int32_t node = (int32_t)(64 * w + __builtin_ctzll(left));
                const struct holders *of = &e->holders[node];
                e->expected.cores[node] = e->free.cores[node];
                e->expected.memory[node] = e->free.memory[node];
                for (int32_t k = 0; k < of->count && !earlier(e->due[last], last, of->list[k].end, of->list[k].job); k++) {
                    e->expected.cores[node] += of->list[k].cores;
                    e->expected.memory[node] += memory_of(e->s, of->list[k].job, node, of->list[k].cores);
                }
            }
    return choose_of(e, job, able, cores, &e->expected);
}

static const struct bits *bits_of(const struct engine *e, const struct running *own) {
    return own->words == 1 ? &own->first : e->bits + e->bits_first[own->job];
}

/* Bring up to date in which order the nodes have room for requests of a step as the running jobs end. */
static void order_nodes(struct engine *e, struct view *v) {
    if (v->ordered == e->change_count) return;
    v->ordered = e->change_count;
    v->order_count = 0;
    uint64_t *able = e->later;
    int64_t next = 0; /* node before which there is a mask */
    size_t size = (size_t)e->words * sizeof *able;
    memcpy(able, v->able, size);
    for (int64_t k = 0; k < e->running_count; k++) {
        const struct running *own = &e->running[k];
        const struct bits *bits = bits_of(e, own);
        for (int32_t b = 0; b < own->words; b++) {
            int64_t w = bits[b].word;
            uint64_t left = bits[b].nodes & ~able[w] & v->empty[w], new = left & e->alone[w];
            for (left &= ~new; left; left &= left - 1)
                if (last_holder(e, v, (int32_t)(64 * w + __builtin_ctzll(left))) == own->job) new |= left & -left;
            for (; new; new &= new - 1) {
                if (v->order_count == next) {
                    memcpy(v->steps + (next >> e->shift) * e->words, able, size);
                    next += 1ll << e->shift;
                }
                v->order_at[v->order_count] = (int32_t)k;
                v->order[v->order_count++] = (int32_t)(64 * w + __builtin_ctzll(new));
                able[w] |= new & -new;
            }
        }
    }
    if (v->order_count == next) memcpy(v->steps + (next >> e->shift) * e->words, able, size);
}

/* How many running jobs end until `instant`. */
static int64_t ended_until(const struct engine *e, int64_t instant) {
    FIRST(ended, e->running_count, e->running[ended].end > instant)
    return ended;
}

/* The usable nodes with room for requests of a step after the end of the first `ended` running jobs, in `able`; return
 * their number. 0: there are fewer than `needed` among all nodes. */
HOT static int64_t able_after(const struct engine *e, const struct view *v, int64_t ended, int64_t needed, uint64_t *able) {
    FIRST(more, v->order_count, v->order_at[more] >= ended)
    if (v->count + more < needed) return 0;
    int64_t k = more >> e->shift << e->shift;
    const uint64_t *step = v->steps + (more >> e->shift) * e->words;
    int64_t count = 0;
    memcpy(able, step, (size_t)e->words * sizeof *able);
    for (; k < more; k++) able[v->order[k] >> 6] |= 1ull << (v->order[k] & 63);
    for (int64_t w = 0; w < e->words; w++) {
        able[w] &= e->usable[w];
        count += __builtin_popcountll(able[w]);
    }
    return count;
}

/* Bring up to date how the cores that requests not of a step can use grow as the running jobs end. */
static void order_growth(struct engine *e, struct view *v) {
    if (v->ordered == e->change_count) return;
    const struct setup *s = e->s;
    int32_t job = e->classes[v->class].job;
    const uint64_t *eligible = s->eligible + s->set[job] * e->words;
    int64_t sum = v->sum, count = v->count;
    copy_free(e);
    for (int64_t node = 0; node < s->nodes; node++) e->room[node] = has(v->able, (int32_t)node) ? v->cores[node] : 0;
    v->growth_count = 0;
    for (int64_t k = 0; k < e->running_count; k++) {
        int32_t other = e->running[k].job;
        const struct range *ranges = e->ranges + s->range_first[other];
        take(e, &e->expected, other, 1);
        for (int32_t r = 0; r < s->range_size[other]; r++)
            for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--) {
                if (!has(eligible, node)) continue;
                int32_t cores = capacity(s, &e->expected, job, node), before = e->room[node];
                if (cores <= before) continue;
                if (!grow((void **)&v->growth, &v->growth_room, v->growth_count + 1, sizeof *v->growth)) { e->out_of_memory = 1; return; }
                e->room[node] = cores;
                sum += cores - before;
                count += !before;
                v->growth[v->growth_count++] = (struct growth){sum, count, (int32_t)k, node, cores - before, !before};
            }
    }
    v->ordered = e->change_count;
}

/* When enough nodes have room for `job` if all nodes are usable. */
static int64_t soonest(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    struct view *v = view_of(e, job);
    if (e->classes[v->class].step) {
        order_nodes(e, v);
        int64_t missing = nodes_for(e, job) - v->count;
        return missing <= 0 ? 0 : missing > v->order_count ? INT64_MAX : e->running[v->order_at[missing - 1]].end;
    }
    if (v->sum >= s->wanted_cores[job] && v->count >= s->fewest[job]) return 0;
    order_growth(e, v);
    FIRST(grown, v->growth_count, v->growth[grown].sum >= s->wanted_cores[job] && v->growth[grown].count >= s->fewest[job])
    return grown == v->growth_count ? INT64_MAX : e->running[v->growth[grown].at].end;
}

/* How many nodes without room now have room for requests of a step until `latest`; the next trial may begin then. */
static int64_t order_until(struct engine *e, const struct view *v, int64_t latest) {
    struct slot *slot = &e->slots.slot[e->slots.next];
    int own = v->class % REQUESTS, next = e->slots.next < e->slots.count && slot->end == latest;
    if (next && slot->class[own] == v->class) return slot->order[own];
    int64_t ended = ended_until(e, latest);
    FIRST(more, v->order_count, v->order_at[more] >= ended)
    if (next) slot->class[own] = v->class, slot->order[own] = (int32_t)more;
    return more;
}

/* Whether `needed` usable nodes or more have room for requests of a step after the first `more` nodes of the order. */
static int suffices(const struct engine *e, const struct view *v, int64_t needed, int64_t more) {
    int64_t step = more >> e->shift, k = step << e->shift;
    if (v->count + more < needed) return 0;
    int64_t count = common(e->words, v->steps + step * e->words, e->usable);
    if (count + more - k < needed) return 0;
    for (; count < needed && k < more; k++) count += has(e->usable, v->order[k]);
    return count >= needed;
}

/* After the end of how many running jobs `needed` usable nodes have room for requests of a step; they have it after the
 * first `most` nodes of the order. */
static int64_t sufficient(const struct engine *e, const struct view *v, int64_t needed, int64_t most) {
    FIRST(step, (most >> e->shift) + 1, common(e->words, v->steps + step * e->words, e->usable) >= needed)
    if (!step) return 0;
    int64_t k = (step - 1) << e->shift, count = common(e->words, v->steps + (step - 1) * e->words, e->usable);
    for (; count < needed; k++) count += has(e->usable, v->order[k]);
    return v->order_at[k - 1] + 1;
}

/* Whether a running job holds any usable node. */
static int holds_usable(const struct engine *e, const struct running *own) {
    const struct bits *bits = bits_of(e, own);
    for (int32_t k = 0; k < own->words; k++)
        if (bits[k].nodes & e->usable[bits[k].word]) return 1;
    return 0;
}

/* Bring up to date which nodes each BLOCK of running jobs hold. */
static void summarize(struct engine *e) {
    if (e->held_at == e->change_count || !e->running_count) return;
    int64_t words = (e->running_count + BLOCK - 1) / BLOCK * e->words;
    if (!grow((void **)&e->held, &e->held_room, words, sizeof *e->held)) { e->out_of_memory = 1; return; }
    e->held_at = e->change_count;
    memset(e->held, 0, (size_t)words * sizeof *e->held);
    for (int64_t k = 0; k < e->running_count; k++) {
        const struct bits *bits = bits_of(e, &e->running[k]);
        for (int32_t b = 0; b < e->running[k].words; b++) e->held[k / BLOCK * e->words + bits[b].word] |= bits[b].nodes;
    }
}

/* The first running job from `k` on that holds any usable node; their number: none. */
static int64_t next_holding(struct engine *e, int64_t k) {
    summarize(e);
    for (; k < e->running_count && !e->out_of_memory; k++) {
        if (k % BLOCK == 0)
            while (k < e->running_count && !meet(e->words, e->held + k / BLOCK * e->words, e->usable)) k += BLOCK;
        if (k < e->running_count && holds_usable(e, &e->running[k])) return k;
    }
    return e->running_count;
}

/* The last running job before `k` that holds any usable node. There is one, and the summary is up to date. */
static int64_t last_holding(const struct engine *e, int64_t k) {
    for (k--; !holds_usable(e, &e->running[k]); k--)
        if (k % BLOCK == 0)
            while (!meet(e->words, e->held + (k / BLOCK - 1) * e->words, e->usable)) k -= BLOCK;
    return k;
}

/* How many running jobs may have ended at the end of the last group that ends until `latest`, at most. */
static int64_t grouped_until(struct engine *e, int64_t latest) {
    const struct running *running = e->running;
    int64_t first = next_holding(e, 0), count = e->running_count, ended = ended_until(e, latest), window = WINDOW_S;
    if (first >= ended || next_holding(e, ended) == count) return ended;
    int64_t barrier = (running[first].end / WINDOW_S + 1) * WINDOW_S;
    while (barrier + 2 * window < running[ended].end) window *= 2; /* the largest window that closes before */
    if (barrier + window >= running[ended].end) return ended;
    int64_t last = next_holding(e, ended_until(e, barrier + window) - 1);
    return last < ended ? last + 1 : ended;
}

/* The start of a job if the last job of its group ends at `last`. */
static int64_t start_after(const struct engine *e, int64_t last, int64_t now) {
    int64_t killed = last + e->s->kill_wait_s;
    return last > now ? last : killed > now + 1 ? killed : now + 1;
}

/* Choose nodes for `job`, not of a step, after the end of the running job `end`: the `grown` first entries of the growth. */
static int choose_grown(struct engine *e, struct view *v, int32_t job, int64_t grown, int64_t end) {
    for (int64_t w = 0; w < e->words; w++) {
        e->later[w] = e->usable[w] & v->able[w];
        for (uint64_t left = e->later[w]; left; left &= left - 1) {
            int64_t node = 64 * w + __builtin_ctzll(left);
            e->room[node] = v->cores[node];
        }
    }
    for (int64_t k = 0; k < grown; k++) {
        int32_t node = v->growth[k].node;
        if (!has(e->usable, node)) continue;
        if (v->growth[k].new) e->room[node] = 0;
        e->room[node] += v->growth[k].more;
        e->later[node >> 6] |= 1ull << (node & 63);
    }
    return choose_after(e, job, e->later, e->room, e->running[end].job);
}

/* The window after that of a group of running jobs, before a job that ends at `next`. */
static int64_t next_window(int64_t window, int64_t barrier, int64_t next) {
    do window *= 2;
    while (next > barrier + window);
    return window;
}

struct room { int64_t nodes, cores, grown; }; /* usable nodes with room, their cores; entries of the growth in them */

/* Whether `job` fits on the usable nodes after the end of the running job at `end`; `room` is that after an earlier one. */
static int fits_after(struct engine *e, struct view *v, int32_t job, int64_t end, struct room *room) {
    const struct setup *s = e->s;
    int step = e->classes[v->class].step;
    int32_t unit = e->classes[v->class].unit;
    if (step) {
        room->nodes = able_after(e, v, end + 1, nodes_for(e, job), e->later), room->cores = room->nodes * unit;
        for (int64_t w = 0; w < e->words && room->nodes && !unit; w++)
            for (uint64_t left = e->later[w]; left; left &= left - 1)
                room->cores += v->cores[64 * w + __builtin_ctzll(left)];
    } else
        for (; room->grown < v->growth_count && v->growth[room->grown].at <= end; room->grown++)
            if (has(e->usable, v->growth[room->grown].node))
                room->cores += v->growth[room->grown].more, room->nodes += v->growth[room->grown].new;
    return room->cores >= s->wanted_cores[job] && room->nodes >= s->fewest[job] &&
           (step ? choose_after(e, job, e->later, v->cores, e->running[end].job)
                 : choose_grown(e, v, job, room->grown, end));
}

/* `first_start` without preemption: which nodes have room after the end of each group is known without the jobs before. */
static int64_t first_end(struct engine *e, struct view *v, int32_t job, int64_t now, int64_t ended, int64_t latest) {
    const struct running *running = e->running;
    int64_t count = e->running_count, window = WINDOW_S;
    int newer = e->slots.newer;
    int64_t least = 0; /* of running jobs that end before the start */
    struct room room = {0, 0, 0};
    if (e->classes[v->class].step) {
        order_nodes(e, v);
        if (e->classes[v->class].unit) {
            int64_t before = latest && !newer ? grouped_until(e, latest) : count;
            FIRST(most, v->order_count, v->order_at[most] >= before)
            if (!suffices(e, v, nodes_for(e, job), most)) return -1;
            least = sufficient(e, v, nodes_for(e, job), most);
        }
        if (least && latest && running[least - 1].end > latest) return -1;
    } else {
        order_growth(e, v);
        for (int64_t w = 0; w < e->words; w++)
            for (uint64_t left = e->usable[w] & v->able[w]; left; left &= left - 1, room.nodes++)
                room.cores += v->cores[64 * w + __builtin_ctzll(left)];
    }
    if (ended && ended >= least && fits_after(e, v, job, ended - 1, &room)) return now;
    int64_t k = next_holding(e, ended);
    if (k == count) return -1;
    int64_t barrier = (running[k].end / WINDOW_S + 1) * WINDOW_S;
    if (k < least - 1) { /* the groups before that of the last job that has to end change nothing */
        k = last_holding(e, least - 1) + 1;
        while (running[k].end > barrier + window) window *= 2;
    }
    while (k < count) {
        int64_t until = newer && latest && latest < barrier + window ? latest : barrier + window;
        int64_t closing = ended_until(e, until) - 1, last = next_holding(e, closing > k ? closing : k), end = last;
        int beyond = newer && latest && last < count && running[last].end > latest;
        if (last == count || beyond) { /* the group ends with the last running job, or the last one until `latest` */
            end = (beyond ? ended_until(e, latest) : count) - 1;
            for (last = closing - 1; last >= k && !holds_usable(e, &running[last]);) last--;
            if (last < k) return -1;
        }
        if (latest && running[last].end > latest) return -1;
        if (fits_after(e, v, job, end, &room)) return start_after(e, running[last].end, now);
        k = end + 1;
        window = next_window(window, barrier, k < count ? running[k].end : 0);
    }
    return -1;
}

/* The first instant at which the running jobs leave enough of the usable nodes; -1: none until `latest` (0: at all).
 * The nodes are those of the last choice. In a newer Slurm, the running jobs that end before `since` have ended. */
static int64_t first_start(struct engine *e, int32_t job, int64_t now, int64_t since, int64_t latest) {
    int newer = e->slots.newer;
    int64_t ended = newer && since > now ? ended_until(e, since - 1) : 0;
    e->preempting = 0;
    if (!ended && choose(e, job, e->usable)) return now;
    if (!e->candidate_count) return first_end(e, view_of(e, job), job, now, ended, latest);
    copy_free(e);
    for (int64_t k = 0; k < ended; k++) take(e, &e->expected, e->running[k].job, 1);
    if (ended && choose_with(e, &e->expected, job, e->usable)) return now;
    for (int64_t k = 0; k < ended; k++) e->yields[e->running[k].job] = 1;
    /* The jobs that may be preempted end at once. */
    for (int64_t k = 0; k < e->candidate_count; k++) {
        if (e->yields[e->candidates[k]]) continue; /* it has ended */
        e->yields[e->candidates[k]] = 1;
        yield(e, e->candidates[k]);
    }
    e->preempting = choose_with(e, &e->expected, job, e->usable);
    int64_t count = 0;
    for (int64_t k = 0; k < e->running_count; k++)
        if (!e->yields[e->running[k].job]) e->rest[count++] = e->running[k];
    const struct running *running = e->rest;
    for (int64_t k = 0; k < ended; k++) e->yields[e->running[k].job] = 0;
    for (int64_t k = 0; k < e->candidate_count; k++) e->yields[e->candidates[k]] = 0;
    if (e->preempting) return now;
    int64_t window = WINDOW_S, barrier = -1, last = -1;
    for (int64_t k = 0; k < count; k++) {
        const struct running *own = &running[k];
        int more = k + 1 < count && !(newer && latest && own[1].end > latest);
        if (!holds_usable(e, own)) {
            if (more || last < 0) continue;
        } else {
            take(e, &e->expected, own->job, 1);
            last = own->end;
            if (barrier < 0) barrier = (last / WINDOW_S + 1) * WINDOW_S;
            if (more && own[1].end <= barrier + window) continue;
        }
        window = next_window(window, barrier, k + 1 < count ? own[1].end : 0);
        if (choose_with(e, &e->expected, job, e->usable)) return start_after(e, last, now);
        last = -1;
    }
    return -1;
}

/* When `job` can start from `earliest` on, -1: never; the nodes are those of the last choice. */
static int64_t plan(struct engine *e, int32_t job, int64_t now, int64_t earliest) {
    const struct setup *s = e->s;
    gather(e, job);
    int64_t later = earliest, unit = s->bf_resolution, first = -1, scarce = -1, needed = nodes_for(e, job);
    const uint64_t *partition = s->partitions > 1 ? e->partition_nodes + s->partition[job] * e->words : NULL;
    const struct view *v = view_of(e, job);
    const uint64_t *eligible = s->eligible + s->set[job] * e->words;
    int step = e->classes[s->class[job]].step && !e->candidate_count;
    slots_next_job(&e->slots);
    for (int64_t k = 0; e->slots_at != e->change_count && k < e->slots.count; k++) slot_forget(&e->slots.slot[k]);
    e->slots_at = e->change_count;
    for (;;) {
        int64_t since = later;
        later = slots_later(&e->slots, since, e->limit[job], partition);
        if (has_bookings(e)) later = next_later(e, job, since, later);
        if (!e->candidate_count && since > now && first < 0) first = soonest(e, job);
        if (since > now && later && later < first) {
            if (later <= since) return -1;
            continue; /* no nodes suffice until then */
        }
        scarce = slots_scarce(&e->slots, scarce, needed, s->set[job]);
        int fits = since >= scarce && slots_usable(&e->slots, since, e->limit[job], eligible, e->usable) >= needed;
        if (fits && has_bookings(e)) {
            open_nodes(e, job, since, now, e->open);
            for (int64_t w = 0; w < e->words; w++) e->usable[w] &= e->open[w];
            fits = nodes_in(e->words, e->usable) >= needed;
        }
        if (fits && step && later && since > now) fits = suffices(e, v, needed, order_until(e, v, later));
        if (fits) {
            int64_t start = first_start(e, job, now, since, later);
            if (start >= 0) {
                if (start < since) {
                    start = since;
                    e->noticed = 1;
                }
                if (!later || start <= later) {
                    if (start > now + s->bf_window * MINUTE_S) return -1;
                    int64_t begin = slots_round(start, unit), end = slots_round_end(&e->slots, start + e->limit[job], unit);
                    int blocked = 0;
                    if (start > since && has_bookings(e)) {
                        open_nodes(e, job, start, now, e->open);
                        blocked = beyond(e, e->picked, e->open);
                    }
                    if (!blocked && (start <= now || !slots_overlap(&e->slots, begin, end, e->picked))) return start;
                    later = start;
                }
            }
        }
        if (later <= since) return -1;
    }
}

/* Whether a pass that has considered so many jobs leaves `job` out (1), or ends before it (-1), or neither (0). */
static int beyond_depth(struct engine *e, int32_t job, int64_t entry_before, int64_t *considered) {
    const struct setup *s = e->s;
    if (s->array[job] >= 0 && array_entry(e, job) == entry_before) return 0;
    int32_t part = s->partition[job], *both = e->jobs_of_both + (s->user_part_test ? s->user[job] * s->partitions + part : 0);
    if (++e->jobs_of_part[part] > s->part_test && s->part_test) return 1;
    if (s->user_part_test && ++*both > s->user_part_test) return 1;
    if (s->bf_max_job_user && ++e->jobs_of_user[s->user[job]] > s->bf_max_job_user) return 1;
    if (*considered == s->bf_max_job_test) return -1;
    ++*considered;
    return 0;
}

/* Whether a node that `job` may use is idle. */
static int some_idle(const struct engine *e, int32_t job) {
    const uint64_t *eligible = e->s->eligible + e->s->set[job] * e->words;
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = eligible[w] & e->up[w]; left; left &= left - 1) {
            int64_t node = 64 * w + __builtin_ctzll(left);
            if (e->free.cores[node] == e->s->cores[node]) return 1;
        }
    return 0;
}

static int64_t backfill_pass(struct engine *e, double at, int *left) {
    const struct setup *s = e->s;
    int64_t now = whole_second(e, at), waiting = order_queue(e), started = 0, reserved = 0, considered = 0;
    int64_t table = s->bf_node_space_size ? s->bf_node_space_size : s->bf_max_job_test;
    slots_begin(&e->slots, e->words, now, now + s->bf_window * MINUTE_S, e->up, s->eligible, s->sets, s->release);
    e->slots_at = e->change_count;
    if (s->bf_max_job_user) memset(e->jobs_of_user, 0, (size_t)s->users * sizeof *e->jobs_of_user);
    memset(e->jobs_of_part, 0, (size_t)s->partitions * sizeof *e->jobs_of_part);
    if (s->user_part_test) memset(e->jobs_of_both, 0, (size_t)(s->users * s->partitions) * sizeof *e->jobs_of_both);
    if (e->slots.failed) { e->out_of_memory = 1; return 0; }
    int64_t kept = 0;
    for (int64_t k = 0; k < waiting; k++) {
        int32_t job = e->order[k];
        if (expired(e, job, now) || e->withdrawn[job]) continue;
        e->limit[job] = cut(e, job) ? s->shortest[job] : s->limit[job];
        e->order[kept++] = job;
    }
    waiting = kept;
    if (s->het_job) het_begin(e);
    int64_t last = 0, count = 0; /* the jobs from `last` on cannot start now: they change nothing */
    int few = waiting <= FEW; /* then all are planned, to know whether Slurm sees a change, unless nodes are idle */
    for (int64_t k = 0; few && k < waiting; k++) few = !some_idle(e, e->order[k]);
    if (e->layer.asking_count) few = 0;
    int expands = waiting < s->bf_max_job_test && may_expand(e), whole = 1; /* then all jobs are planned */
    e->noticed = !few;
    int64_t entry_before = -1, skipped = -1;
    int limited = e->limits.counters > 0 || s->several; /* then it depends on the jobs that start which ones are tested */
    for (int64_t k = 0; k < waiting; k++) {
        int32_t job = e->order[k];
        if (!limited) {
            int skip = beyond_depth(e, job, entry_before, &considered);
            if (skip > 0) continue;
            if (skip < 0) break;
        }
        entry_before = array_entry(e, job);
        e->order[count++] = job;
        if (few || expands || may_start(e, job)) last = count;
    }
    entry_before = -1;
    if (s->one_reservation) memset(e->booked, 0, (size_t)s->jobs);
    e->license_count = 0;
    for (int64_t k = 0; s->plan_licenses && k < e->running_count; k++) {
        int64_t until = slots_round_end(&e->slots, e->running[k].end, s->bf_resolution);
        hold_licenses(e, e->running[k].job, now, until > now + 1 ? until : now + 1);
    }
    for (int64_t k = 0; k < s->arrays; k++) {
        e->array_left[k] = s->array_most[k] ? s->array_most[k] - e->array_running[k] : -1; /* -1: any number */
        e->array_reserved[k] = 0;
    }
    for (int64_t k = 0; k < last; k++) {
        int32_t job = e->order[k], array = s->array[job];
        int64_t entry = array_entry(e, job);
        if (limited) {
            if (e->withdrawn[job] || reached(&e->limits, job, JOBS) >= 0) continue;
            int skip = beyond_depth(e, job, entry_before, &considered);
            if (skip > 0) continue;
            if (skip < 0) break;
            entry_before = entry;
            if (exceeds(e, job, 0)) continue;
        }
        if (array >= 0 && entry == skipped) continue;
        if (array >= 0 && e->array_left[array] == 0) {
            skipped = entry;
            continue;
        }
        if (s->license_kinds && !s->plan_licenses && !suffice(e, e->licenses, job)) continue;
        int component = het_job_of(e, job) >= 0;
        int64_t earliest = component ? het_since(e, job, now) : now;
        int64_t begin = earliest > now + s->bf_window * MINUTE_S ? -1 : plan(e, job, now, earliest);
        if (begin < 0) {
            skipped = entry;
            continue;
        }
        if (component) het_plan(e, job, begin); /* it starts at the end of the pass, with the others */
        int began = 0, preempts = !component && begin <= now && e->preempting;
        const uint64_t *nodes = e->picked;
        if (preempts) {
            began = preempt(e, job, e->usable);
            nodes = e->victim_nodes;
        }
        if (began || (begin <= now && !preempts && !component)) {
            hold_licenses(e, job, now, now + e->limit[job]);
            if (array >= 0 && e->array_left[array] > 0) e->array_left[array]--;
            if (!began && exceeds(e, job, 1)) continue;
            if (!began) {
                e->limit[job] = granted(e, job, now, nodes);
                start(e, job);
            }
            if (++started == s->bf_max_job_start) {
                *left = LEFT;
                return started;
            }
        } else if (!s->reserve[job] || young(e, job) || e->booked[s->first_entry[job]] ||
                   (s->bf_job_part_count_reserve && reserved == s->bf_job_part_count_reserve)) skipped = entry;
        else if (e->slots.count >= table) {
            whole = 0;
            break;
        }
        else {
            int64_t end = slots_round_end(&e->slots, begin + e->limit[job], s->bf_resolution);
            begin = slots_round(begin, s->bf_resolution);
            reserved++;
            if (s->one_reservation) e->booked[s->first_entry[job]] = 1;
            slots_reserve(&e->slots, begin, end, nodes);
            hold_licenses(e, job, begin, end);
            if (array >= 0 && ++e->array_reserved[array] >= s->array_reservations) skipped = entry;
        }
        while (!few && !expands && !s->preempts && last > k && !may_start(e, e->order[last - 1])) last--;
    }
    for (int64_t k = 0; expands && whole && k < e->layer.asking_count;) {
        int32_t job = e->layer.asking[k++];
        if (reached(&e->limits, job, JOBS) >= 0) continue;
        slots_next_job(&e->slots);
        slots_usable(&e->slots, now, e->limit[job], s->eligible + s->set[job] * e->words, e->usable);
        allowed_nodes(e, job, now, e->open);
        for (int64_t w = 0; w < e->words; w++) e->usable[w] &= e->open[w];
        if (!expand(e, job, e->usable)) continue;
        k--;
        if (++started == s->bf_max_job_start) {
            *left = LEFT;
            return started;
        }
    }
    e->out_of_memory |= e->slots.failed;
    if (s->het_job) started += het_end(e, now);
    *left = (s->bf_min_age_reserve > 0 && e->queue_count > 0 ? LEFT : 0) | (e->noticed ? 0 : QUIET);
    return started;
}

static int64_t pass(void *engine, int backfills, double instant, int *left) {
    return backfills ? backfill_pass(engine, instant, left) : main_pass(engine, instant, left);
}

/* One call of the policy. Return the instant of the next one. */
static double decide(struct engine *e) {
    return loops_decide(&e->loops, e->now, e->arrived || e->freed, e->changed_later, e->waited > 0, held_until(e), pass, e);
}

/* -- the whole ------------------------------------------------------------------------------------------------------ */

static int handle(struct engine *e) {
    int call = 0;
    while (e->event_count && e->events[0].at == e->now) {
        struct event event = next_event(e);
        if (event.kind == COMPUTE) {
            compute(e);
            at(e, e->now + e->s->period_s, COMPUTE, 0);
            e->changed_later = COMPUTED;
            call = 1;
        } else if (event.kind == WAKE) call = call || e->wake == e->now;
        else if (event.kind == LOOK) {
            if (e->power.due != e->now || !look(e)) continue;
            e->changed_later = e->changed_later ? e->changed_later : CHANGED; /* no scheduler is told */
            call = 1;
        }
        else {
            e->upcoming--;
            if (event.kind == END && e->ends[event.job] != e->now) continue; /* the job has been preempted */
            e->last = e->now;
            if (event.kind == BOOTED) {
                booted(e, event.job);
                continue;
            }
            if (event.kind == BEGIN) {
                if (e->power.ready_at[event.job] != e->now) continue; /* the job has ended */
                forget_power(e, event.job);
                begin(e, event.job, e->now);
                continue;
            }
            if (event.kind >= LAYER) {
                call |= layer_event(e, event.kind, event.job);
                continue;
            }
            e->layer.touched = 1;
            if (event.kind == CHANGE) e->changed_later = e->changed_later ? e->changed_later : CHANGED;
            else if (event.kind == NOTICE) e->freed = 1;
            else if (event.kind == OUTAGE) change_node(e, event.job);
            else if (event.kind == SUBMIT) submit(e, event.job);
            else end(e, event.job);
            call = 1;
        }
    }
    return call;
}

static void call_policy(struct engine *e) {
    e->wake = INFINITY;
    double again;
    do {
        again = decide(e);
        e->waited = e->ready_count + e->layer.asking_count;
        e->arrived = e->freed = e->changed_later = 0;
    } while (again <= e->now && !e->out_of_memory);
    if (again < INFINITY) {
        e->wake = again;
        at(e, again, WAKE, 0);
    }
}

static void simulate(struct engine *e) {
    const struct setup *s = e->s;
    int64_t held = 0;
    e->now = s->begin_s;
    e->to_start = s->watched ? 0 : -1;
    for (int64_t job = 0; job < s->jobs - s->expanders; job++)
        if (held < s->held_count && s->held[3 * held] == job) {
            e->alike = 0;
            memset(e->picked, 0, (size_t)e->words * sizeof *e->picked);
            for (; held < s->held_count && s->held[3 * held] == job; held++) {
                int32_t node = s->held[3 * held + 1];
                e->picked[node >> 6] |= 1ull << (node & 63);
                e->share[node] = s->held[3 * held + 2];
            }
            count_job(&e->limits, (int32_t)job, NULL, 1);
            run(e, (int32_t)job, s->since[job]);
        } else {
            at(e, s->submit[job] > s->begin_s ? s->submit[job] : s->begin_s, SUBMIT, (int32_t)job);
            if (job < s->watched) e->to_start++;
        }
    for (int64_t k = 0; k < s->notice_count; k++) at(e, s->notices[k], NOTICE, 0);
    for (int64_t k = 0; k < s->change_count; k++) at(e, s->changes[k], CHANGE, 0);
    for (int64_t k = 0; k < s->out_count; k++) at(e, s->out_at[k], OUTAGE, (int32_t)k);
    if (s->age != 0 || s->fairshare != 0) at(e, s->first_period_s, COMPUTE, 0);
    if (has_power(e)) plan_power(e);
    while (e->now_left && e->to_start && !e->out_of_memory && e->event_count &&
           (e->upcoming || e->events[0].at <= e->last + GIVE_UP_S)) {
        e->now = e->events[0].at;
        if (handle(e)) call_policy(e);
        plan_layer(e);
    }
}

struct results {
    struct range *ranges; struct stint *stints; int64_t stint_count; struct resized *resizes; int64_t resize_count;
    struct switched *switched; int64_t switched_count;
};

static int64_t simulate_setup(const struct setup *s, struct results *results) {
    struct engine own = {.s = s, .words = (s->nodes + 63) / 64, .now_left = s->jobs - s->expanders}, *e = &own;
    size_t jobs = (size_t)s->jobs, nodes = (size_t)s->nodes, words = (size_t)e->words, kinds = (size_t)s->kinds;
    e->loops = LOOPS_OF(s);
    e->wake = INFINITY;
    e->shares = (struct shares){
        .count = s->associations, .parent = s->parent, .share = s->shares, .is_user = s->is_user,
        .resets = s->resets, .reset_count = s->reset_count, .dampening = s->dampening,
    };
    e->limits = (struct limits){
        .counters = s->counters, .group = s->limit_group, .first_limit = s->first_limit,
        .limit_counter = s->limit_counter, .limit_kind = s->limit_kind, .most = s->limit_most,
        .first_counted = s->first_counted, .counted = s->counted, .counted_kind = s->counted_kind,
    };
    double first = s->begin_s > s->submit[0] ? s->begin_s : s->submit[0];
    e->empty = (struct free_resources){(int32_t *)s->cores, (int64_t *)s->gres, (int64_t *)s->memory};
    for (e->change_room = 64; e->change_room < s->nodes; e->change_room *= 2) {}
    for (e->shift = SHIFT; s->nodes >> e->shift >= MANY >> SHIFT; e->shift++) {}
    size_t steps = (nodes >> e->shift) + 1; /* masks of an order of nodes */
    int64_t most = VIEW_BYTES / (int64_t)(nodes * 5 * sizeof(int32_t) + words * steps * sizeof(uint64_t));
    e->view_count = s->classes < most ? s->classes : most > 16 ? most : 16;
    size_t views = (size_t)e->view_count, switches = (size_t)s->switches + 1;
    size_t groups = 0;
    for (size_t job = 0; job < jobs; job++)
        if (s->group[job] >= (int64_t)groups) groups = (size_t)s->group[job] + 1;
    int32_t *view_cores, *view_last, *view_order, *view_at;
    uint32_t *view_version;
    uint64_t *view_able, *view_empty, *view_steps;
    void *pieces[] = {
        e->free.cores = malloc(nodes * sizeof(int32_t)), e->free.memory = malloc(nodes * sizeof(int64_t)),
        e->free.gres = malloc(nodes * kinds * sizeof(int64_t) + 1), e->expected.cores = malloc(nodes * sizeof(int32_t)),
        e->expected.memory = malloc(nodes * sizeof(int64_t)), e->expected.gres = malloc(nodes * kinds * sizeof(int64_t) + 1),
        e->running = malloc(jobs * sizeof *e->running), e->due = calloc(jobs, sizeof *e->due),
        e->bits_first = calloc(jobs, sizeof *e->bits_first), e->bits_size = calloc(jobs, sizeof *e->bits_size),
        e->holders = calloc(nodes, sizeof *e->holders), e->alone = calloc(words, sizeof(uint64_t)),
        e->version = calloc(nodes, sizeof *e->version), e->changed = malloc((size_t)e->change_room * sizeof(int32_t)),
        e->classes = calloc((size_t)s->classes, sizeof *e->classes), e->views = calloc(views, sizeof *e->views),
        view_cores = calloc(views * nodes, sizeof(int32_t)), view_last = calloc(views * nodes, sizeof(int32_t)),
        view_version = calloc(views * nodes, sizeof(uint32_t)), view_able = calloc(views * words, sizeof(uint64_t)),
        view_empty = calloc(views * words, sizeof(uint64_t)),
        view_steps = calloc(views * words * steps, sizeof(uint64_t)), view_order = calloc(views * nodes, sizeof(int32_t)),
        view_at = calloc(views * nodes, sizeof(int32_t)),
        e->queue = malloc(jobs * sizeof(int32_t)), e->order = malloc(jobs * sizeof(int32_t)),
        e->limit = malloc(jobs * sizeof(int64_t)), e->planned_start = malloc(jobs * sizeof(int64_t)),
        e->components = malloc(jobs * sizeof(int32_t)), e->planned_entry = malloc(jobs * sizeof(int32_t)),
        e->group_size = calloc(jobs, sizeof(int32_t)), e->members = malloc(jobs * sizeof(int32_t)),
        e->taken = calloc(words, sizeof(uint64_t)), e->used_before = calloc((size_t)s->counters + 1, sizeof(int64_t)),
        e->priority = calloc(jobs, sizeof(int64_t)), e->everything = calloc(words, sizeof(uint64_t)), e->up = calloc(words, sizeof(uint64_t)),
        e->partition_nodes = calloc((size_t)s->partitions * words, sizeof(uint64_t)), e->usable = calloc(words, sizeof(uint64_t)),
        e->allowed = calloc(words, sizeof(uint64_t)), e->then = calloc(words, sizeof(uint64_t)),
        e->later = calloc(words, sizeof(uint64_t)), e->blocks = malloc((nodes / 2 + 1) * sizeof *e->blocks), e->picked = calloc(words, sizeof(uint64_t)),
        e->capacity = malloc(nodes * sizeof *e->capacity),
        e->chosen = malloc(nodes * sizeof *e->chosen), e->by_load = malloc(nodes * sizeof *e->by_load), e->share = malloc(nodes * sizeof(int32_t)),
        e->room = malloc(nodes * sizeof(int32_t)), e->group = malloc(nodes * sizeof *e->group), e->heap = malloc(nodes * sizeof *e->heap), e->used = malloc(nodes),
        e->tree.rest = malloc(words * sizeof(uint64_t)), e->tree.below = malloc(words * sizeof(uint64_t)),
        e->tree.among = malloc(words * sizeof(uint64_t)), e->tree.lighter = malloc(words * sizeof(uint64_t)),
        e->tree.inside = malloc(switches * words * sizeof(uint64_t)), e->tree.count = malloc(switches * sizeof(int32_t)),
        e->tree.near = malloc(switches * sizeof(int32_t)), e->tree.size = malloc(switches * sizeof(int64_t)),
        e->tree.used = malloc(switches),
        e->jobs_of_user = calloc((size_t)s->users, sizeof(int32_t)), e->amounts = calloc(GRES + kinds, sizeof(int64_t)),
        e->limits.used = calloc((size_t)s->counters + 1, sizeof(int64_t)), e->billed = calloc(jobs, sizeof(double)),
        e->accrued = malloc(jobs * sizeof(double)), e->state = calloc(jobs, 1), e->ready = calloc(jobs, 1),
        e->group_member = malloc(jobs * sizeof(int32_t)), e->group_running = calloc(groups + 1, sizeof(int32_t)),
        e->group_first = calloc(groups + 1, sizeof(int64_t)), e->array_running = calloc(jobs, sizeof(int32_t)),
        e->array_waiting = calloc(jobs, sizeof(int32_t)), e->array_left = calloc(jobs, sizeof(int32_t)),
        e->array_reserved = calloc(jobs, sizeof(int32_t)), e->licenses = calloc((size_t)s->license_kinds + 1, sizeof(int64_t)),
        e->license_room = calloc((size_t)s->license_kinds + 1, sizeof(int64_t)), e->open = calloc(words, sizeof(uint64_t)),
        e->license_plan = malloc(2 * jobs * sizeof *e->license_plan), e->victim_nodes = calloc(words, sizeof(uint64_t)),
        e->ends = malloc(jobs * sizeof(double)), e->earliest = malloc(jobs * sizeof(double)),
        e->asleep_at = malloc(jobs * sizeof(double)), e->asleep_left = malloc(jobs * sizeof(double)), e->asleep = calloc(jobs, 1), e->withdrawn = calloc(jobs, 1), e->booked = calloc(jobs, 1),
        e->jobs_of_part = calloc((size_t)s->partitions, sizeof(int32_t)),
        e->jobs_of_both = calloc(s->user_part_test ? (size_t)(s->users * s->partitions) : 1, sizeof(int32_t)),
        e->level = calloc((size_t)s->strata, sizeof(int32_t)), e->candidates = malloc(jobs * sizeof(int32_t)),
        e->victims = malloc(jobs * sizeof(int32_t)), e->order_of = malloc(jobs * sizeof(int32_t)),
        e->overlap = malloc(jobs * sizeof(int32_t)), e->yields = calloc(jobs, 1), e->yielding = calloc((size_t)s->strata, 1), e->rest = malloc(jobs * sizeof *e->rest),
        e->weights = malloc(nodes * sizeof *e->weights),
    };
    enum { PIECES = sizeof pieces / sizeof *pieces };
    for (int k = 0; k < PIECES; k++) e->out_of_memory |= !pieces[k];
    if (has_layer(e)) e->out_of_memory |= !open_layer(e);
    if (!e->out_of_memory) memcpy(e->weights, s->weights, nodes * sizeof *e->weights);
    if (!e->out_of_memory && has_power(e)) e->out_of_memory |= !open_power(e, first);
    e->out_of_memory |= !begin_shares(&e->shares, s->half_life_s, whole_second(e, first));
    if (!e->out_of_memory) {
        memcpy(e->free.cores, s->cores, nodes * sizeof(int32_t));
        memcpy(e->free.memory, s->memory, nodes * sizeof(int64_t));
        if (kinds) memcpy(e->free.gres, s->gres, nodes * kinds * sizeof(int64_t));
        for (size_t node = 0; node < nodes; node++) e->everything[node >> 6] |= 1ull << (node & 63);
        memcpy(e->up, e->everything, words * sizeof(uint64_t));
        e->one_weight = 1;
        for (size_t node = 1; node < nodes; node++) e->one_weight &= s->weights[node] == s->weights[0];
        e->one_weight &= !has_power(e);
        for (size_t view = 0; view < views; view++)
            e->views[view] = (struct view){
                .class = -1, .cores = view_cores + view * nodes, .last = view_last + view * nodes,
                .version = view_version + view * nodes, .able = view_able + view * words, .empty = view_empty + view * words,
                .steps = view_steps + view * words * steps, .order = view_order + view * nodes, .order_at = view_at + view * nodes,
            };
        classify(e);
        int suspends = 0;
        for (int64_t of = 0; s->preempts && of < s->strata; of++) suspends |= s->mode[of] == SUSPEND;
        for (int64_t c = 0; suspends && c < s->classes; c++) e->classes[c].step = 0; /* cores may be held twice */
        for (int64_t of = 0; of < s->strata * s->strata; of++) {
            e->level[of / s->strata] += s->may[of];
            e->yielding[of % s->strata] |= s->may[of];
        }
        memcpy(e->licenses, s->licenses, (size_t)s->license_kinds * sizeof(int64_t));
        for (size_t job = 0; job < jobs; job++) {
            if (job && s->partition[job] == s->partition[job - 1] && s->set[job] == s->set[job - 1]) continue;
            const uint64_t *eligible = s->eligible + (size_t)s->set[job] * words;
            for (size_t w = 0; w < words; w++) e->partition_nodes[(size_t)s->partition[job] * words + w] |= eligible[w];
        }
        if (s->usage) {
            memcpy(e->shares.usage, s->usage, (size_t)s->associations * sizeof(double));
            memcpy(e->shares.factor, s->factors, (size_t)s->associations * sizeof(double));
            e->shares.since = whole_second(e, s->begin_s);
        }
        for (size_t job = 0; job < jobs; job++) {
            e->earliest[job] = s->earliest[job];
            e->limit[job] = s->limit[job];
            e->planned_start[job] = -1;
            if (het_job_of(e, (int32_t)job) >= 0 && s->first_entry[job] == (int64_t)job) e->group_size[s->het_job[job]]++;
            e->ends[job] = NAN;
            e->accrued[job] = s->condition_first[job] == s->condition_first[job + 1] ? s->submit[job] : INFINITY;
            e->ready[job] = s->condition_first[job] == s->condition_first[job + 1] && s->earliest[job] == -INFINITY;
            if (s->group[job] >= 0) e->group_first[s->group[job] + 1]++;
        }
        for (size_t group = 0; group < groups; group++) e->group_first[group + 1] += e->group_first[group];
        for (size_t job = jobs; job-- > 0;) /* backwards: group_first is each group's end, then its begin */
            if (s->group[job] >= 0) e->group_member[--e->group_first[s->group[job] + 1]] = (int32_t)job;
        memmove(e->group_first, e->group_first + 1, groups * sizeof *e->group_first);
        if (!s->trial) simulate(e);
        for (int32_t job = 0; s->trial && job < s->jobs; job++) s->fate[job] = choose_with(e, &e->free, job, e->everything);
        for (size_t job = 0; job < jobs; job++)
            if (e->state[job] == CANCELLED) s->start[job] = NAN;
    }
    for (size_t view = 0; e->views && view < views; view++) free(e->views[view].growth);
    if (e->holders)
        for (size_t node = 0; node < nodes; node++) free(e->holders[node].list);
    for (int k = 0; k < PIECES; k++) free(pieces[k]);
    end_shares(&e->shares);
    slots_close(&e->slots);
    free(e->events), free(e->bits), free(e->held);
    if (has_layer(e)) close_layer(e);
    if (has_power(e)) close_power(e);
    *results = (struct results){
        e->ranges, e->stints, e->stint_count, e->layer.resizes, e->layer.resize_count, e->power.switched, e->power.switched_count,
    };
    return e->out_of_memory ? -1 : e->range_count;
}

/* Simulate. Return the number of ranges of nodes; `results` are the ranges, the times in which jobs held nodes before they
 * were requeued, suspended or resized, the resizes, and the nodes switched off and on. The caller frees them with `tracebed_slurm_free`. -1: out of
 * memory. */
#ifdef WIDE
int64_t tracebed_slurm_simulate_wide(const struct setup *s, struct results *results) { return simulate_setup(s, results); }
#else
int64_t __attribute__((weak)) tracebed_slurm_simulate_wide(const struct setup *s, struct results *results);

int64_t tracebed_slurm_simulate(const struct setup *s, struct results *results) {
#if defined(__x86_64__) && defined(__gnu_linux__)
    if (tracebed_slurm_simulate_wide && __builtin_cpu_supports("avx512vpopcntdq")) return tracebed_slurm_simulate_wide(s, results);
#endif
    return simulate_setup(s, results);
}
#endif
