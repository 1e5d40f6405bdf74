/* The simulator with its scheduler, cluster, queue and policies as one compiled loop.
 *
 * The reference is the Python code: simulation/simulator.py, and scheduler.py, cluster.py, queue.py, state.py and policies/
 * of scheduling/. Names are the same, and sums, products and comparisons of times are evaluated in the same order, so
 * schedules are equal to the bit. Only the data structures differ. Tests compare both on drawn workloads, under all
 * options. docs/explanation/engine.md explains how to add a policy to this file.
 *
 * Jobs are numbered in the order of submission, as in Python. Times are doubles, in s. No function keeps state outside
 * its `engine`. Compile without contraction (-ffp-contract=off); -DTRACEBED_CHECK adds checks of bounds and invariants.
 */
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
    _(const int32_t *, job_cores) _(const uint8_t *, malleable) \
    _(const int64_t *, curve) /* job -> index of S(0) in `speedup`, which has S(n) for the job's sizes */ \
    _(const double *, speedup) \
    _(const double *, parallel) /* share of the run time on the requested nodes in which all cores work */ \
    _(const int32_t *, cores) /* of each node; null: no node has fewer than a job requests */ \
    _(int64_t, policy) _(int64_t, runtime_model) _(int64_t, over_limit) \
    _(int64_t, first_fit_only) _(int64_t, grow_at_start) _(int64_t, plan_by_limit) _(int64_t, narrow) \
    _(int64_t, ties_by_id) _(int64_t, count_idle) _(int64_t, calls) /* of the Kassel family */ \
    _(int64_t, backfill_depth) _(double, backfill_interval_s) /* of conservative */ \
    _(double, launch_s) _(double, end_s) _(double, reconfiguration_s) _(double, launch_join_s) \
    _(double, launch_rank_s) _(double, end_rank_s) _(double, expand_s) _(double, expand_rank_s) _(double, release_s) _(double, grain_s) /* as in Overheads */ \
    _(double, interval_s) _(double, malleability_interval_s)
#define RESULTS(_) /* the results so far, valid until the next `advance` */ \
    _(int64_t, reconfigurations) _(int64_t, ranges) \
    _(const double *, start) _(const double *, launched) _(const double *, end) _(const uint8_t *, state) /* of each job */ \
    _(const int32_t *, row_job) _(const int32_t *, row_from) _(const int32_t *, row_to) /* of each reconfiguration */ \
    _(const double *, row_asked) _(const double *, row_decided) _(const double *, row_applied) \
    _(const double *, row_ended) \
    _(const int32_t *, held_job) _(const int32_t *, held_first) _(const int32_t *, held_nodes) /* of each range of nodes */ \
    _(const double *, held_since) _(const double *, held_until)
#define POLICY(_) _(FCFS) _(FIRSTFIT) _(EASY) _(PREF) _(AVG) _(CONSERVATIVE)
#define STATE(_) _(UNKNOWN) _(COMPLETED) _(KILLED) _(REJECTED) /* of a job */
#define RUNTIME_MODEL(_) _(IDEAL) _(WORST_CASE)
#define COUNT_IDLE(_) _(YES) _(NO) _(HEAD) /* towards the room for a waiting job */
#define CALLS(_) _(EVENT) _(SETTLE) _(TICK) /* of the policy */
#define OVER_LIMIT(_) _(EXTEND) _(KILL) _(AGAIN) _(NOW) /* jobs that exceed their limit */
#define OUTCOME(_) _(DONE) _(MORE) _(NO_MEMORY) _(IMPOSSIBLE) /* of `advance` */

#define DECLARED(type, name) type name;
#define DESCRIBED(type, name) " " #type " " #name ";"
#define VALUE(name) name,
#define NAMED(name) " " #name ";"

struct setup { SETUP(DECLARED) };
struct results { RESULTS(DECLARED) };
enum { POLICY(VALUE) };
enum { STATE(VALUE) };
enum { RUNTIME_MODEL(VALUE) };
enum { OVER_LIMIT(VALUE) };
enum { COUNT_IDLE(VALUE) };
enum { CALLS(VALUE) };
enum { OUTCOME(VALUE) };
enum { END, POINT, RELEASED };                             /* events, in this order at one instant */
enum { NONE, RESIZING, RELEASING };                        /* stages of a resize that is not complete */

struct event { double time; int32_t what, job; };
struct range { int64_t row; int32_t first, count, below; };   /* a job's nodes and ledger row; `below`: earlier range */
struct progress { double done, since, rate; };
struct release { double end; int32_t job, nodes; };
struct candidate { double key; int32_t order, job; };          /* for a resize, smallest key first */

/* Running jobs ordered by (expected end, job), in chunks of at most CHUNK with the sum of their nodes. */
#define CHUNK 128
struct chunk { int32_t count; int64_t nodes; struct release row[CHUNK]; };

/* Waiting jobs in blocks of BLOCK, blocks in groups of GROUP. Each block and group has, for every class of sizes, the
 * shortest limit of its waiting jobs of at most that size. After removals this is a lower bound until recomputed. */
#define BLOCK 128
#define GROUP 64
#define CLASSES 128
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
    struct range *ranges; int32_t range_count, range_room, range_free;
    int32_t *held;                   /* job -> its last range; -1: none */
    /* scheduler and state */
    int64_t idle, returning;
    int freed, resized_in_call, decided, settled;  /* as in state.py; `decided`: any decision in this call */
    int adaptable;                   /* whether some job may start on fewer nodes than it prefers */
    int32_t arrived;                 /* first job submitted since the policy's last call; -1: none */
    int32_t *size;                   /* 0: not running */
    double *expected_end;
    struct progress *limits;         /* of malleable jobs, as the scheduler expects */
    double *limit;                   /* progress at which a job reaches its limit, or with AGAIN its next one */
    uint8_t *resizing;
    int32_t *giving_back;            /* nodes that a pending shrink will release */
    int64_t sum_promised, sum_giving_back;
    int32_t *promised, *promised_nodes; int64_t promises, promise_room;
    int32_t *resizable; int64_t resizable_count;   /* in order of start; -1: ended */
    int32_t *place;                  /* job -> index in `resizable` */
    struct chunk **chunks; int64_t chunk_count, chunk_room; int64_t changes;
    int64_t question_need, question_idle, question_changes; double shadow; int64_t extra;
    /* queue */
    uint8_t *waiting; int64_t waiting_count; int32_t queue_head, queue_end;
    double *shortest_limit;
    int32_t *class_of; int32_t *smallest; int32_t classes; int64_t blocks, groups;
    double *block_shortest, *group_shortest;       /* [class][block], [class][group] */
    /* scratch arrays of the policies */
    int32_t *eligible; int64_t eligible_count;     /* in order of start or, with ties_by_id, of submission */
    struct candidate *candidates;
    int32_t *new_size;               /* of eligible jobs */
    int64_t calls, *started_in, *shrunk_in;        /* policy call that started, shrunk a job */
    int32_t *promises_to, *promise_sizes;
    double *times; int32_t *idle_then; int64_t step, steps, step_room, steps_merged;  /* the profile: [step, steps) */
    double *reserved;                /* waiting job -> planned start; NaN: not planned */
    int lapsed;                      /* whether all reservations and the profile are invalid */
    /* record */
    double *start, *launched, *end; uint8_t *state;
    int64_t row_count, row_room;                    /* reconfigurations */
    int32_t *row_job, *row_from, *row_to; double *row_asked, *row_decided, *row_applied, *row_ended;
    int32_t *open;                   /* job -> its pending row; -1: none */
    int64_t held_count, held_room;                  /* ledger */
    int32_t *held_job, *held_first, *held_nodes; double *held_since, *held_until;
    int failed;                      /* NO_MEMORY, IMPOSSIBLE; 0: neither */
};

