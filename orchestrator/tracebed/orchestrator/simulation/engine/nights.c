/* Nodes that are off each night, under the rules of a published program (nights.py).
 *
 * The reference is tests/oracles/fulda.py. Names are the same, and sums, products and comparisons of times are evaluated
 * in the same order, so that outcomes are equal to the bit. Only the data structures differ: sets of nodes are bits, and
 * a call that cannot shrink or expand a job does not sort the jobs.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DAY_S 86400
#define SLACK_S 1e-6
#define NEVER_S (30.0 * DAY_S)  /* a job that waits so long on an idle machine waits for nodes that it never gets */
enum { PENDING, RUNNING, CHANGING, DONE };
enum { ON, SHUTDOWN, OFF, BOOT };          /* as `POWER_STATES` of record.py */
enum { FINISHED, NO_MEMORY };

struct job {
    double start, end, anchor, left, point, work, told, asked, speed;  /* `speed`: on its preferred nodes */
    int32_t *assigned, *holding, assigned_count, holding_count, promises, place, room;
    uint8_t state;
};
struct event { double time; int32_t job; };
struct key { double value; int32_t order, job; };

struct nights {
    /* given, as the arguments of tracebed_nights */
    int64_t jobs, nodes, targets, msa, sleeps, shrinks, night_from, night_to;
    double interval;
    const double *submit, *run_time, *iterations, *part, *predicted, *boot_s, *shutdown_s;
    const int32_t *pref, *low, *high;
    const uint8_t *malleable;
    /* state */
    double now;
    int64_t changes, words;
    struct job *job;
    uint64_t *free, *reserved, *promised, *usable;  /* `usable`: free nodes of a call of msa that are not promised */
    int32_t *promised_to;
    double *held_since;
    uint8_t *power; double *until, next_power;      /* of each node */
    int32_t *pending, *waiting, *running; int64_t pending_count, running_count;
    struct event *heap; int64_t heap_count, heap_room;
    struct key *keys;
    int32_t *scratch, *taken_job, *taken_from, *taken_nodes;
    /* results */
    int32_t *row_job, *row_from, *row_to; double *row_asked, *row_applied; int64_t rows, row_room;
    int32_t *held_job, *held_first, *held_count; double *held_begin, *held_end; int64_t held, held_room;
    int32_t *power_node; double *power_time; uint8_t *power_state; int64_t powers, power_room;
    int failed;
};

/* -- memory, sets of nodes, numbers -------------------------------------------------------------------------------- */

static void *make(struct nights *n, int64_t count, size_t size) {
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    if (!memory) n->failed = NO_MEMORY;
    return memory;
}

static int grow(struct nights *n, void *array, int64_t room, size_t size) {
    void **at = array, *larger = realloc(*at, (size_t)room * size);
    if (!larger) { n->failed = NO_MEMORY; return 0; }
    *at = larger;
    return 1;
}

static int has(const uint64_t *set, int64_t node) { return (int)(set[node / 64] >> node % 64 & 1); }
static void put(uint64_t *set, int64_t node) { set[node / 64] |= UINT64_C(1) << node % 64; }
static void drop(uint64_t *set, int64_t node) { set[node / 64] &= ~(UINT64_C(1) << node % 64); }

/* Return the number of nodes in a set from number `from` on. */
static int64_t count_from(const struct nights *n, const uint64_t *set, int64_t from) {
    int64_t count = 0, word = from / 64;
    if (word >= n->words) return 0;
    count = __builtin_popcountll(set[word] & ~UINT64_C(0) << from % 64);
    while (++word < n->words) count += __builtin_popcountll(set[word]);
    return count;
}

/* Write the `count` lowest nodes of a set from number `from` on to `nodes`. */
static void lowest(const struct nights *n, const uint64_t *set, int64_t from, int64_t count, int32_t *nodes) {
    for (int64_t word = from / 64; count > 0 && word < n->words; word++) {
        uint64_t bits = set[word];
        if (word == from / 64) bits &= ~UINT64_C(0) << from % 64;
        for (; bits && count > 0; bits &= bits - 1, count--) *nodes++ = (int32_t)(word * 64 + __builtin_ctzll(bits));
    }
}

static double speedup(const struct nights *n, int32_t job, int64_t nodes) {
    return 1 / ((1 - n->part[job]) + n->part[job] / (double)nodes);
}

