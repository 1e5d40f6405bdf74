/* The simulator with its scheduler, cluster, queue and policies as one compiled loop.
 *
 * The reference is the Python code: simulation/simulator.py, and scheduler.py, cluster.py, queue.py, state.py and policies/
 * of scheduling/. Names are the same, and sums, products and comparisons of times are evaluated in the same order, so
 * schedules are equal to the bit. Only the data structures differ. Tests compare both on drawn workloads, under all
 * options. Each policy has a header of its own; docs/explanation/engine.md explains how to add one.
 *
 * Jobs are numbered in the order of submission, as in Python. Times are doubles, in s. No function keeps state outside
 * its `engine`. Compile without contraction (-ffp-contract=off); -DTRACEBED_CHECK adds checks of bounds and invariants.
 */
#include "base.h"
#include "runtime_model.h"
#include "events.h"
#include "power.h"
#include "cluster.h"
#include "ledger.h"
#include "releases.h"
#include "queue.h"
#include "sleep.h"
#include "loans.h"
#include "sharing.h"
#include "scheduler.h"
#include "easy.h"
#include "kassel.h"
#include "named.h"
#include "conservative.h"
#include "dmr.h"
#include "sd_plan.h"
#include "sd.h"
#include "drom.h"
#include "loops.h"
#include "slots.h"
#include "slurm.h"