/* -- memory -------------------------------------------------------------------------------------------------------- */

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

/* -- runtime model --------------------------------------------------------------------------------------------------- */

/* Return the rate on whole nodes. */
static double rate(const struct engine *e, int32_t job, int32_t nodes) {
    const struct setup *in = &e->in;
    if (nodes == in->requested[job]) return 1.0;
    CHECK(in->malleable[job] && nodes >= in->low[job] && nodes <= in->high[job]);
    return in->speedup[in->curve[job] + nodes] / in->speedup[in->curve[job] + in->requested[job]];
}

/* Return the rate that the scheduler plans with. */
static double planned_rate(const struct engine *e, int32_t job, int32_t nodes) {
    return e->in.plan_by_limit ? 1.0 : rate(e, job, nodes);
}

/* Return the actual rate: with the share of the requested cores on the first `nodes` allocated, as `Jobs.rate`. */
static double rate_on_nodes(const struct engine *e, int32_t job, int32_t nodes) {
    double r = rate(e, job, nodes);
    if (!e->in.cores) return r;
    int64_t held = 0, sum = 0, wanted = e->in.job_cores[job], poorest = wanted;
    for (int32_t at = e->held[job]; at >= 0; at = e->ranges[at].below) held += e->ranges[at].count;
    for (int32_t at = e->held[job]; at >= 0; at = e->ranges[at].below) {
        const struct range *range = &e->ranges[at];
        held -= range->count;  /* now the nodes taken before this range */
        for (int64_t n = 0; n < range->count && held + n < nodes; n++) {
            int64_t cores = e->in.cores[range->first + n];
            sum += cores < wanted ? cores : wanted;
            if (cores < poorest) poorest = cores;
        }
    }
    double share = e->in.runtime_model == IDEAL ? (double)sum / (double)(wanted * nodes) : (double)poorest / (double)wanted;
    if (share == 1.0) return r;
    double parallel = e->in.parallel[job] * e->in.requested[job] / nodes * r;
    return r * share / (share + parallel * (1.0 - share));
}

static double next_multiple(double step, double at, double origin, int64_t first) {
    if ((at - origin) / step >= 0x1p53) return at; /* as in scheduler.py */
    double k = ceil((at - origin) / step) - 1.0;
    if (k < (double)first) k = (double)first;
    while (origin + k * step < at) k += 1.0;
    return origin + k * step;
}

/* -- events ---------------------------------------------------------------------------------------------------------- */

static int sooner(const struct event *a, const struct event *b) {
    if (a->time != b->time) return a->time < b->time;
    if (a->what != b->what) return a->what < b->what;
    return a->job < b->job;
}