static double rate(const struct nights *n, int32_t job, int64_t nodes) {
    return speedup(n, job, nodes) / n->job[job].speed;
}

static double iteration_s(const struct nights *n, int32_t job) {
    double factor = n->malleable[job] ? rate(n, job, n->job[job].holding_count) : 1.0;
    return n->run_time[job] / n->iterations[job] / factor;
}

static double predicted_on(const struct nights *n, int32_t job, int64_t nodes) {
    return n->predicted[job] / rate(n, job, nodes);
}

static double predicted_left(const struct nights *n, int32_t job, int64_t nodes, double now) {
    const struct job *j = &n->job[job];
    double left = j->work - (now - j->told) * rate(n, job, j->holding_count);
    return (left > 0.0 ? left : 0.0) / rate(n, job, nodes);
}

static double boundary(const struct nights *n, int32_t job, double now) {
    const struct job *j = &n->job[job];
    double step = iteration_s(n, job), count = ceil((now - j->anchor) / step - 1e-9);
    if (count < 1) count = 1;
    return count < j->left ? j->anchor + count * step : INFINITY;
}

/* -- events ----------------------------------------------------------------------------------------------------------- */

static int earlier(struct event a, struct event b) { return a.time != b.time ? a.time < b.time : a.job < b.job; }

static void push(struct nights *n, double time, int32_t job) {
    if (n->heap_count == n->heap_room) {
        if (!grow(n, &n->heap, 2 * n->heap_room, sizeof *n->heap)) return;
        n->heap_room *= 2;
    }
    int64_t at = n->heap_count++;
    struct event event = {time, job};
    for (; at && earlier(event, n->heap[(at - 1) / 2]); at = (at - 1) / 2) n->heap[at] = n->heap[(at - 1) / 2];
    n->heap[at] = event;
}

static struct event pop(struct nights *n) {
    struct event first = n->heap[0], moved = n->heap[--n->heap_count];
    int64_t at = 0, child;
    while ((child = 2 * at + 1) < n->heap_count) {
        if (child + 1 < n->heap_count && earlier(n->heap[child + 1], n->heap[child])) child++;
        if (!earlier(n->heap[child], moved)) break;
        n->heap[at] = n->heap[child];
        at = child;
    }
    n->heap[at] = moved;
    return first;
}

/* -- the night -------------------------------------------------------------------------------------------------------- */

static int night(const struct nights *n) {
    int64_t second = (int64_t)n->now % DAY_S;
    if (!n->sleeps) return 0;
    if (n->night_from < n->night_to) return second >= n->night_from && second < n->night_to;
    return second >= n->night_from || second < n->night_to;
}

static double next_night(const struct nights *n) {
    int64_t day = (int64_t)n->now / DAY_S, second = (int64_t)n->now % DAY_S;
    return (double)((day + (second >= n->night_from)) * DAY_S + n->night_from);
}

static int accepts(const struct nights *n, double length_s, int expands) {
    if (!n->sleeps) return 1;
    return (expands || !night(n)) && n->now + length_s <= next_night(n);
}

/* Return the first node that a job of this predicted length may take. */
static int64_t first_allowed(const struct nights *n, double length_s, int expands) {
    return accepts(n, length_s, expands) ? 0 : n->targets;
}

static void power(struct nights *n, int64_t node, int state, double until) {
    if (n->powers == n->power_room) {
        int64_t room = 2 * n->power_room;
        if (!grow(n, &n->power_node, room, 4) || !grow(n, &n->power_time, room, 8) || !grow(n, &n->power_state, room, 1))
            return;
        n->power_room = room;
    }
    n->power_node[n->powers] = (int32_t)node;
    n->power_time[n->powers] = n->now;
    n->power_state[n->powers++] = (uint8_t)state;
    n->power[node] = (uint8_t)state;
    n->until[node] = until;
    if (until < n->next_power) n->next_power = until;
    n->changes++;
}

/* -- nodes of jobs ---------------------------------------------------------------------------------------------------- */

static void unreserve(struct nights *n, int64_t node) {
    if (!has(n->reserved, node)) return;
    drop(n->reserved, node);
    put(n->free, node);
}