static void decide(struct engine *e) {
    int woken = e->now >= e->wake;
    e->wake = INFINITY;
    if (e->in.over_limit == AGAIN) {
        if (e->sharing) expect_shared_again(e); else expect_again(e);
    }
    if (e->ends_later) {
        e->ends_later = 0;
        came_free(e);
    }
    switch (e->in.policy) {
    case FCFS: heads(e); break;
    case FIRSTFIT: fit_first(e); break;
    case EASY: if (e->in.named_nodes) backfill_outside(e); else backfill(e); break;
    case PREF: case AVG: kassel(e); break;
    case CONSERVATIVE: conserve(e, woken); break;
    case DMR: reconfigure(e); break;
    case SD: slowdown_driven(e, woken); break;
    case DROM_SHARE: share_without_waiting(e); break;
    case SLURM: slurm_decide(e); break;
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
        if (e->sharing) {
            end_shared(e, job);
            return 1;
        }
        take_back(e, job, INT64_MAX);
        if (keeps_reservations(e) && !e->in.named_nodes && e->expected_end[job] > e->now) {
            profile_go_on(e);
            occupy(e, e->now, e->expected_end[job], -e->size[job]);
        }
        releases_remove(e, job, e->expected_end[job]);
        e->size[job] = 0;
        gave_back(e, job);
        if (e->place[job] >= 0) elastic_remove(e, job);
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

/* Simulate at most `instants` further instants. Until the instant `until`, nodes are switched off without another event. */
int tracebed_engine_advance(struct engine *e, int64_t instants, double until) {
    const struct setup *in = &e->in;
    while (e->next_job < in->jobs || e->heap_count || e->call < INFINITY
           || (e->sleep && sleep_next(e) < INFINITY && (e->waiting_count || sleep_next(e) <= until))) {
        if (instants-- == 0) return MORE;
        double now = e->next_job < in->jobs ? in->submit[e->next_job] : INFINITY;
        if (e->heap_count && e->heap[0].time < now) now = e->heap[0].time;
        if (e->call < now) now = e->call;
        if (e->sleep && sleep_next(e) < now) now = sleep_next(e);
        e->now = now;
        int happened = 0;
        while (e->heap_count && e->heap[0].time == now) happened |= happen(e, pop(e));
        if (e->sleep) happened |= finish_stops(e);
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
        if (e->sleep) switch_off(e);
        if (e->failed) return e->failed;
    }
    return DONE;
}

int64_t tracebed_engine_submitted(const struct engine *e) { return e->next_job; }

/* Return the last instant so far; infinite: there is none, since jobs wait. */
double tracebed_engine_last(const struct engine *e) { return e->waiting_count ? INFINITY : e->now; }

/* -- creating and reading ---------------------------------------------------------------------------------------------- */

/* The lists above, one line each; items end with a semicolon. */
const char *tracebed_engine_description(void) {
    return "setup:" SETUP(DESCRIBED) "\nparameters:" PARAMETERS(DESCRIBED) "\nresults:" RESULTS(DESCRIBED) "\npolicy:" POLICY(NAMED) "\npriority:" PRIORITY(NAMED) "\nstate:" STATE(NAMED)
           "\nkind:" KIND(NAMED) "\ncause:" CAUSE(NAMED) "\ninside:"
           INSIDE(NAMED) "\nsleep:" SLEEP(NAMED) "\npower:" POWER(NAMED) "\nruntime_model:" RUNTIME_MODEL(NAMED) "\nover_limit:" OVER_LIMIT(NAMED) "\ncount_idle:"
           COUNT_IDLE(NAMED) "\npromise:" PROMISE(NAMED) "\ncalls:" CALLS(NAMED) "\noutcome:" OUTCOME(NAMED);
}

void tracebed_engine_results(const struct engine *e, struct results *results);

int64_t tracebed_engine_setup_size(void) { return (int64_t)sizeof(struct setup); }

int64_t tracebed_engine_results_size(void) { return (int64_t)sizeof(struct results); }

static int is_result(const struct results *results, const void *array) {
#define SAME(type, name) || (const void *)(intptr_t)results->name == array
    return array && (0 RESULTS(SAME));
}

/* Free what is no result of an engine that is done, which may then only be read and freed, and complete the ledger.
 * Return whether there is enough memory. */
int tracebed_engine_finish(struct engine *e) {
    struct results results;
    tracebed_engine_results(e, &results);
    for (int64_t at = 0; at < e->chunk_count; at++) free(e->chunks[at]);
    e->chunk_count = 0;
    free(e->class_of), e->class_of = NULL;
#define FORGOTTEN(owner, name, count) if (!is_result(&results, owner->name)) free(owner->name), owner->name = NULL;
    ARRAYS(FORGOTTEN) ARRAYS_OF_CLASSES(FORGOTTEN)
    if (e->sharing) return 1;
    if (!order_ledger(e)) return 0;
    join_ledger(e);
    return 1;
}

/* Hand over an array of results, which the caller frees. Return whether it was handed over. */
int tracebed_engine_give(struct engine *e, const void *array) {
    int given = 0;
#define GIVEN(owner, name, count) if ((const void *)owner->name == array) owner->name = NULL, given = 1;
    ARRAYS(GIVEN)
    return given;
}

void tracebed_engine_free_array(void *array) { free(array); }

void tracebed_engine_free(struct engine *e) {
    if (!e) return;
    for (int64_t at = 0; at < e->chunk_count; at++) free(e->chunks[at]);
    for (int64_t job = 0; e->reserved_nodes && job < e->in.jobs; job++) free(e->reserved_nodes[job]);
    trial_free(e);
    plan_free(e);
    slurm_free(e);
    sharing_free(e);
    sleep_free(e);
    free(e->class_of), free(e->smallest), free(e->held_part);
    ARRAYS(FREED) ARRAYS_OF_PROMISES(FREED) ARRAYS_OF_PRIORITY(FREED) ARRAYS_OF_NODES(FREED) ARRAYS_OF_CLASSES(FREED)
    free(e);
}

/* Set the classes of sizes: each size that occurs, or ranges of sizes if there are more than CLASSES. Jobs larger than
 * the machine never wait. They are in the last class. */
static void classify(struct engine *e) {
    int64_t jobs = e->in.jobs, largest = e->in.nodes + 1, sizes = 0, seen = 0;
    int32_t *class_of = make(e, largest + 1, 4);  /* of each size; first, whether the size occurs */
    e->class_of = make(e, jobs, 4);
    e->smallest = make(e, CLASSES, 4);
    if (!e->failed) {
        for (int64_t job = 0; job < jobs; job++) class_of[at_most(e->in.low[job], largest)] = 1;
        for (int64_t size = 0; size <= largest; size++) sizes += class_of[size];
        int64_t step = (sizes + CLASSES - 1) / CLASSES;
        for (int64_t size = 0; size <= largest; size++) {
            if (!class_of[size]) continue;
            if (seen++ % step == 0) e->smallest[e->classes++] = (int32_t)size;
            class_of[size] = e->classes - 1;
        }
        for (int64_t job = 0; job < jobs; job++) e->class_of[job] = class_of[at_most(e->in.low[job], largest)];
    }
    free(class_of);
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
    int64_t nodes = in->nodes, room = 256, holders = jobs + (in->sleep == ALWAYS_ON ? 0 : nodes);
    e->heap_room = e->range_room = e->promise_room = e->chunk_room = e->row_room = e->held_room = e->instant_room = e->step_room = e->power_room = room;
    e->coming_free = -1;
    ARRAYS(MADE)
    if (in->promise != POOL) {
        e->coming_room = e->taken_room = room;
        ARRAYS_OF_PROMISES(MADE)
    }
    if (in->priority != AS_SUBMITTED) { ARRAYS_OF_PRIORITY(MADE) }
    if (in->named_nodes) { ARRAYS_OF_NODES(MADE) }
    classify(e);
    if (in->shares) sharing_new(e);
    if (in->sleep == OFF_WHEN_IDLE) sleep_new(e);
    if (in->policy == SD) trial_new(e);
    if (in->policy == SD) plan_new(e);
    if (in->policy == SLURM) slurm_new(e);
    ARRAYS_OF_CLASSES(MADE)
    if (e->failed) {
        tracebed_engine_free(e);
        return NULL;
    }
    for (int64_t at = 0; at < e->classes * e->blocks; at++) e->block_shortest[at] = INFINITY;
    for (int64_t at = 0; at < e->classes * e->groups; at++) e->group_shortest[at] = INFINITY;
    for (int64_t job = 0; job < jobs; job++) {
        e->shortest_limit[job] = shortest_limit(in, job);
        e->limit[job] = in->limit[job];
        if (in->policy != EASY || in->named_nodes) e->reserved[job] = NAN;  /* else never read */
        e->ends[job] = e->start[job] = e->launched[job] = e->end[job] = NAN;
        e->place[job] = e->open[job] = -1;
        if (e->coming_of) e->coming_of[job] = -1;
    }
    for (int64_t holder = 0; holder < holders; holder++) e->held[holder] = -1;
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
        .held_since = e->held_since, .held_until = e->held_until, .held_part = e->held_part,
        .instant_count = e->instant_count, .instants = e->instants,
        .power_changes = e->power_count, .power_node = e->power_node, .power_time = e->power_time,
        .power_state = e->power_state,
    };
    const struct sharing *s = e->sharing;
    if (!s) return;
    results->core_changes = s->core_count;
    results->core_job = s->core_job;
    results->core_node = s->core_node;
    results->core_from = s->core_from;
    results->core_to = s->core_to;
    results->core_cause = s->core_cause;
    results->core_asked = s->core_asked;
}
