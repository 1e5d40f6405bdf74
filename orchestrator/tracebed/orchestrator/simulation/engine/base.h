/* The declarations of the engine, and its memory. Part of engine.c. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "double arithmetic is not IEEE double on this platform: use the Python simulator"
#endif

#ifdef TRACEBED_CHECK
#include <stdio.h>
#define CHECK(good) \
    do { if (!(good)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #good); abort(); } } while (0)
#else
#define CHECK(good) ((void)0)
#endif

/* Structures and enumerations shared with Python (library.py). Each is one list, which expands both to the declaration
 * below and to the text that `tracebed_engine_description` returns. */
#define SETUP(_) /* the workload and the options */ \
    _(int64_t, jobs) _(int64_t, nodes) \
    _(const double *, submit) _(const double *, run_time) _(const double *, work) _(const double *, limit) \
    _(const int32_t *, requested) _(const int32_t *, low) _(const int32_t *, high) _(const int32_t *, pref) \
    _(const int32_t *, workload_pref) \
    _(const int32_t *, job_cores) _(const int32_t *, ranks) _(const uint8_t *, malleable) \
    _(const int64_t *, curve) /* job -> index of S(0) in `speedup`, which has S(n) for the job's sizes */ \
    _(const double *, speedup) \
    _(const double *, parallel) /* share of the run time on the requested nodes in which all cores work; null if `cores` is */ \
    _(const int32_t *, cores) /* of each node; null: no node has fewer than a job requests, and none is shared */ \
    _(int64_t, policy) _(int64_t, priority) _(double, max_age_s) /* of aging */ _(int64_t, runtime_model) _(int64_t, over_limit) \
    _(int64_t, shares) _(const uint8_t *, kind) _(const int32_t *, sockets) /* of each job, node; null: no sharing */ \
    _(double, launch_s) _(double, end_s) _(double, reconfiguration_s) _(double, launch_join_s) \
    _(double, launch_rank_s) _(double, end_rank_s) _(double, expand_s) _(double, expand_rank_s) _(double, release_s) _(double, grain_s) /* as in Overheads */ \
    _(const double *, drawn_launch) _(const double *, drawn_end) /* factors of each job; null: 1, as for all steps */ \
    _(const double *, drawn_expand) _(const double *, drawn_reconfiguration) _(const double *, drawn_release) /* of each row */ \
    _(int64_t, drawn_rows) \
    _(const double *, pause_fixed) _(const double *, pause_rank) /* of each job: expansions, shrinks, as in delays.py */ \
    _(const double *, pause_release) /* of each job; null: all jobs have the overheads */ \
    _(double, interval_s) _(double, malleability_interval_s) \
    _(int64_t, sleep) _(const double *, boot_s) _(const double *, shutdown_s) /* of each node; null: none sleeps */ \
    _(double, idle_s) _(int64_t, keep) /* of OFF_WHEN_IDLE */
#define PARAMETERS(_) /* of policies; the parameters of other policies than that of the simulation are 0 or null */ \
    _(int64_t, first_fit_only) _(int64_t, grow_at_start) _(int64_t, plan_by_limit) _(int64_t, narrow) \
    _(int64_t, ties_by_id) _(int64_t, count_idle) _(int64_t, calls) _(int64_t, promise) \
    _(int64_t, spread) _(int64_t, if_idle) _(int64_t, straight) /* of the Kassel family */ \
    _(int64_t, backfill_depth) _(double, backfill_interval_s) /* of conservative and sd */ \
    _(int64_t, named_nodes) /* whether easy, conservative reserve named nodes */ \
    _(double, max_slowdown) /* NaN: dynamic */ _(double, slowdown_quantile) /* of dynamic; 0: the mean */ \
    _(double, sharing_factor) _(int64_t, mates) _(int64_t, candidates) \
    _(int64_t, include_free_nodes) _(int64_t, inside) _(int64_t, if_earlier) _(int64_t, partial) \
    _(int64_t, weighted) _(int64_t, keep_plan) /* of sd */ \
    _(double, window_s) _(double, resolution_s) _(int64_t, slots) _(int64_t, most_of_user) \
    _(const int32_t *, user) /* of each job; null: no limit for users; all of the passes of sd */ \
    _(double, speed) _(int64_t, sched_interval) _(int64_t, batch_sched_delay) _(int64_t, default_queue_depth) \
    _(int64_t, sched_max_job_start) _(int64_t, bf_interval) _(int64_t, bf_resolution) _(int64_t, bf_window) \
    _(int64_t, bf_max_job_test) _(int64_t, bf_max_job_start) _(int64_t, bf_max_job_user) _(int64_t, bf_node_space_size) \
    _(int64_t, bf_min_age_reserve) _(int64_t, bf_job_part_count_reserve) _(double, release) _(double, epoch_s) \
    _(double, sched_loop_s) \
    _(double, sched_phase_s) _(double, bf_loop_s) _(double, bf_phase_s) /* of slurm */ \
    _(int64_t, serial) _(int64_t, as_asked) /* of drom-share */ _(int64_t, shrinks_below_pref) /* of dmr */