static int compare_nodes(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Record that `job` held `count` nodes until `at`. */
static void release(struct nights *n, int32_t job, int32_t *nodes, int64_t count, double at) {
    qsort(nodes, (size_t)count, sizeof *nodes, compare_nodes);
    for (int64_t begin = 0, end; begin < count; begin = end) {
        double since = n->held_since[nodes[begin]];
        for (end = begin + 1; end < count && nodes[end] == nodes[end - 1] + 1 && n->held_since[nodes[end]] == since;) end++;
        if (n->held == n->held_room) {
            int64_t room = 2 * n->held_room;
            if (!grow(n, &n->held_job, room, 4) || !grow(n, &n->held_first, room, 4) || !grow(n, &n->held_count, room, 4)
                || !grow(n, &n->held_begin, room, 8) || !grow(n, &n->held_end, room, 8)) return;
            n->held_room = room;
        }
        n->held_job[n->held] = job;
        n->held_first[n->held] = nodes[begin];
        n->held_count[n->held] = (int32_t)(end - begin);
        n->held_begin[n->held] = since;
        n->held_end[n->held++] = at;
    }
}

static int room_for(struct nights *n, struct job *j, int32_t count) {
    if (count <= j->room) return 1;
    if (!grow(n, &j->assigned, count, 4) || !grow(n, &j->holding, count, 4)) return 0;
    j->room = count;
    return 1;
}

static void set_end(struct nights *n, int32_t job, double at) {
    n->job[job].end = at + n->job[job].left * iteration_s(n, job);
    push(n, n->job[job].end, job);
    n->changes++;
}

static void change(struct nights *n, int32_t job) {
    struct job *j = &n->job[job];
    n->changes++;
    int same = j->assigned_count == j->holding_count
        && !memcmp(j->assigned, j->holding, (size_t)j->holding_count * sizeof *j->holding);
    if (j->state == RUNNING && !same) {
        j->state = CHANGING;
        j->asked = n->now;
        j->point = boundary(n, job, n->now);
        push(n, j->point, job);
    } else if (same) {
        j->state = RUNNING;
    }
}

/* Let a job leave those of its assigned nodes that are marked in `leaves`, which is cleared. */
static void shrink(struct nights *n, int32_t job, uint64_t *leaves) {
    struct job *j = &n->job[job];
    int32_t kept = 0;
    for (int32_t at = 0; at < j->assigned_count; at++) {
        int32_t node = j->assigned[at];
        if (has(leaves, node)) { drop(leaves, node); unreserve(n, node); } else j->assigned[kept++] = node;
    }
    j->assigned_count = kept;
    change(n, job);
}

static void begin(struct nights *n, int32_t job, const int32_t *nodes, int32_t count) {
    struct job *j = &n->job[job];
    if (!room_for(n, j, count)) return;
    for (int32_t at = 0; at < count; at++) {
        drop(n->free, nodes[at]);
        n->held_since[nodes[at]] = n->now;
    }
    memcpy(j->assigned, nodes, (size_t)count * sizeof *nodes);
    memcpy(j->holding, nodes, (size_t)count * sizeof *nodes);
    j->assigned_count = j->holding_count = count;
    j->state = RUNNING;
    j->start = j->anchor = j->told = n->now;
    j->left = n->iterations[job];
    j->work = n->predicted[job];
    int64_t at = n->running_count++;
    for (; at > 0 && n->running[at - 1] > job; at--) n->running[at] = n->running[at - 1];
    n->running[at] = job;
    set_end(n, job, n->now);
}

static void reconfigure(struct nights *n, int32_t job, double at) {
    struct job *j = &n->job[job];
    int32_t from = j->holding_count, left = 0;
    j->work = predicted_left(n, job, n->pref[job], at);
    j->told = at;
    j->left -= nearbyint((at - j->anchor) / iteration_s(n, job));
    j->anchor = at;
    if (!room_for(n, j, j->assigned_count)) return;
    for (int32_t i = 0; i < j->assigned_count; i++) put(n->usable, j->assigned[i]);  /* a scratch set between calls */
    for (int32_t i = 0; i < from; i++) {
        if (has(n->usable, j->holding[i])) { drop(n->usable, j->holding[i]); continue; }
        put(n->free, j->holding[i]);
        n->scratch[left++] = j->holding[i];
    }
    release(n, job, n->scratch, left, at);
    for (int32_t i = 0; i < j->assigned_count; i++) {
        if (!has(n->usable, j->assigned[i])) continue;
        drop(n->usable, j->assigned[i]);
        drop(n->reserved, j->assigned[i]);
        n->held_since[j->assigned[i]] = at;
    }
    memcpy(j->holding, j->assigned, (size_t)j->assigned_count * sizeof *j->assigned);
    j->holding_count = j->assigned_count;
    j->state = RUNNING;
    if (n->rows == n->row_room) {
        int64_t room = 2 * n->row_room;
        if (!grow(n, &n->row_job, room, 4) || !grow(n, &n->row_from, room, 4) || !grow(n, &n->row_to, room, 4)
            || !grow(n, &n->row_asked, room, 8) || !grow(n, &n->row_applied, room, 8)) return;
        n->row_room = room;
    }
    n->row_job[n->rows] = job;
    n->row_from[n->rows] = from;
    n->row_to[n->rows] = j->holding_count;
    n->row_asked[n->rows] = j->asked;
    n->row_applied[n->rows++] = at;
    set_end(n, job, at);
}

static void finish(struct nights *n, int32_t job) {
    struct job *j = &n->job[job];
    j->state = DONE;
    for (int32_t at = 0; at < j->holding_count; at++) put(n->free, j->holding[at]);
    for (int32_t at = 0; at < j->assigned_count; at++) unreserve(n, j->assigned[at]);
    release(n, job, j->holding, j->holding_count, j->end);
    free(j->assigned);
    free(j->holding);
    j->assigned = j->holding = NULL;
    int64_t at = 0;
    while (n->running[at] != job) at++;
    n->running_count--;
    memmove(n->running + at, n->running + at + 1, (size_t)(n->running_count - at) * sizeof *n->running);
    n->changes++;
}

static void change_power(struct nights *n) {
    if (!n->sleeps) return;
    int dark = night(n);
    if (dark) {
        for (int64_t word = 0; word * 64 < n->targets; word++) {
            if (!n->free[word]) continue;
            for (int64_t node = word * 64; node < word * 64 + 64 && node < n->targets; node++) {
                if (!has(n->free, node)) continue;
                drop(n->free, node);
                power(n, node, SHUTDOWN, n->now + n->shutdown_s[node]);
            }
        }
    } else {
        for (int64_t node = 0; node < n->targets; node++)
            if (n->power[node] == OFF) power(n, node, BOOT, n->now + n->boot_s[node]);
    }
    for (int64_t row = 0; dark && n->shrinks && row < n->running_count; row++) {
        int32_t job = n->running[row], leaving = 0;
        struct job *j = &n->job[job];
        if (j->state != RUNNING || !n->malleable[job] || j->assigned_count <= n->low[job]) continue;
        for (int32_t at = n->low[job]; at < j->assigned_count; at++)
            if (j->assigned[at] < n->targets) { put(n->usable, j->assigned[at]); leaving++; }
        if (leaving) shrink(n, job, n->usable);
    }
    if (n->now < n->next_power) return;
    n->next_power = INFINITY;
    for (int64_t node = 0; node < n->targets; node++) {
        int state = n->power[node];
        if (n->now >= n->until[node]) {
            power(n, node, state == BOOT ? ON : OFF, INFINITY);
            if (state == BOOT) put(n->free, node);
        }
        if (n->until[node] < n->next_power) n->next_power = n->until[node];
    }
}

/* -- promises --------------------------------------------------------------------------------------------------------- */

static void promise(struct nights *n, int32_t job, int32_t node) {
    n->promised_to[node] = job;
    put(n->promised, node);
    n->job[job].promises++;
}

static void withdraw(struct nights *n, int32_t job) {
    n->changes++;
    for (int64_t word = 0; word < n->words && n->job[job].promises; word++) {
        for (uint64_t bits = n->promised[word]; bits; bits &= bits - 1) {
            int64_t node = word * 64 + __builtin_ctzll(bits);
            if (n->promised_to[node] != job) continue;
            n->promised_to[node] = -1;
            drop(n->promised, node);
            n->job[job].promises--;
        }
    }
}

/* Exchange promised nodes of `job` that are not free for free ones that are promised to others. */
static void exchange(struct nights *n, int32_t job) {
    int64_t mine = -1, theirs = -1;
    for (;;) {
        do mine++; while (mine < n->nodes && !(n->promised_to[mine] == job && !has(n->free, mine)));
        do theirs++; while (theirs < n->nodes && !(has(n->promised, theirs) && has(n->free, theirs) && n->promised_to[theirs] != job));
        if (mine >= n->nodes || theirs >= n->nodes) return;
        n->promised_to[mine] = n->promised_to[theirs];
        n->promised_to[theirs] = job;
    }
}

static int64_t promised_and_free(const struct nights *n) {
    int64_t count = 0;
    for (int64_t word = 0; word < n->words; word++) count += __builtin_popcountll(n->promised[word] & n->free[word]);
    return count;
}

static void remove_pending(struct nights *n, const int32_t *jobs, int64_t count) {
    int64_t kept = 0, next = 0;
    for (int64_t at = 0; at < n->pending_count; at++) {
        if (next < count && n->pending[at] == jobs[next]) next++; else n->pending[kept++] = n->pending[at];
    }
    n->pending_count = kept;
}

static void keep_promises(struct nights *n) {
    int64_t here = promised_and_free(n), started = 0;
    for (int64_t at = 0; at < n->pending_count && here; at++) {
        int32_t job = n->pending[at], needed = n->job[job].promises, count = 0;
        if (!needed || needed > here) continue;
        exchange(n, job);
        int64_t first = first_allowed(n, predicted_on(n, job, needed), 0);
        int allowed = 1;
        for (int64_t node = 0; node < n->nodes && count < needed; node++) {
            if (n->promised_to[node] != job || !has(n->free, node)) continue;
            n->scratch[count++] = (int32_t)node;
            allowed &= node >= first;
        }
        if (allowed) {
            begin(n, job, n->scratch, needed);
            n->waiting[started++] = job;
        }
        withdraw(n, job);
        here = promised_and_free(n);
    }
    if (started) remove_pending(n, n->waiting, started);
}

/* -- the two schedulers ------------------------------------------------------------------------------------------------- */

static int compare_keys(const void *a, const void *b) {
    const struct key *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static void easy(struct nights *n) {
    int64_t idle = count_from(n, n->free, 0), late = count_from(n, n->free, n->targets), started = 0;
    int32_t head = n->pending_count ? n->pending[0] : -1;
    double head_s = head >= 0 ? predicted_on(n, head, n->pref[head]) : 0.0;
    for (int64_t at = 0; at < n->pending_count && idle; at++) {
        int32_t job = n->pending[at], size = n->pref[job];
        if (size > idle || (job != head && n->now < head_s)) continue;
        int64_t first = first_allowed(n, predicted_on(n, job, size), 0);
        if (first && size > late) continue;
        lowest(n, n->free, first, size, n->scratch);
        begin(n, job, n->scratch, size);
        if (n->failed) return;
        n->waiting[started++] = job;
        idle -= size;
        late = count_from(n, n->free, n->targets);
    }
    if (started) remove_pending(n, n->waiting, started);
}

/* Return whether a job must wait for the head, of which `rows` of `keys` are the running jobs by predicted end; -1: the
 * rows are not known yet. */
static int delays_head(struct nights *n, int32_t job, int32_t head, int64_t needed, int64_t *rows) {
    if (job == head) return 0;
    double instant = n->now;
    if (needed > 0 && *rows < 0) {
        *rows = 0;
        for (int64_t at = 0; at < n->running_count; at++) {
            int32_t row = n->running[at];
            if (n->job[row].state != RUNNING || !(n->job[row].start < n->now)) continue;
            n->keys[*rows] = (struct key){predicted_left(n, row, n->job[row].holding_count, n->now), (int32_t)at, row};
            ++*rows;
        }
        qsort(n->keys, (size_t)*rows, sizeof *n->keys, compare_keys);
    }
    for (int64_t at = 0; needed > 0 && at < *rows; at++) {
        needed -= n->job[n->keys[at].job].assigned_count;
        instant = n->now + n->keys[at].value;
    }
    return needed <= 0 && instant < predicted_on(n, head, n->low[head]);
}

/* Sort the malleable jobs that ran when the call began by how many nodes they have above their least, most first
 * (`sign` -1) or last (1). Return their number. */
static int64_t by_surplus(struct nights *n, const int32_t *rows, int64_t count, int sign, int growing) {
    int64_t kept = 0;
    for (int64_t at = 0; at < count; at++) {
        int32_t job = rows[at], size = n->job[job].assigned_count;
        if (growing ? size >= n->high[job] : 0) continue;
        n->keys[kept++] = (struct key){sign * (double)(size - n->low[job]), (int32_t)at, job};
    }
    qsort(n->keys, (size_t)kept, sizeof *n->keys, compare_keys);
    return kept;
}

/* Shrink jobs for a waiting one; `rows` of `keys`: the jobs in their order. Return the nodes by which they shrink. */
static int64_t shrink_for(struct nights *n, int32_t waiting, int64_t rows) {
    int64_t needed = n->low[waiting], groups = 0, count = 0, promised = 0;
    for (int64_t at = 0; at < rows && needed > 0; at++) {
        int32_t job = n->keys[at].job;
        const struct job *j = &n->job[job];
        int64_t before = count;
        for (int32_t i = n->low[job]; i < j->assigned_count && needed > 0; i++) {
            if (has(n->promised, j->assigned[i])) continue;
            n->taken_nodes[count++] = j->assigned[i];
            needed--;
        }
        if (count == before) continue;
        n->taken_job[groups] = job;
        n->taken_from[groups++] = (int32_t)before;
    }
    if (needed > 0) return 0;
    for (int64_t group = 0; group < groups; group++) {
        int32_t *nodes = n->taken_nodes + n->taken_from[group];
        int64_t left = (group + 1 < groups ? n->taken_from[group + 1] : count) - n->taken_from[group];
        while (left) {
            int64_t first = first_allowed(n, predicted_on(n, waiting, left), 0), kept = 0;
            for (int64_t at = 0; at < left; at++)
                if (nodes[at] >= first) nodes[kept++] = nodes[at];
            if (kept == left) break;
            left = kept;
        }
        if (!left) continue;
        for (int64_t at = 0; at < left; at++) {
            promise(n, waiting, nodes[at]);
            put(n->reserved + n->words, nodes[at]);  /* the second set of `reserved`: nodes that leave their job */
        }
        shrink(n, n->taken_job[group], n->reserved + n->words);
        promised += left;
    }
    return promised;
}

static void expand(struct nights *n, int32_t job, int64_t *idle) {
    struct job *j = &n->job[job];
    int64_t size = j->assigned_count, target = size + *idle;
    int64_t late = count_from(n, n->usable, n->targets);
    if (target > n->high[job]) target = n->high[job];
    for (; target > size; target--) {
        int64_t first = first_allowed(n, predicted_left(n, job, target, n->now), 1);
        if (first && late < target - size) continue;
        if (!room_for(n, j, (int32_t)target)) return;
        lowest(n, n->usable, first, target - size, j->assigned + size);
        for (int64_t at = size; at < target; at++) {
            drop(n->usable, j->assigned[at]);
            drop(n->free, j->assigned[at]);
            put(n->reserved, j->assigned[at]);
        }
        j->assigned_count = (int32_t)target;
        *idle -= target - size;
        change(n, job);
        return;
    }
}

static void msa(struct nights *n, int32_t *ran) {
    int64_t resizable = 0, surplus = 0, waiting = 0, started = 0, rows = -1;
    for (int64_t at = 0; at < n->running_count; at++) {
        int32_t job = n->running[at];
        if (n->job[job].state != RUNNING || !n->malleable[job]) continue;
        ran[resizable++] = job;
        if (n->job[job].assigned_count > n->low[job]) surplus += n->job[job].assigned_count - n->low[job];
    }
    keep_promises(n);
    for (int64_t at = 0; at < n->pending_count; at++)
        if (!n->job[n->pending[at]].promises) n->waiting[waiting++] = n->pending[at];
    for (int64_t word = 0; word < n->words; word++) n->usable[word] = n->free[word] & ~n->promised[word];
    int64_t idle = count_from(n, n->usable, 0), late = count_from(n, n->usable, n->targets);
    int32_t *gone = n->taken_job;
    int64_t left = 0;  /* of the jobs before `at`, those that still wait: the first `left` */
    int64_t at = 0;
    int32_t head_was = -1;
    int64_t of_head = 0;
    double head_at = -1;
    for (; at < waiting && idle && !n->failed; at++) {
        int32_t job = n->waiting[at], head = left ? n->waiting[0] : job, size = n->low[job];
        n->waiting[left++] = job;
        if (size > idle) continue;
        int64_t first = first_allowed(n, predicted_on(n, job, size), 0);
        if ((first ? late : idle) < size) continue;
        if (job != head) {
            if (head != head_was || head_at != (double)idle) {
                of_head = first_allowed(n, predicted_on(n, head, n->low[head]), 0) ? late : idle;
                head_was = head;
                head_at = (double)idle;
            }
            if (delays_head(n, job, head, size - of_head, &rows)) continue;
        }
        lowest(n, n->usable, first, size, n->scratch);
        for (int32_t i = 0; i < size; i++) drop(n->usable, n->scratch[i]);
        begin(n, job, n->scratch, size);
        idle -= size;
        late = count_from(n, n->usable, n->targets);
        left--;
        gone[started++] = job;
        if (++at < waiting) n->waiting[left++] = n->waiting[at];  /* the next job is not looked at */
    }
    for (; at < waiting; at++) n->waiting[left++] = n->waiting[at];
    if (started) remove_pending(n, gone, started);
    int64_t sorted = -1;
    for (at = 0; at < left && surplus > 0 && !n->failed; at++) {
        if (n->low[n->waiting[at]] > surplus) continue;
        if (sorted < 0) sorted = by_surplus(n, ran, resizable, -1, 0);
        surplus -= shrink_for(n, n->waiting[at], sorted);
    }
    if (!idle || !resizable) return;
    sorted = by_surplus(n, ran, resizable, 1, 1);
    for (at = 0; at < sorted && idle && !n->failed; at++) expand(n, n->keys[at].job, &idle);
}

/* -- time --------------------------------------------------------------------------------------------------------------- */

/* Return the second of the next call that can decide something, after a call that found and changed nothing. */
static double next_call(const struct nights *n, double second, int64_t coming) {
    double next = coming < n->jobs ? n->submit[coming] + 1 : INFINITY;
    if (n->heap_count) next = fmin(next, floor(n->heap[0].time + 2 * SLACK_S) + 1);
    if (n->pending_count) {
        int32_t head = n->pending[0];
        double head_s = predicted_on(n, head, n->msa ? n->low[head] : n->pref[head]);
        if (head_s > second) next = fmin(next, ceil(head_s));
    }
    if (n->sleeps) {
        double day = floor(second / DAY_S) * DAY_S;
        for (int at = 0; at < 2; at++) {
            double to = day + at * DAY_S + (double)n->night_to, from = day + at * DAY_S + (double)n->night_from;
            if (to > second) next = fmin(next, to);
            if (from > second) next = fmin(next, from);
        }
        next = fmin(next, n->next_power);
    }
    return fmax(second + n->interval, ceil((next - 1e-3) / n->interval) * n->interval);
}

static void simulate(struct nights *n, int32_t *ran) {
    int64_t coming = 0;
    double second = 0, last = 0;
    int changed = 1;
    while ((coming < n->jobs || n->pending_count || n->running_count) && !n->failed) {
        second = changed ? second + n->interval : next_call(n, second, coming);
        if (coming == n->jobs && !n->running_count && second - last > NEVER_S) return;
        int64_t before = n->changes;
        for (; coming < n->jobs && n->submit[coming] < second; n->changes++)
            n->pending[n->pending_count++] = (int32_t)coming++;
        n->now = second;
        memset(n->usable, 0, (size_t)n->words * sizeof *n->usable);
        while (n->heap_count && n->heap[0].time < n->now - SLACK_S && !n->failed) {
            struct event event = pop(n);
            struct job *j = &n->job[event.job];
            if (j->state != DONE && event.time == j->end) finish(n, event.job);
            else if (j->state == CHANGING && event.time == j->point) reconfigure(n, event.job, event.time);
        }
        change_power(n);
        if (n->msa) msa(n, ran); else easy(n);
        changed = n->changes > before;
        if (n->running_count || coming < n->jobs) last = second;
    }
}

struct nights_results {
    int64_t rows, held, powers;
    const int32_t *row_job, *row_from, *row_to; const double *row_asked, *row_applied;
    const int32_t *held_job, *held_first, *held_count; const double *held_begin, *held_end;
    const int32_t *power_node; const double *power_time; const uint8_t *power_state;
};

void tracebed_nights_free(struct nights *n) {
    if (!n) return;
    for (int64_t job = 0; n->job && job < n->jobs; job++) free(n->job[job].assigned), free(n->job[job].holding);
    void *arrays[] = {n->job, n->free, n->reserved, n->promised, n->usable, n->promised_to, n->held_since, n->power,
                      n->until, n->pending, n->waiting, n->running, n->heap, n->keys, n->scratch, n->taken_job,
                      n->taken_from, n->taken_nodes, n->row_job, n->row_from, n->row_to, n->row_asked, n->row_applied,
                      n->held_job, n->held_first, n->held_count, n->held_begin, n->held_end, n->power_node,
                      n->power_time, n->power_state, n};
    for (size_t at = 0; at < sizeof arrays / sizeof *arrays; at++) free(arrays[at]);
}

/* Simulate. Numbers: jobs, nodes, nodes that are to be off, whether msa, whether nodes sleep, whether jobs shrink off
 * nodes that are to be off, begin and end of the window (s of the day), seconds between two calls. Arrays as in `struct nights`, jobs in the order
 * of submission. Write start and end of each job (NaN: it never started); return the rest, or null without memory. */
struct nights *tracebed_nights(
    const int64_t *numbers, const double *submit, const double *run_time, const double *iterations, const double *part,
    const double *predicted, const int32_t *pref, const int32_t *low, const int32_t *high, const uint8_t *malleable,
    const double *boot_s, const double *shutdown_s, double *start, double *end, struct nights_results *results) {
    struct nights *n = calloc(1, sizeof *n);
    if (!n) return NULL;
    n->jobs = numbers[0], n->nodes = numbers[1], n->targets = numbers[2], n->msa = numbers[3], n->sleeps = numbers[4];
    n->shrinks = numbers[5], n->night_from = numbers[6], n->night_to = numbers[7];
    n->interval = (double)numbers[8];
    n->submit = submit, n->run_time = run_time, n->iterations = iterations, n->part = part, n->predicted = predicted;
    n->pref = pref, n->low = low, n->high = high, n->malleable = malleable;
    n->boot_s = boot_s, n->shutdown_s = shutdown_s;
    n->words = (n->nodes + 63) / 64;
    n->next_power = INFINITY;
    int64_t jobs = n->jobs, nodes = n->nodes, room = 256;
    n->heap_room = n->row_room = n->held_room = n->power_room = room;
    n->job = make(n, jobs, sizeof *n->job);
    n->free = make(n, n->words, 8), n->reserved = make(n, 2 * n->words, 8), n->promised = make(n, n->words, 8);
    n->usable = make(n, n->words, 8), n->promised_to = make(n, nodes, 4), n->held_since = make(n, nodes, 8);
    n->power = make(n, nodes, 1), n->until = make(n, nodes, 8);
    n->pending = make(n, jobs, 4), n->waiting = make(n, jobs, 4), n->running = make(n, jobs, 4);
    n->heap = make(n, room, sizeof *n->heap), n->keys = make(n, jobs, sizeof *n->keys);
    n->scratch = make(n, nodes, 4), n->taken_job = make(n, jobs, 4), n->taken_from = make(n, jobs, 4);
    n->taken_nodes = make(n, nodes, 4);
    n->row_job = make(n, room, 4), n->row_from = make(n, room, 4), n->row_to = make(n, room, 4);
    n->row_asked = make(n, room, 8), n->row_applied = make(n, room, 8);
    n->held_job = make(n, room, 4), n->held_first = make(n, room, 4), n->held_count = make(n, room, 4);
    n->held_begin = make(n, room, 8), n->held_end = make(n, room, 8);
    n->power_node = make(n, room, 4), n->power_time = make(n, room, 8), n->power_state = make(n, room, 1);
    int32_t *ran = make(n, jobs, 4);
    if (!n->failed) {
        for (int64_t node = 0; node < nodes; node++) {
            put(n->free, node);
            n->promised_to[node] = -1;
            n->until[node] = INFINITY;
        }
        for (int64_t job = 0; job < jobs; job++) {
            n->job[job].speed = 1 / ((1 - part[job]) + part[job] / (double)pref[job]);
            n->job[job].start = n->job[job].end = NAN;
            n->job[job].point = INFINITY;
        }
        simulate(n, ran);
    }
    free(ran);
    if (n->failed) {
        tracebed_nights_free(n);
        return NULL;
    }
    for (int64_t job = 0; job < jobs; job++) {
        start[job] = n->job[job].start;
        end[job] = n->job[job].end;
    }
    *results = (struct nights_results){
        .rows = n->rows, .held = n->held, .powers = n->powers,
        .row_job = n->row_job, .row_from = n->row_from, .row_to = n->row_to, .row_asked = n->row_asked,
        .row_applied = n->row_applied, .held_job = n->held_job, .held_first = n->held_first,
        .held_count = n->held_count, .held_begin = n->held_begin, .held_end = n->held_end,
        .power_node = n->power_node, .power_time = n->power_time, .power_state = n->power_state,
    };
    return n;
}