static void push(struct engine *e, double time, int32_t what, int32_t job) {
    if (e->heap_count == e->heap_room) {
        if (!grow(e, &e->heap, e->heap_room * 2, sizeof *e->heap)) return;
        e->heap_room *= 2;
    }
    struct event event = {time, what, job};
    int64_t at = e->heap_count++;
    while (at > 0 && sooner(&event, &e->heap[(at - 1) / 2])) {
        e->heap[at] = e->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    e->heap[at] = event;
}

static struct event pop(struct engine *e) {
    CHECK(e->heap_count > 0);
    struct event top = e->heap[0], last = e->heap[--e->heap_count];
    int64_t at = 0, child;
    while ((child = 2 * at + 1) < e->heap_count) {
        if (child + 1 < e->heap_count && sooner(&e->heap[child + 1], &e->heap[child])) child++;
        if (!sooner(&e->heap[child], &last)) break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    if (e->heap_count) e->heap[at] = last;
    return top;
}

static void end_at(struct engine *e, int32_t job, double end) {
    e->ends[job] = end;
    push(e, end, END, job);
}

/* -- cluster: idle nodes as bits, allocated nodes as ranges ---------------------------------------------------------- */

/* Add a row of nodes held from `since` to the ledger; return its index, or -1 without memory. */
static int64_t enter(struct engine *e, int32_t job, int64_t first, int64_t count, double since) {
    if (e->held_count == e->held_room) {
        int64_t room = e->held_room * 2;
        if (!grow(e, &e->held_job, room, 4) || !grow(e, &e->held_first, room, 4) || !grow(e, &e->held_nodes, room, 4)
            || !grow(e, &e->held_since, room, 8) || !grow(e, &e->held_until, room, 8)) return -1;
        e->held_room = room;
    }
    int64_t row = e->held_count++;
    e->held_job[row] = job;
    e->held_first[row] = (int32_t)first;
    e->held_nodes[row] = (int32_t)count;
    e->held_since[row] = since;
    return row;
}

static void hold(struct engine *e, int32_t job, int64_t first, int64_t count) {
    int64_t row = enter(e, job, first, count, e->now);  /* in order of allocation, mostly the order of the table */
    if (row < 0) return;
    int32_t at = e->range_free;
    if (at >= 0) {
        e->range_free = e->ranges[at].below;
    } else {
        if (e->range_count == e->range_room) {
            if (!grow(e, &e->ranges, (int64_t)e->range_room * 2, sizeof *e->ranges)) return;
            e->range_room *= 2;
        }
        at = e->range_count++;
    }
    e->ranges[at] = (struct range){row, (int32_t)first, (int32_t)count, e->held[job]};
    e->held[job] = at;
}

/* Allocate the `count` lowest idle nodes to `job`. */
static void take(struct engine *e, int32_t job, int64_t count) {
    CHECK(count >= 0 && count <= e->cluster_idle);
    e->cluster_idle -= count;
    int64_t first = -1, length = 0, word = e->lowest;
    while (count > 0) {
        CHECK(word < e->words);
        uint64_t bits = e->idle_bits[word];
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
    e->lowest = word;
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

/* -- releases: when nodes are expected to become idle ----------------------------------------------------------------- */

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
    if (e->chunk_count == e->chunk_room) {
        if (!grow(e, &e->chunks, e->chunk_room * 2, sizeof *e->chunks)) return 0;
        e->chunk_room *= 2;
    }
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

/* Set e->shadow and e->extra to the shadow time and extra nodes of a job that needs more than the idle nodes. */
static void reservation(struct engine *e, int64_t need) {
    int64_t idle = e->idle + e->returning;
    if (e->question_need == need && e->question_idle == idle && e->question_changes == e->changes && e->shadow > e->now)
        return;
    e->question_need = need;
    e->question_idle = idle;
    e->question_changes = e->changes;
    double shadow = e->now;
    int64_t freed = idle, at = 0;
    int32_t row = 0;
    if (idle < need) {
        while (at < e->chunk_count && freed + e->chunks[at]->nodes < need) freed += e->chunks[at++]->nodes;
        CHECK(at < e->chunk_count);
        if (at == e->chunk_count) { e->failed = IMPOSSIBLE; return; }
        while (freed + e->chunks[at]->row[row].nodes < need) freed += e->chunks[at]->row[row++].nodes;
        double end = e->chunks[at]->row[row].end;
        if (end > shadow) shadow = end;
    }
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

/* -- queue ------------------------------------------------------------------------------------------------------------ */

static void queue_append(struct engine *e, int32_t job) {
    e->waiting[job] = 1;
    e->waiting_count++;
    if (job + 1 > e->queue_end) e->queue_end = job + 1;
    if (job < e->queue_head) e->queue_head = job;
    double limit = e->shortest_limit[job];
    int64_t block = job / BLOCK, group = block / GROUP;
    for (int32_t c = e->class_of[job]; c < e->classes && limit < e->block_shortest[c * e->blocks + block]; c++)
        e->block_shortest[c * e->blocks + block] = limit;
    for (int32_t c = e->class_of[job]; c < e->classes && limit < e->group_shortest[c * e->groups + group]; c++)
        e->group_shortest[c * e->groups + group] = limit;
}

static void queue_remove(struct engine *e, int32_t job) {
    CHECK(e->waiting[job]);
    e->waiting[job] = 0;
    e->waiting_count--;
}

/* Return the first waiting job, or -1. */
static int32_t queue_first(struct engine *e) {
    if (!e->waiting_count) return -1;
    while (!e->waiting[e->queue_head]) e->queue_head++;
    return e->queue_head;
}

static void summarize_block(struct engine *e, int64_t block) {
    int64_t end = (block + 1) * BLOCK < e->in.jobs ? (block + 1) * BLOCK : e->in.jobs;
    for (int32_t c = 0; c < e->classes; c++) e->block_shortest[c * e->blocks + block] = INFINITY;
    for (int64_t job = block * BLOCK; job < end; job++) {
        double *shortest = &e->block_shortest[e->class_of[job] * e->blocks + block];
        if (e->waiting[job] && e->shortest_limit[job] < *shortest) *shortest = e->shortest_limit[job];
    }
    for (int32_t c = 1; c < e->classes; c++) {
        double *shortest = &e->block_shortest[c * e->blocks + block];
        if (shortest[-e->blocks] < *shortest) *shortest = shortest[-e->blocks];
    }
}

static void summarize_group(struct engine *e, int64_t group) {
    int64_t end = (group + 1) * GROUP < e->blocks ? (group + 1) * GROUP : e->blocks;
    for (int32_t c = 0; c < e->classes; c++) {
        double shortest = INFINITY;
        for (int64_t block = group * GROUP; block < end; block++)
            if (e->block_shortest[c * e->blocks + block] < shortest) shortest = e->block_shortest[c * e->blocks + block];
        e->group_shortest[c * e->groups + group] = shortest;
    }
}

/* Return the last class whose smallest size is at most `nodes`, or -1. */
static int32_t class_at_most(const struct engine *e, int64_t nodes) {
    int32_t low = 0, high = e->classes;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (e->smallest[middle] <= nodes) low = middle + 1; else high = middle;
    }
    return low - 1;
}

/* Return the first job behind `after` that needs at most `idle` nodes and either has a limit of at most `time` seconds
 * or needs at most `extra` nodes; -1 if there is no such job. */
static int32_t first_fit(struct engine *e, int32_t after, int64_t idle, double time, int64_t extra) {
    time += SLACK_S;
    if (extra > idle) extra = idle;
    int32_t start = after + 1 > e->queue_head ? after + 1 : e->queue_head;
    int32_t idle_class = class_at_most(e, idle), extra_class = class_at_most(e, extra);
    if (idle_class < 0 || start >= e->queue_end) return -1;
    const double *of_idle = &e->block_shortest[idle_class * e->blocks];
    const double *of_extra = extra_class < 0 ? NULL : &e->block_shortest[extra_class * e->blocks];
    const double *group_idle = &e->group_shortest[idle_class * e->groups];
    const double *group_extra = extra_class < 0 ? NULL : &e->group_shortest[extra_class * e->groups];
    int64_t last = (e->queue_end - 1) / BLOCK;
    for (int64_t group = start / BLOCK / GROUP; group <= last / GROUP; group++) {
        if (!(group_idle[group] <= time || (group_extra && group_extra[group] < INFINITY))) continue;
        int64_t block = group * GROUP, end = block + GROUP - 1 < last ? block + GROUP - 1 : last;
        int looked = block > start / BLOCK;  /* whether the whole group was searched */
        if (block < start / BLOCK) block = start / BLOCK;
        for (; block <= end; block++) {
            if (!(of_idle[block] <= time || (of_extra && of_extra[block] < INFINITY))) continue;
            int32_t job = (int32_t)(block * BLOCK);
            int32_t stop = job + BLOCK < e->queue_end ? job + BLOCK : e->queue_end;
            if (job < start) job = start;
            for (; job < stop; job++)
                if (e->waiting[job] && e->in.low[job] <= idle
                    && (e->shortest_limit[job] <= time || e->in.low[job] <= extra)) return job;
            summarize_block(e, block);
        }
        if (looked) summarize_group(e, group);
    }
    return -1;
}

/* -- scheduler -------------------------------------------------------------------------------------------------------- */

static void set_aside(struct engine *e) {
    int64_t to_hold = e->sum_promised - e->sum_giving_back;
    e->idle = e->cluster_idle - (to_hold > 0 ? to_hold : 0);
    e->returning = to_hold < 0 ? -to_hold : 0;
}

static void came_free(struct engine *e) {
    e->freed = 1;
    e->settled = 0;
    set_aside(e);
}

static void expect(struct engine *e, int32_t job, double end) {
    releases_remove(e, job, e->expected_end[job]);
    releases_add(e, job, end, e->size[job]);
    e->expected_end[job] = end;
}

static double due(const struct engine *e, double at) {
    return e->in.interval_s != 0.0 ? next_multiple(e->in.interval_s, at, 0.0, INT64_MIN) : at;
}

static double launch_overhead(const struct setup *in, int32_t ranks) {
    if (ranks == 1) return in->launch_s;
    return in->launch_s + (in->launch_join_s + in->launch_rank_s * (ranks - 2));
}

static double end_overhead(const struct setup *in, int32_t ranks) {
    return in->end_s + in->end_rank_s * (ranks - 1);
}

static void launch(struct engine *e, int32_t job, int32_t nodes) {
    const struct setup *in = &e->in;
    e->size[job] = nodes;
    if (in->low[job] < in->high[job]) {
        e->place[job] = (int32_t)e->resizable_count;
        e->resizable[e->resizable_count++] = job;
    }
    if (in->malleable[job]) e->limits[job] = (struct progress){0.0, e->now, planned_rate(e, job, nodes)};
    take(e, job, nodes);
    double begin = e->now + launch_overhead(in, nodes);
    e->start[job] = e->now;
    e->launched[job] = begin;
    double r = rate_on_nodes(e, job, nodes);
    if (in->malleable[job]) e->progress[job] = (struct progress){0.0, begin, r};
    end_at(e, job, begin + in->work[job] / r + end_overhead(in, nodes));
}

static double planned_s(const struct engine *e, int32_t job) {
    return e->in.limit[job] > SHORTEST_S ? e->in.limit[job] : SHORTEST_S;
}

/* Expect every running job past its limit to run for another limit from now on. This drops all reservations. */
static void expect_again(struct engine *e) {
    int64_t count = 0;
    for (int64_t at = 0; at < e->chunk_count && e->chunks[at]->row[0].end <= e->now; at++) {
        const struct chunk *chunk = e->chunks[at];
        for (int32_t row = 0; row < chunk->count && chunk->row[row].end <= e->now; row++)
            if (e->size[chunk->row[row].job]) e->eligible[count++] = chunk->row[row].job;  /* else promised */
    }
    if (!count) return;
    for (int64_t at = 0; at < count; at++) {
        int32_t job = e->eligible[at];
        double limit = planned_s(e, job), r = 1.0;
        if (e->in.malleable[job]) {
            const struct progress *p = &e->limits[job];
            r = p->rate;
            e->limit[job] = p->done + (e->now - p->since) * r + limit;
        }
        expect(e, job, e->now + limit / r);
    }
    e->lapsed = 1;
    came_free(e);
}

/* Start every promised job for which enough nodes are idle, in the order of the promises. */
static void serve(struct engine *e) {
    if (!e->promises) return;
    int64_t kept = 0, count = e->promises;
    for (int64_t at = 0; at < count; at++) {
        int32_t job = e->promised[at], nodes = e->promised_nodes[at];
        if (nodes <= e->cluster_idle) {
            e->sum_promised -= nodes;
            e->size[job] = nodes;
            expect(e, job, e->now + e->in.limit[job] / planned_rate(e, job, nodes));
            launch(e, job, nodes);
        } else {
            e->promised[kept] = job;
            e->promised_nodes[kept++] = nodes;
        }
    }
    e->promises = kept;
    set_aside(e);
}

static void start(struct engine *e, int32_t job, int32_t nodes) {
    CHECK(e->waiting[job] && ((nodes >= e->in.low[job] && nodes <= e->in.high[job]) || nodes == e->in.requested[job]));
    queue_remove(e, job);
    e->decided = 1;
    double end = e->now + e->in.limit[job] / planned_rate(e, job, nodes);
    e->expected_end[job] = end;
    releases_add(e, job, end, nodes);
    e->started_in[job] = e->calls;
    if (nodes <= e->idle) {
        e->idle -= nodes;
        launch(e, job, nodes);
        return;
    }
    if (e->promises == e->promise_room) {
        int64_t room = e->promise_room * 2;
        if (!grow(e, &e->promised, room, 4) || !grow(e, &e->promised_nodes, room, 4)) return;
        e->promise_room = room;
    }
    e->promised[e->promises] = job;
    e->promised_nodes[e->promises++] = nodes;
    e->sum_promised += nodes;
    set_aside(e);
    CHECK(e->idle >= 0);
    serve(e);
}

/* Apply the pending resize of `job`: its dropped nodes become idle and its end changes. */
static void resized(struct engine *e, int32_t job) {
    e->resizing[job] = 0;
    if (e->giving_back[job]) {
        int32_t count = e->giving_back[job];
        e->giving_back[job] = 0;
        e->sum_giving_back -= count;
        take_back(e, job, count);
    }
    struct progress *limit = &e->limits[job];
    double done = limit->done + (e->now - limit->since) * limit->rate;
    double r = planned_rate(e, job, e->size[job]);
    *limit = (struct progress){done, e->now, r};
    expect(e, job, e->now + (e->limit[job] - done) / r);
    came_free(e);
}

/* Return the first malleability point of `job` at or after `ready`; INFINITY if the job ends before it. */
static double point(const struct engine *e, int32_t job, double ready) {
    const struct setup *in = &e->in;
    if (in->grain_s != 0.0) {
        double iterations = nearbyint(in->run_time[job] / in->grain_s);
        if (iterations <= 1.0) return INFINITY;
        const struct progress *p = &e->progress[job];
        double step = in->run_time[job] / iterations, worked = ready - p->since;
        double number = floor((p->done + (worked > 0.0 ? worked : 0.0) * p->rate) / step + ROUNDING) + 1.0;
        if (number >= iterations) return INFINITY;
        double at = p->since + (number * step - p->done) / p->rate;
        return at > ready ? at : ready;
    }
    if (in->malleability_interval_s != 0.0) return next_multiple(in->malleability_interval_s, ready, e->start[job], 1);
    return ready;
}

/* Continue `job` at the rate of its new size from now on. Return whether the resize is complete: not if nodes are still
 * being released. */
static int take_effect(struct engine *e, int32_t job) {
    struct progress *p = &e->progress[job];
    double worked = e->now - p->since;
    double done = p->done + (worked > 0.0 ? worked : 0.0) * p->rate;
    double begin = (p->since > e->now ? p->since : e->now) + e->in.reconfiguration_s;
    double r = rate_on_nodes(e, job, e->size[job]), left = e->in.work[job] - done;
    *p = (struct progress){done, begin, r};
    end_at(e, job, begin + (left > 0.0 ? left : 0.0) / r + end_overhead(&e->in, e->size[job]));
    int32_t row = e->open[job];
    e->row_decided[row] = e->now;
    e->row_applied[row] = begin;
    if (e->giving_back[job] && e->in.release_s != 0.0) {
        e->pending[job] = RELEASING;
        push(e, e->now + e->in.release_s, RELEASED, job);
        return 0;
    }
    e->row_ended[row] = begin;
    e->open[job] = -1;
    return 1;
}

static void note_resize(struct engine *e, int32_t job, int32_t from, int32_t to) {
    if (e->row_count == e->row_room) {
        int64_t room = e->row_room * 2;
        if (!grow(e, &e->row_job, room, 4) || !grow(e, &e->row_from, room, 4) || !grow(e, &e->row_to, room, 4)
            || !grow(e, &e->row_asked, room, 8) || !grow(e, &e->row_decided, room, 8)
            || !grow(e, &e->row_applied, room, 8) || !grow(e, &e->row_ended, room, 8)) return;
        e->row_room = room;
    }
    int64_t row = e->row_count++;
    e->open[job] = (int32_t)row;
    e->row_job[row] = job;
    e->row_from[row] = from;
    e->row_to[row] = to;
    e->row_asked[row] = e->now;
    e->row_decided[row] = e->row_applied[row] = e->row_ended[row] = NAN;
}

static void resize(struct engine *e, int32_t job, int32_t nodes) {
    int32_t from = e->size[job], added = nodes - from;
    CHECK(from > 0 && added && !e->resizing[job] && nodes >= e->in.low[job] && nodes <= e->in.high[job]);
    CHECK(added <= e->idle);
    e->resized_in_call = e->decided = 1;
    if (added > 0) {
        e->idle -= added;
        take(e, job, added);
    } else {
        e->giving_back[job] = -added;
        e->sum_giving_back -= added;
    }
    e->size[job] = nodes;
    e->resizing[job] = 1;
    expect(e, job, e->expected_end[job]);
    note_resize(e, job, from, nodes);
    if (e->failed) return;
    double at = point(e, job, e->now + (added > 0 ? e->in.expand_s + e->in.expand_rank_s * (added - 1) : 0.0));
    if (at <= e->now && e->in.malleability_interval_s == 0.0) {
        if (take_effect(e, job)) resized(e, job);
    } else {
        e->pending[job] = RESIZING;
        if (at < INFINITY) push(e, at, POINT, job);
    }
}

/* -- policies --------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int32_t at_most(int64_t a, int64_t b) { return (int32_t)(a < b ? a : b); }

/* Start the heads of the queue that fit; return the first that does not, or -1 if the queue is empty. */
static int32_t heads(struct engine *e) {
    int32_t head;
    while ((head = queue_first(e)) >= 0 && e->in.low[head] <= e->idle) start(e, head, at_most(e->in.pref[head], e->idle));
    return head;
}

static void fit_first(struct engine *e) {
    int32_t job = -1;
    if (!e->freed) job = (e->arrived >= 0 ? e->arrived : e->queue_end) - 1;
    while (e->idle && (job = first_fit(e, job, e->idle, 0.0, e->idle)) >= 0)
        start(e, job, at_most(e->in.pref[job], e->idle));
}

static void backfill(struct engine *e) {
    int32_t head = heads(e), behind = head;
    if (head < 0 || !e->idle || e->waiting_count == 1) return;
    reservation(e, e->in.low[head]);
    if (e->failed) return;
    double shadow = e->shadow;
    int64_t extra = e->extra;
    if (!e->freed && (e->settled || !e->adaptable) && shadow > e->now) {
        behind = e->arrived >= 0 ? e->arrived - 1 : e->queue_end - 1;
        if (e->arrived >= 0 && behind < head) behind = head;
    }
    int32_t job;
    while (e->idle && (job = first_fit(e, behind, e->idle, shadow - e->now, extra)) >= 0) {
        int32_t nodes = at_most(e->in.pref[job], e->idle);
        behind = job;
        int in_time = e->now + e->in.limit[job] / planned_rate(e, job, nodes) <= shadow;
        if (e->in.narrow && !in_time && e->in.low[job] <= extra) nodes = at_most(nodes, extra);
        if (in_time || nodes <= extra) {
            start(e, job, nodes);
            if (!in_time) extra -= nodes;
        }
    }
}

/* Collect the resizable running jobs; `started_too`, `shrunk_too`: including those started or shrunk in this call. */
static void find_eligible(struct engine *e, int started_too, int shrunk_too) {
    int64_t kept = 0;
    e->eligible_count = 0;
    for (int64_t at = 0; at < e->resizable_count; at++) {
        int32_t job = e->resizable[at];
        if (job < 0) continue;
        e->resizable[kept] = job;
        e->place[job] = (int32_t)kept++;
        if (e->resizing[job] || (!started_too && e->started_in[job] == e->calls)
            || (!shrunk_too && e->shrunk_in[job] == e->calls)) continue;
        e->eligible[e->eligible_count++] = job;
        e->new_size[job] = e->size[job];
    }
    e->resizable_count = kept;
    if (e->in.ties_by_id) qsort(e->eligible, (size_t)e->eligible_count, sizeof *e->eligible, by_value);
}

static int less(const struct candidate *a, const struct candidate *b) {
    return a->key != b->key ? a->key < b->key : a->order < b->order;
}

/* Sift down the candidate at `at` in a min-heap. */
static void sink(struct candidate *heap, int64_t count, int64_t at) {
    struct candidate moved = heap[at];
    int64_t child;
    while ((child = 2 * at + 1) < count) {
        if (child + 1 < count && less(&heap[child + 1], &heap[child])) child++;
        if (!less(&heap[child], &moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Build a heap of the eligible jobs above `floor` or below `ceiling`, whichever is given. */
static int64_t candidates(struct engine *e, const int32_t *floor, const int32_t *ceiling) {
    int64_t count = 0;
    for (int64_t at = 0; at < e->eligible_count; at++) {
        int32_t job = e->eligible[at], size = e->new_size[job];
        if (floor ? size <= floor[job] : size >= ceiling[job]) continue;
        double part = (double)(size - e->in.low[job]) / (double)(e->in.high[job] - e->in.low[job]);
        double key = e->in.policy == AVG ? part : (double)(size - e->in.pref[job]);
        e->candidates[count++] = (struct candidate){floor ? -key : key, (int32_t)at, job};
    }
    for (int64_t at = count / 2; at-- > 0;) sink(e->candidates, count, at);
    return count;
}

/* Take `need` nodes from jobs above `floor`: as many as possible from each in turn, or node by node under `avg`. */
static void take_room(struct engine *e, const int32_t *floor, int64_t need, int64_t *above_pref, int64_t *above_low) {
    int64_t count = candidates(e, floor, NULL);
    struct candidate *heap = e->candidates;
    while (need > 0) {
        CHECK(count > 0);
        int32_t job = heap[0].job, size = e->new_size[job], low = e->in.low[job], pref = e->in.pref[job];
        int32_t given = e->in.policy == AVG ? 1 : at_most(need, size - floor[job]);
        e->new_size[job] = size - given;
        need -= given;
        *above_low -= given;
        *above_pref -= (size > pref ? size - pref : 0) - (size - given > pref ? size - given - pref : 0);
        if (e->in.policy == AVG && size - given > floor[job])
            heap[0].key = -((double)(size - given - low) / (double)(e->in.high[job] - low));
        else
            heap[0] = heap[--count];
        sink(heap, count, 0);
    }
}

/* Give `idle` nodes to jobs below `ceiling`: as many as possible to each in turn, or node by node under `avg`. */
static int64_t give_room(struct engine *e, const int32_t *ceiling, int64_t idle) {
    int64_t count = candidates(e, NULL, ceiling);
    struct candidate *heap = e->candidates;
    while (idle > 0 && count > 0) {
        int32_t job = heap[0].job, size = e->new_size[job], low = e->in.low[job];
        int32_t given = e->in.policy == AVG ? 1 : at_most(idle, ceiling[job] - size);
        e->new_size[job] = size + given;
        idle -= given;
        if (e->in.policy == AVG && size + given < ceiling[job])
            heap[0].key = (double)(size + given - low) / (double)(e->in.high[job] - low);
        else
            heap[0] = heap[--count];
        sink(heap, count, 0);
    }
    return idle;
}

static void carry_out(struct engine *e) {
    for (int64_t at = 0; at < e->eligible_count && !e->failed; at++) {
        int32_t job = e->eligible[at];
        if (e->new_size[job] < e->size[job]) e->shrunk_in[job] = e->calls;
        if (e->new_size[job] != e->size[job]) resize(e, job, e->new_size[job]);
    }
}

/* Step 2 of the Kassel family: shrink running jobs for each waiting job, in order. */
static void shrink(struct engine *e) {
    const struct setup *in = &e->in;
    int64_t above_pref = 0, above_low = 0, idle = e->idle, promised = 0;
    find_eligible(e, 0, 1);
    for (int64_t at = 0; at < e->eligible_count; at++) {
        int32_t job = e->eligible[at], size = e->size[job];
        above_low += size - in->low[job];
        if (size > in->pref[job]) above_pref += size - in->pref[job];
    }
    int32_t job = -1, head = queue_first(e);
    while (above_low > 0) {
        int64_t counted = in->count_idle == YES || (in->count_idle == HEAD && job < head) ? idle : 0;
        int64_t most = counted + above_low;
        if ((job = first_fit(e, job, most, 0.0, most)) < 0) break;  /* shrinking cannot help the jobs in between */
        if (in->count_idle == HEAD && job != head) {
            counted = 0;
            if (in->low[job] <= e->idle || in->low[job] > above_low) continue;
        }
        int32_t target = 0;
        for (int attempt = 0; attempt < 3 && !target; attempt++) {
            int32_t wanted = attempt == 0 ? in->pref[job] : in->low[job];
            int64_t need = wanted - counted;
            if (need <= 0) break;
            if (need > (attempt == 2 ? above_low : above_pref)) continue;
            take_room(e, attempt == 2 ? in->low : in->pref, need, &above_pref, &above_low);
            target = wanted;
            idle -= target - need;
        }
        if (!target) continue;
        e->promises_to[promised] = job;
        e->promise_sizes[promised++] = target;
    }
    carry_out(e);
    for (int64_t at = 0; at < promised && !e->failed; at++) {
        start(e, e->promises_to[at], e->promise_sizes[at]);
    }
}

/* Step 3: idle nodes go to running jobs. */
static void expand(struct engine *e) {
    find_eligible(e, (int)e->in.grow_at_start, 0);
    int64_t idle = e->in.policy == AVG ? e->idle : give_room(e, e->in.pref, e->idle);
    give_room(e, e->in.high, idle);
    carry_out(e);
}

static void kassel(struct engine *e) {
    e->calls++;
    if (e->in.first_fit_only) fit_first(e); else backfill(e);
    if (e->waiting_count && !e->failed) shrink(e);
    if (e->idle && !e->failed) expand(e);
    if (e->in.calls == SETTLE && e->decided) e->wake = e->now;
    if (e->in.calls == TICK && e->chunk_count && (e->decided || e->waiting_count))
        e->wake = due(e, nextafter(e->now, INFINITY));
}

/* -- conservative: expected idle nodes as a step function of time ----------------------------------------------------- */

/* Rebuild the profile: the idle nodes if every running job ends at its expected end. */
static void profile_of_running(struct engine *e) {
    int64_t rows = 1;
    for (int64_t at = 0; at < e->chunk_count; at++) rows += e->chunks[at]->count;
    if (rows > e->step_room) {
        if (!grow(e, &e->times, 2 * rows, 8) || !grow(e, &e->idle_then, 2 * rows, 4)) return;
        e->step_room = 2 * rows;
    }
    e->step = 0;
    e->steps = 1;
    e->times[0] = e->now;
    e->idle_then[0] = (int32_t)e->idle;
    for (int64_t at = 0; at < e->chunk_count; at++) {
        const struct chunk *chunk = e->chunks[at];
        for (int32_t row = 0; row < chunk->count; row++) {
            if (chunk->row[row].end > e->times[e->steps - 1]) {
                e->times[e->steps] = chunk->row[row].end;
                e->idle_then[e->steps] = e->idle_then[e->steps - 1];
                e->steps++;
            }
            e->idle_then[e->steps - 1] += chunk->row[row].nodes;
        }
    }
    e->steps_merged = e->steps;
}

/* Return the first step that does not begin before `instant`. */
static int64_t step_from(const struct engine *e, double instant) {
    int64_t low = e->step, high = e->steps;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (e->times[middle] < instant) low = middle + 1; else high = middle;
    }
    return low;
}

/* Let the profile begin now; occasionally merge adjacent steps with equal idle nodes. */
static void profile_go_on(struct engine *e) {
    int64_t at = step_from(e, e->now);
    if (at == e->steps || e->times[at] > e->now) at--;
    e->step = at;
    e->times[at] = e->now;
    if (e->steps - e->step < 2 * e->steps_merged + 64 && e->step < e->steps_merged + 1024) return;
    int64_t kept = 0;
    for (; at < e->steps; at++) {
        if (kept && e->idle_then[at] == e->idle_then[kept - 1]) continue;
        e->times[kept] = e->times[at];
        e->idle_then[kept++] = e->idle_then[at];
    }
    e->step = 0;
    e->steps = e->steps_merged = kept;
}

/* Return the step that begins at `instant`, not before the first; insert it if it is missing. */
static int64_t step_at(struct engine *e, double instant) {
    int64_t at = step_from(e, instant);
    CHECK(at > e->step || e->times[at] == instant);
    if (at < e->steps && e->times[at] == instant) return at;
    if (e->steps == e->step_room) {
        if (!grow(e, &e->times, 2 * e->step_room, 8) || !grow(e, &e->idle_then, 2 * e->step_room, 4)) return at - 1;
        e->step_room *= 2;
    }
    memmove(&e->times[at + 1], &e->times[at], (size_t)(e->steps - at) * 8);
    memmove(&e->idle_then[at + 1], &e->idle_then[at], (size_t)(e->steps - at) * 4);
    e->times[at] = instant;
    e->idle_then[at] = e->idle_then[at - 1];
    e->steps++;
    return at;
}

/* Take `nodes` nodes from the profile from `start` to `end`; a negative number returns them. */
static void occupy(struct engine *e, double start, double end, int32_t nodes) {
    int64_t first = step_at(e, start), last = step_at(e, end);
    for (int64_t at = first; at < last; at++) e->idle_then[at] -= nodes;
}

/* Return the first instant before `own_start` from which `nodes` nodes are idle for `duration` seconds, or `own_start`.
 * The profile contains the job itself from `own_start` to `own_end`. */
static double earliest(const struct engine *e, int32_t nodes, double duration, double own_start, double own_end) {
    const double *times = e->times;
    const int32_t *idle = e->idle_then;
    int64_t at = e->step, steps = e->steps;
    for (;;) {
        while (at < steps && idle[at] < nodes && times[at] < own_start) at++;
        if (at == steps || times[at] >= own_start) return own_start;
        double start = times[at], end = start + duration;
        at++;
        while (at < steps && times[at] < end
               && (idle[at] >= nodes || (times[at] >= own_start && times[at] < own_end))) at++;
        if (at == steps || times[at] >= end) return start;
    }
}

/* Return whether the profile with all reservations is kept from call to call. */
static int keeps_reservations(const struct engine *e) {
    return e->in.policy == CONSERVATIVE && !e->in.backfill_depth && e->in.backfill_interval_s == 0.0;
}

/* Plan jobs without a reservation, move other reservations forward after releases, and start jobs planned for now. */
static void keep_reservations(struct engine *e) {
    const struct setup *in = &e->in;
    int32_t started = -1, first = queue_first(e), end = e->queue_end;
    int anew = e->lapsed;
    if (first < 0) return;
    e->lapsed = 0;
    profile_go_on(e);
    for (int32_t job = first; job < end && !anew; job++) anew = e->waiting[job] && e->reserved[job] < e->now;
    if (anew) profile_of_running(e);
    for (int32_t job = first; job < end && !e->failed; job++) {
        if (!e->waiting[job]) continue;
        int32_t nodes = in->requested[job];
        double limit = planned_s(e, job), held = anew ? NAN : e->reserved[job], at = held;
        if (isnan(held)) {
            at = earliest(e, nodes, limit, INFINITY, INFINITY);
            occupy(e, at, at + limit, nodes);
        } else if (e->freed) {
            at = earliest(e, nodes, limit, held, held + limit);
            if (at != held) {
                occupy(e, held, held + limit, -nodes);
                occupy(e, at, at + limit, nodes);
            }
        }
        e->reserved[job] = at;
        if (at <= e->now && nodes <= e->idle) {
            start(e, job, nodes);
            if (limit != in->limit[job]) {
                e->promises_to[job] = started;  /* chain of jobs whose planned end is not their expected end */
                started = job;
            }
        }
    }
    for (; started >= 0 && !e->failed; started = e->promises_to[started]) {
        occupy(e, e->now, e->now + SHORTEST_S, -in->requested[started]);
        occupy(e, e->now, e->expected_end[started], in->requested[started]);
    }
}

/* Plan the first `backfill_depth` queued jobs in order from an empty plan, and start those planned for now. */
static void plan_anew(struct engine *e) {
    int64_t looked = 0;
    if (queue_first(e) < 0 || !e->idle) return;
    profile_of_running(e);
    for (int32_t job = e->queue_head; job < e->queue_end && e->idle && !e->failed; job++) {
        if (!e->waiting[job]) continue;
        if (e->in.backfill_depth && looked++ == e->in.backfill_depth) return;
        int32_t nodes = e->in.requested[job];
        double limit = planned_s(e, job), at = earliest(e, nodes, limit, INFINITY, INFINITY);
        occupy(e, at, at + limit, nodes);
        if (at <= e->now && nodes <= e->idle) start(e, job, nodes);
    }
}

static void conserve(struct engine *e, int woken) {
    double interval = e->in.backfill_interval_s;
    if (keeps_reservations(e)) {
        keep_reservations(e);
        return;
    }
    heads(e);
    if (woken || interval == 0.0) plan_anew(e);
    else if (e->waiting_count) e->wake = due(e, next_multiple(interval, e->now, 0.0, INT64_MIN));
}

static void decide(struct engine *e) {
    int woken = e->now >= e->wake;
    e->wake = INFINITY;
    if (e->in.over_limit == AGAIN) expect_again(e);
    switch (e->in.policy) {
    case FCFS: heads(e); break;
    case FIRSTFIT: fit_first(e); break;
    case EASY: backfill(e); break;
    case PREF: case AVG: kassel(e); break;
    case CONSERVATIVE: conserve(e, woken); break;
    }
    e->arrived = -1;
    if (e->resized_in_call) set_aside(e); /* as in scheduler.py */
    e->freed = e->resized_in_call;
    e->settled = !e->decided;
    e->resized_in_call = e->decided = 0;
}

/* -- simulator -------------------------------------------------------------------------------------------------------- */

static int happen(struct engine *e, struct event event) {
    int32_t job = event.job;
    if (event.what == END) {
        if (!(e->ends[job] == event.time)) return 0;
        e->ends[job] = NAN;
        if (e->pending[job] == RELEASING) e->row_decided[e->open[job]] = e->row_applied[e->open[job]] = NAN;
        e->pending[job] = NONE;
        e->state[job] = e->in.work[job] < e->in.run_time[job] ? KILLED : COMPLETED;
        e->end[job] = e->now;
        e->open[job] = -1;
        take_back(e, job, INT64_MAX);
        if (keeps_reservations(e) && e->expected_end[job] > e->now) {
            profile_go_on(e);
            occupy(e, e->now, e->expected_end[job], -e->size[job]);
        }
        releases_remove(e, job, e->expected_end[job]);
        e->size[job] = 0;
        if (e->giving_back[job]) {
            e->sum_giving_back -= e->giving_back[job];
            e->giving_back[job] = 0;
        }
        if (e->place[job] >= 0) {
            e->resizable[e->place[job]] = -1;
            e->place[job] = -1;
                    }
        e->resizing[job] = 0;
        came_free(e);
        return 1;
    }
    if (event.what == POINT) {
        if (e->pending[job] != RESIZING) return 0;
        e->pending[job] = NONE;
        if (!take_effect(e, job)) return 0;
    } else {
        if (e->pending[job] != RELEASING) return 0;
        e->pending[job] = NONE;
        int32_t row = e->open[job];
        e->row_ended[row] = e->row_applied[row] > e->now ? e->row_applied[row] : e->now;
        e->open[job] = -1;
    }
    resized(e, job);
    return 1;
}

static void submit(struct engine *e, int32_t job) {
    if (e->in.low[job] > e->in.nodes) {
        e->state[job] = REJECTED;
        return;
    }
    queue_append(e, job);
    if (e->arrived < 0) e->arrived = job;
}

/* Simulate at most `instants` further instants. */
int tracebed_engine_advance(struct engine *e, int64_t instants) {
    const struct setup *in = &e->in;
    while (e->next_job < in->jobs || e->heap_count || e->call < INFINITY) {
        if (instants-- == 0) return MORE;
        double now = e->next_job < in->jobs ? in->submit[e->next_job] : INFINITY;
        if (e->heap_count && e->heap[0].time < now) now = e->heap[0].time;
        if (e->call < now) now = e->call;
        e->now = now;
        int happened = 0;
        while (e->heap_count && e->heap[0].time == now) happened |= happen(e, pop(e));
        for (; e->next_job < in->jobs && in->submit[e->next_job] == now; e->next_job++) {
            submit(e, (int32_t)e->next_job);
            happened = 1;
        }
        if (happened) {
            serve(e);
            double next = due(e, now);
            if (next < e->call) e->call = next;
        }
        if (e->call <= now) {
            decide(e);
            e->call = e->wake;
        }
        if (e->failed) return e->failed;
    }
    return DONE;
}

int64_t tracebed_engine_submitted(const struct engine *e) { return e->next_job; }

/* -- creating and reading ---------------------------------------------------------------------------------------------- */

/* The lists above, one line each; items end with a semicolon. */
const char *tracebed_engine_description(void) {
    return "setup:" SETUP(DESCRIBED) "\nresults:" RESULTS(DESCRIBED) "\npolicy:" POLICY(NAMED) "\nstate:" STATE(NAMED)
           "\nruntime_model:" RUNTIME_MODEL(NAMED) "\nover_limit:" OVER_LIMIT(NAMED) "\ncount_idle:"
           COUNT_IDLE(NAMED) "\ncalls:" CALLS(NAMED) "\noutcome:" OUTCOME(NAMED);
}

int64_t tracebed_engine_setup_size(void) { return (int64_t)sizeof(struct setup); }

int64_t tracebed_engine_results_size(void) { return (int64_t)sizeof(struct results); }

void tracebed_engine_free(struct engine *e) {
    if (!e) return;
    for (int64_t at = 0; at < e->chunk_count; at++) free(e->chunks[at]);
    void *all[] = {
        e->heap, e->ends, e->progress, e->pending, e->idle_bits, e->ranges, e->held, e->size, e->expected_end, e->limits,
        e->resizing, e->giving_back, e->promised, e->promised_nodes, e->resizable, e->place, e->chunks, e->waiting,
        e->class_of, e->smallest, e->block_shortest, e->group_shortest, e->start, e->launched, e->end, e->state,
        e->row_job, e->row_from, e->row_to, e->row_asked, e->row_decided, e->row_applied, e->row_ended, e->open,
        e->held_job, e->held_first, e->held_nodes, e->held_since, e->held_until, e->eligible, e->candidates,
        e->new_size, e->started_in, e->shrunk_in, e->promises_to, e->promise_sizes, e->shortest_limit,
        e->limit, e->times, e->idle_then, e->reserved,
    };
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) free(all[at]);
    free(e);
}

/* Set the classes of sizes: each size that occurs, or ranges of sizes if there are more than CLASSES. */
static void classify(struct engine *e) {
    int64_t jobs = e->in.jobs, sizes = 0;
    int32_t *size = make(e, jobs, 4);
    e->class_of = make(e, jobs, 4);
    e->smallest = make(e, CLASSES, 4);
    if (!e->failed) {
        if (jobs) memcpy(size, e->in.low, (size_t)jobs * 4);
        qsort(size, (size_t)jobs, 4, by_value);
        for (int64_t at = 0; at < jobs; at++)
            if (!at || size[at] != size[at - 1]) size[sizes++] = size[at];
        int64_t step = (sizes + CLASSES - 1) / CLASSES;
        for (int64_t at = 0; at < sizes; at += step) e->smallest[e->classes++] = size[at];
        for (int64_t job = 0; job < jobs; job++) e->class_of[job] = class_at_most(e, e->in.low[job]);
    }
    free(size);
}

/* Return a new engine for `in`, whose arrays must outlive it; null without memory. */
struct engine *tracebed_engine_new(const struct setup *in) {
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->in = *in;
    int64_t jobs = in->jobs;
    e->call = e->wake = INFINITY;
    e->arrived = -1;
    for (int64_t job = 0; job < jobs; job++) e->adaptable |= in->low[job] != in->pref[job];
    e->range_free = -1;
    e->question_need = -1;
    e->words = (in->nodes + 63) / 64;
    e->blocks = (jobs + BLOCK - 1) / BLOCK;
    e->groups = (e->blocks + GROUP - 1) / GROUP;
    e->heap_room = e->range_room = e->promise_room = e->chunk_room = e->row_room = e->held_room = 256;
    e->heap = make(e, e->heap_room, sizeof *e->heap);
    e->ends = make(e, jobs, 8);
    e->progress = make(e, jobs, sizeof *e->progress);
    e->limits = make(e, jobs, sizeof *e->limits);
    e->pending = make(e, jobs, 1);
    e->idle_bits = make(e, e->words, 8);
    e->ranges = make(e, e->range_room, sizeof *e->ranges);
    e->held = make(e, jobs, 4);
    e->size = make(e, jobs, 4);
    e->expected_end = make(e, jobs, 8);
    e->resizing = make(e, jobs, 1);
    e->giving_back = make(e, jobs, 4);
    e->promised = make(e, e->promise_room, 4);
    e->promised_nodes = make(e, e->promise_room, 4);
    e->resizable = make(e, jobs, 4);
    e->place = make(e, jobs, 4);
    e->chunks = make(e, e->chunk_room, sizeof *e->chunks);
    e->waiting = make(e, jobs, 1);
    e->start = make(e, jobs, 8);
    e->launched = make(e, jobs, 8);
    e->end = make(e, jobs, 8);
    e->state = make(e, jobs, 1);
    e->open = make(e, jobs, 4);
    e->row_job = make(e, e->row_room, 4);
    e->row_from = make(e, e->row_room, 4);
    e->row_to = make(e, e->row_room, 4);
    e->row_asked = make(e, e->row_room, 8);
    e->row_decided = make(e, e->row_room, 8);
    e->row_applied = make(e, e->row_room, 8);
    e->row_ended = make(e, e->row_room, 8);
    e->held_job = make(e, e->held_room, 4);
    e->held_first = make(e, e->held_room, 4);
    e->held_nodes = make(e, e->held_room, 4);
    e->held_since = make(e, e->held_room, 8);
    e->held_until = make(e, e->held_room, 8);
    e->shortest_limit = make(e, jobs, 8);
    e->limit = make(e, jobs, 8);
    e->reserved = make(e, jobs, 8);
    e->step_room = 256;
    e->times = make(e, e->step_room, 8);
    e->idle_then = make(e, e->step_room, 4);
    e->eligible = make(e, in->nodes, 4);  /* at most as many jobs run as there are nodes */
    e->candidates = make(e, in->nodes, sizeof *e->candidates);
    e->new_size = make(e, jobs, 4);
    e->started_in = make(e, jobs, 8);
    e->shrunk_in = make(e, jobs, 8);
    e->promises_to = make(e, jobs, 4);
    e->promise_sizes = make(e, jobs, 4);
    classify(e);
    e->block_shortest = make(e, e->classes * e->blocks, 8);
    e->group_shortest = make(e, e->classes * e->groups, 8);
    if (e->failed) {
        tracebed_engine_free(e);
        return NULL;
    }
    for (int64_t at = 0; at < e->classes * e->blocks; at++) e->block_shortest[at] = INFINITY;
    for (int64_t at = 0; at < e->classes * e->groups; at++) e->group_shortest[at] = INFINITY;
    for (int64_t job = 0; job < jobs; job++) {
        e->shortest_limit[job] = shortest_limit(in, job);
        e->limit[job] = in->limit[job];
        e->reserved[job] = e->ends[job] = e->start[job] = e->launched[job] = e->end[job] = NAN;
        e->held[job] = e->place[job] = e->open[job] = -1;
    }
    for (int64_t word = 0; word < e->words; word++) e->idle_bits[word] = ~UINT64_C(0);
    if (in->nodes % 64) e->idle_bits[e->words - 1] = (UINT64_C(1) << in->nodes % 64) - 1;
    e->cluster_idle = e->idle = in->nodes;
    e->steps = e->steps_merged = 1;
    e->times[0] = -INFINITY;
    e->idle_then[0] = (int32_t)in->nodes;
    return e;
}

void tracebed_engine_results(const struct engine *e, struct results *results) {
    *results = (struct results){
        .reconfigurations = e->row_count, .ranges = e->held_count,
        .start = e->start, .launched = e->launched, .end = e->end, .state = e->state,
        .row_job = e->row_job, .row_from = e->row_from, .row_to = e->row_to,
        .row_asked = e->row_asked, .row_decided = e->row_decided, .row_applied = e->row_applied, .row_ended = e->row_ended,
        .held_job = e->held_job, .held_first = e->held_first, .held_nodes = e->held_nodes,
        .held_since = e->held_since, .held_until = e->held_until,
    };
}