#define RESULTS(_) /* the results so far, valid until the next `advance` */ \
    _(int64_t, reconfigurations) _(int64_t, ranges) \
    _(const double *, start) _(const double *, launched) _(const double *, end) _(const uint8_t *, state) /* of each job */ \
    _(const int32_t *, row_job) _(const int32_t *, row_from) _(const int32_t *, row_to) /* of each reconfiguration */ \
    _(const double *, row_asked) _(const double *, row_decided) _(const double *, row_applied) \
    _(const double *, row_ended) \
    _(const int32_t *, held_job) _(const int32_t *, held_first) _(const int32_t *, held_nodes) /* of each range of nodes */ \
    _(const int32_t *, held_since) _(const int32_t *, held_until) /* rows of `instants` */ \
    _(int64_t, instant_count) _(const double *, instants) /* ascending, without sharing */ \
    _(const int32_t *, held_part) /* cores of a guest, minus those of an owner, 0: all; null: no sharing */ \
    _(int64_t, core_changes) _(const int32_t *, core_job) _(const int32_t *, core_node) _(const int32_t *, core_from) \
    _(const int32_t *, core_to) _(const uint8_t *, core_cause) _(const double *, core_asked) \
    _(int64_t, power_changes) _(const int32_t *, power_node) _(const double *, power_time) _(const uint8_t *, power_state)
#define POLICY(_) _(FCFS) _(FIRSTFIT) _(EASY) _(PREF) _(AVG) _(CONSERVATIVE) _(SD) _(DROM_SHARE) _(DMR) _(SLURM)
#define KIND(_) _(RIGID) _(EVOLVING) _(MOLDABLE) _(MALLEABLE) /* of a job; the last two can be guests */
#define CAUSE(_) _(LEND) _(RETURN) _(INHERIT) /* of a change of cores */
#define INSIDE(_) _(BEFORE) _(AFTER) _(OFF) /* as in sd.py */
#define PRIORITY(_) _(AS_SUBMITTED) _(LARGEST_SLOWDOWN_FIRST) _(SHORTEST_FIRST) _(AGING)
#define STATE(_) _(UNKNOWN) _(COMPLETED) _(KILLED) _(REJECTED) /* of a job */
#define RUNTIME_MODEL(_) _(IDEAL) _(WORST_CASE)
#define COUNT_IDLE(_) _(YES) _(NO) _(HEAD) /* towards the room for a waiting job */
#define PROMISE(_) _(POOL) _(DIRECT) _(STEAL) /* nodes that serve a promise: any, its own, those of all promises */
#define SLEEP(_) _(ALWAYS_ON) _(OFF_IN_WINDOWS) _(OFF_WHEN_IDLE) /* when nodes are switched off */
#define POWER(_) _(NODE_ON) _(NODE_SHUTDOWN) _(NODE_OFF) _(NODE_BOOT) /* of a node */
#define CALLS(_) _(EVENT) _(SETTLE) _(TICK) /* of the policy */
#define OVER_LIMIT(_) _(EXTEND) _(KILL) _(AGAIN) _(NOW) /* jobs that exceed their limit */
#define OUTCOME(_) _(DONE) _(MORE) _(NO_MEMORY) _(IMPOSSIBLE) /* of `advance` */

#define DECLARED(type, name) type name;
#define DESCRIBED(type, name) " " #type " " #name ";"
#define VALUE(name) name,
#define NAMED(name) " " #name ";"

struct setup { SETUP(DECLARED) PARAMETERS(DECLARED) };
struct results { RESULTS(DECLARED) };
enum { POLICY(VALUE) };
enum { KIND(VALUE) };
enum { CAUSE(VALUE) };
enum { INSIDE(VALUE) };
enum { PRIORITY(VALUE) };
enum { STATE(VALUE) };
enum { RUNTIME_MODEL(VALUE) };
enum { OVER_LIMIT(VALUE) };
enum { COUNT_IDLE(VALUE) };
enum { PROMISE(VALUE) };
enum { SLEEP(VALUE) };
enum { POWER(VALUE) };
enum { CALLS(VALUE) };
enum { OUTCOME(VALUE) };
enum { END, POINT, RELEASED };                             /* events, in this order at one instant */
enum { NONE, RESIZING, RELEASING };                        /* stages of a resize that is not complete */
enum { LOW, PREFERRED, HIGH };                             /* sizes of a job */

struct event { double time; int32_t what, job; };
struct range { int64_t row; int32_t first, count, below; };   /* a job's nodes and ledger row; `below`: earlier range */
struct progress { double done, since, rate; };
struct release { double end; int32_t job, nodes; };
struct taken { int32_t job, nodes; };                       /* nodes of a shrinking job for a promise */
struct coming { int32_t slot, nodes, next; };               /* the same; `next`: of the same shrinking job */
struct place { double key; int32_t job; };                    /* in the queue, smallest key first */
struct candidate { double key; int32_t order; };               /* for a resize, smallest key first */
struct elastic {                                            /* a running job whose size may change */
    int32_t job, size, new_size, bound[3];                  /* `new_size`: decided, but not carried out */
    int64_t started_in, shrunk_in;                          /* policy call that started, shrunk it; 0: none */
    int32_t resizing;                                       /* whether a resize is not complete */
};

/* Running jobs ordered by (expected end, job), in chunks of at most CHUNK with the sum of their nodes. */
#define CHUNK 128
struct chunk { int32_t count; int64_t nodes; struct release row[CHUNK]; };
#define RELEASES(e, r) /* each running job `r`, in this order */ \
    for (int64_t chunk_ = 0; chunk_ < (e)->chunk_count; chunk_++) \
        for (const struct release *r = (e)->chunks[chunk_]->row, *end_ = r + (e)->chunks[chunk_]->count; r < end_; r++)

/* Waiting jobs in blocks of BLOCK, blocks in groups of GROUP. Each block and group has, for every class of sizes, the
 * shortest limit of its waiting jobs of at most that size. After removals this is a lower bound until recomputed. */
#define BLOCK 128
#define GROUP 64
#define CLASSES 128
#define MOVES 16          /* an insertion sort with more moves a job is given up */
#define SLACK_S 1e-6
#define SHORTEST_S 1.0    /* as in jobs.py */
#define ROUNDING 1e-9     /* as in simulator.py */

struct engine {
    struct setup in;
    /* simulator */
    double now, call, wake;
    int64_t next_job;
    struct event *heap; int64_t heap_count, heap_room;
    double *ends;                    /* the current end; NaN: no end is scheduled */
    struct progress *progress;       /* of malleable jobs, actual */
    uint8_t *pending;                /* stage of the resize: RESIZING until its malleability point, then RELEASING */
    /* cluster */
    uint64_t *idle_bits; int64_t words, lowest, cluster_idle;
    struct range *ranges; int32_t range_count, range_free; int64_t range_room;
    int32_t *held;                   /* job, or number of nodes that are being switched off -> its last range; -1: none */
    /* scheduler and state */
    int64_t idle, returning;
    int freed, resized_in_call, decided, settled;  /* as in state.py; `decided`: any decision in this call */
    int adaptable;                   /* whether some job may start on fewer nodes than it prefers */
    int32_t arrived;                 /* first job submitted since the policy's last call; -1: none */
    int32_t *size;                   /* 0: not running */
    double *expected_end;
    struct progress *limits;         /* of malleable jobs, as the scheduler expects */
    double *limit;                   /* progress at which a job reaches its limit, or with AGAIN its next one */
    int32_t *giving_back;            /* nodes that a pending shrink will release */
    int64_t sum_promised, sum_giving_back;
    int32_t *promised, *promised_nodes; int64_t promises, promise_room;
    /* promises with nodes of their own (not POOL), as in scheduler.py; slot: the promised job, or `jobs` for the common one */
    int32_t *earmarked; int64_t sum_earmarked;     /* slot -> its idle nodes */
    int32_t *coming_of; int64_t sum_coming;        /* shrinking job -> its first row of `coming`; -1: none */
    struct coming *coming; int32_t coming_count, coming_free; int64_t coming_room;
    struct elastic *resizable; int64_t resizable_count;  /* in order of start or, with ties_by_id, of submission */
    int64_t lacking[3];              /* nodes that these jobs lack up to each of their bounds */
    int64_t bar_started, bar_shrunk; /* jobs started, shrunk in these calls are not eligible for a resize */
    int64_t undone;                  /* jobs whose decided size is not carried out */
    int32_t *place;                  /* job -> index in `resizable` */
    struct chunk **chunks; int64_t chunk_count, chunk_room; int64_t changes;
    int64_t question_need, question_idle, question_changes; double shadow; int64_t extra;
    /* queue */
    uint8_t *waiting; int64_t waiting_count; int32_t queue_head, queue_end;
    struct place *order; int64_t order_count;      /* with a priority; new jobs at the end until `arrange` */
    int64_t *rank;                   /* job -> index in `order` */
    double arranged_at;              /* NaN: jobs were added since */
    double *shortest_limit;
    int32_t *class_of; int32_t *smallest; int32_t classes; int64_t blocks, groups;
    double *block_shortest, *group_shortest;       /* [class][block], [class][group] */
    /* scratch arrays of the policies */
    int32_t *overdue;                /* jobs past their limit */
    struct candidate *candidates;
    int64_t calls, *started_in;      /* policy call that started a job */
    int32_t *promises_to, *promise_sizes;
    struct taken *taken; int64_t taken_count, taken_room;
    int64_t *taken_end;              /* promise of this call -> end of its rows of `taken` */
    int64_t *taken_row;              /* shrinking job -> its last row of `taken` */
    double *times; int32_t *idle_then; int64_t step, steps, step_room, steps_merged;  /* the profile: [step, steps) */
    double *reserved;                /* waiting job -> planned start; NaN: not planned */
    uint64_t *idle_nodes_then;       /* with named nodes: the idle nodes of each step of the profile, as bits */
    uint64_t **reserved_nodes;       /* waiting job -> its planned nodes as bits; null: none */
    uint64_t *reserved_for_head, *free_nodes;      /* scratch sets of nodes, as bits */
    const uint64_t *among;           /* the nodes on which the next job starts, lowest first; null: all idle nodes */
    int lapsed;                      /* whether all reservations and the profile are invalid */
    int ends_later;                  /* whether a job waits for the boot of its nodes since the last call */
    /* record */
    double *start, *launched, *end; uint8_t *state;
    int64_t row_count, row_room;                    /* reconfigurations */
    int32_t *row_job, *row_from, *row_to; double *row_asked, *row_decided, *row_applied, *row_ended;
    int32_t *open;                   /* job -> its pending row; -1: none */
    int64_t held_count, held_room;                  /* ledger */
    int32_t *held_job, *held_first, *held_nodes, *held_since, *held_until;
    int32_t *held_part;
    int64_t instant_count, instant_room; double *instants;  /* at which nodes were taken or given back */
    int64_t power_count, power_room;                /* changes of the power of nodes */
    int32_t *power_node; double *power_time; uint8_t *power_state;
    struct sleep *sleep;             /* null: no node is switched off */
    struct sharing *sharing;         /* null: no node is shared */
    struct trial *trial; struct plan *plan;  /* null: not sd */
    struct slurm *slurm;             /* null: not slurm */
    int failed;                      /* NO_MEMORY, IMPOSSIBLE; 0: neither */
};

/* The arrays of the engine: name and number of items. Each list expands to their allocation, their growth and their release. */
#define LEDGER(_) /* a row per range of nodes */ \
    _(e, held_job, room) _(e, held_first, room) _(e, held_nodes, room) _(e, held_since, room) _(e, held_until, room)
#define RESIZES(_) /* a row per reconfiguration */ \
    _(e, row_job, room) _(e, row_from, room) _(e, row_to, room) _(e, row_asked, room) _(e, row_decided, room) \
    _(e, row_applied, room) _(e, row_ended, room)
#define POWER_CHANGES(_) /* a row per node and change */ \
    _(e, power_node, room) _(e, power_time, room) _(e, power_state, room)
#define ARRAYS(_) \
    LEDGER(_) RESIZES(_) POWER_CHANGES(_) _(e, instants, room) \
    _(e, heap, room) _(e, ranges, room) _(e, promised, room) _(e, promised_nodes, room) _(e, chunks, room) \
    _(e, times, room) _(e, idle_then, room) _(e, idle_bits, e->words) \
    _(e, ends, jobs) _(e, progress, jobs) _(e, limits, jobs) _(e, pending, jobs) _(e, held, holders) _(e, size, holders) \
    _(e, expected_end, jobs) _(e, giving_back, jobs) _(e, resizable, jobs) _(e, place, jobs) _(e, waiting, jobs) \
    _(e, start, jobs) _(e, launched, jobs) _(e, end, jobs) _(e, state, jobs) _(e, open, jobs) _(e, shortest_limit, jobs) \
    _(e, limit, jobs) _(e, reserved, jobs) _(e, started_in, jobs) _(e, promises_to, jobs) _(e, promise_sizes, jobs) \
    _(e, overdue, nodes) /* at most as many jobs run as there are nodes */ _(e, candidates, nodes)
#define ARRAYS_OF_PROMISES(_) /* if promises have nodes of their own */ \
    _(e, earmarked, jobs + 1) _(e, coming_of, jobs) _(e, coming, room) _(e, taken, room) _(e, taken_end, jobs) _(e, taken_row, jobs)
#define ARRAYS_OF_PRIORITY(_) _(e, order, jobs) _(e, rank, jobs)
#define ARRAYS_OF_NODES(_) /* if named nodes are reserved */ \
    _(e, idle_nodes_then, room * e->words) _(e, reserved_nodes, jobs) _(e, reserved_for_head, e->words) _(e, free_nodes, e->words)
#define ARRAYS_OF_CLASSES(_) \
    _(e, block_shortest, e->classes * e->blocks) _(e, group_shortest, e->classes * e->groups)
#define MADE(owner, name, count) owner->name = make(e, count, sizeof *owner->name);
#define GROWN(owner, name, count) && grow(e, &owner->name, count, sizeof *owner->name)
#define FREED(owner, name, count) free(owner->name);

/* -- memory and numbers -------------------------------------------------------------------------------------------- */

static void *make(struct engine *e, int64_t count, size_t size) {
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    if (!memory) e->failed = NO_MEMORY;
    return memory;
}

/* Grow the array at `array` to hold more than `count` items. A failure is recorded and leaves the array unchanged. */
static int grow(struct engine *e, void *array, int64_t room, size_t size) {
    void **at = array;
    void *larger = realloc(*at, (size_t)room * size);
    if (!larger) { e->failed = NO_MEMORY; return 0; }
    *at = larger;
    return 1;
}

/* Make room for one more item in an array with `count` items and room for `*room`. Return whether there is room. */
static int make_room(struct engine *e, void *array, int64_t count, int64_t *room, size_t size) {
    if (count < *room) return 1;
    if (!grow(e, array, *room * 2, size)) return 0;
    *room *= 2;
    return 1;
}

static int32_t at_most(int64_t a, int64_t b) { return (int32_t)(a < b ? a : b); }
