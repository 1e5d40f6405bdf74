/* Power saving: slurmctld switches idle nodes off, and nodes on for a job, as in tests/oracles/slurm_simulation/power.py.
 * Part of slurm.c. */

enum { ON, FALLING, OFF, RISING }; /* a falling node is being switched off, and not allocatable; a rising one boots */
enum { LAST_WEIGHT = INT32_MAX, FORGOTTEN_S = 3600 };
static const double POWER_LOOP_S = 1.0005;

static int has_power(const struct engine *e) { return e->s->suspend_s != NULL; }

static int may_sleep(const struct engine *e, int64_t node) { return e->s->suspend_s[node] >= 0 && !has(e->s->spared, (int32_t)node); }

static int is_idle(const struct engine *e, int64_t node) { return e->holders[node].count == 0; }

static void count_sleepy(struct engine *e, int64_t node, int sign) {
    uint64_t own = 1ull << (node & 63);
    if (!may_sleep(e, node)) return;
    e->power.sleepy_count += sign;
    if (sign > 0) {
        int64_t due = e->power.since[node] + e->s->suspend_s[node];
        if (due < e->power.soonest) e->power.soonest = due;
        e->power.sleepy[node >> 6] |= own;
    } else e->power.sleepy[node >> 6] &= ~own;
}

static void switch_off(struct engine *e, int64_t node) {
    e->power.state[node] = OFF;
    e->weights[node] = LAST_WEIGHT;
}

/* Whether a job waits for a node that is off. */
static int wants_nodes(const struct engine *e) {
    const struct power *p = &e->power;
    for (int64_t k = 0; k < p->job_count; k++) {
        const struct range *ranges = e->ranges + e->s->range_first[p->jobs[k]];
        for (int32_t r = 0; r < e->s->range_size[p->jobs[k]]; r++)
            for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--)
                if (p->state[node] == OFF) return 1;
    }
    return 0;
}

/* Note when the thread looks next, if there is something to do then. */
static void plan_power(struct engine *e) {
    const struct setup *s = e->s;
    struct power *p = &e->power;
    if (!p->sleepy_count && !p->falling_count && !p->wanted) {
        p->due = INFINITY;
        return;
    }
    int64_t wait = s->power_least_s;
    if (p->touched < p->looked && wait < s->power_interval_s) wait = s->power_interval_s;
    double soonest = (double)(p->looked + wait) - s->epoch_s;
    double instant = multiple_after(POWER_LOOP_S, soonest > e->now ? soonest : e->now, s->power_phase_s, 0);
    while (instant <= p->last) instant += POWER_LOOP_S;
    if (instant == p->due) return;
    p->due = instant;
    at(e, instant, LOOK, 0);
}

/* Note that a node has changed, so that the thread looks soon. */
static void touch_power(struct engine *e) {
    e->power.touched = whole_second(e, e->now);
    plan_power(e);
}

/* Find out when the jobs begin all of whose nodes have booted: slurmctld looks for them every `CHECK_S`. */
static void check_power(struct engine *e) {
    struct power *p = &e->power;
    for (int64_t k = 0; k < p->job_count; k++) {
        int32_t job = p->jobs[k];
        const struct range *ranges = e->ranges + e->s->range_first[job];
        int waits = !isnan(p->ready_at[job]);
        for (int32_t r = 0; r < e->s->range_size[job] && !waits; r++)
            for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--) waits |= p->state[node] != ON;
        if (waits) continue;
        p->ready_at[job] = multiple_after(CHECK_S, e->now, e->s->check_s, 0);
        at(e, p->ready_at[job], BEGIN, job);
    }
}

/* Note the start of `job`. Return whether it must wait until its nodes have booted. */
static int power_started(struct engine *e, int32_t job) {
    struct power *p = &e->power;
    if (!has_power(e)) return 0;
    const struct range *ranges = e->ranges + e->s->range_first[job];
    int waits = 0;
    for (int32_t r = 0; r < e->s->range_size[job]; r++)
        for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--) {
            waits |= p->state[node] != ON;
            p->wanted |= p->state[node] == OFF;
            if (has(p->sleepy, node)) count_sleepy(e, node, -1);
        }
    if (waits) p->jobs[p->job_count++] = job;
    touch_power(e);
    return waits;
}

static void forget_power(struct engine *e, int32_t job) {
    struct power *p = &e->power;
    int64_t k = 0;
    while (k < p->job_count && p->jobs[k] != job) k++;
    if (k == p->job_count) return;
    memmove(p->jobs + k, p->jobs + k + 1, (size_t)(--p->job_count - k) * sizeof *p->jobs);
    p->ready_at[job] = NAN;
    p->wanted = wants_nodes(e);
}

/* Note the end of `job`, and since when its nodes are idle. */
static void power_ended(struct engine *e, int32_t job) {
    struct power *p = &e->power;
    if (!has_power(e)) return;
    forget_power(e, job);
    const struct range *ranges = e->ranges + e->s->range_first[job];
    for (int32_t r = 0; r < e->s->range_size[job]; r++)
        for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--) {
            if (!is_idle(e, node) || (p->state[node] != ON && p->state[node] != RISING)) continue;
            p->since[node] = whole_second(e, e->now);
            if (p->state[node] == ON) count_sleepy(e, node, 1);
        }
    touch_power(e);
}

/* Let `node` register. */
static void booted(struct engine *e, int32_t node) {
    struct power *p = &e->power;
    p->state[node] = ON;
    p->since[node] = whole_second(e, e->now);
    if (is_idle(e, node)) count_sleepy(e, node, 1);
    touch_power(e);
    check_power(e);
}

/* Let the counts of switched nodes decay, at each look, also those that changed nothing. */
static void decay_power(struct engine *e, int64_t elapsed) {
    struct power *p = &e->power;
    int64_t step = e->s->power_interval_s > e->s->power_least_s ? e->s->power_interval_s : e->s->power_least_s;
    if (step < 1) step = 1;
    if (elapsed >= FORGOTTEN_S) p->recent_off = p->recent_on = 0.0;
    for (; elapsed > 0 && elapsed < FORGOTTEN_S; elapsed -= step) {
        int64_t own = elapsed < step ? elapsed : step;
        double part = own < MINUTE_S ? (double)(MINUTE_S - own) / (double)MINUTE_S : 0.0;
        p->recent_off *= part;
        p->recent_on *= part;
    }
}

static void note_switched(struct engine *e, int64_t node, int on) {
    struct power *p = &e->power;
    if (!grow((void **)&p->switched, &p->switched_room, p->switched_count + 1, sizeof *p->switched)) { e->out_of_memory = 1; return; }
    p->switched[p->switched_count++] = (struct switched){e->now, (int32_t)node, on};
}

/* Switch nodes off and on. Return whether nodes that are off now may be allocated again. */
static int look(struct engine *e) {
    const struct setup *s = e->s;
    struct power *p = &e->power;
    int64_t second = whole_second(e, e->now);
    decay_power(e, second - p->looked);
    double off = floor(p->recent_off + 0.5), on = floor(p->recent_on + 0.5);
    p->last = e->now;
    p->looked = second;
    int falls = p->sleepy_count && p->soonest < second, again = 0;
    size_t size = (size_t)e->words * sizeof(uint64_t);
    memset(p->waking, 0, size);
    for (int64_t k = 0; k < p->job_count; k++) {
        const struct range *ranges = e->ranges + s->range_first[p->jobs[k]];
        for (int32_t r = 0; r < s->range_size[p->jobs[k]]; r++)
            for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--)
                if (p->state[node] == OFF && (!s->resume_rate || on < (double)s->resume_rate)) {
                    p->waking[node >> 6] |= 1ull << (node & 63);
                    on += 1.0;
                    p->recent_on += 1.0;
                }
    }
    memset(p->kept, 0, size);
    for (int64_t k = 0; falls && k < s->kept_count; k++) {
        const uint64_t *mask = s->kept_nodes + k * e->words;
        int64_t left = s->kept_least[k], all = left >= nodes_in(e->words, mask);
        for (int64_t node = 0; node < s->nodes; node++) {
            if (!has(mask, (int32_t)node)) continue;
            if (!all && (left == 0 || p->state[node] != ON || !is_idle(e, node))) continue;
            left--;
            p->kept[node >> 6] |= 1ull << (node & 63);
        }
    }
    if (falls) p->soonest = INT64_MAX;
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = p->waking[w] | p->falling[w] | (falls ? p->sleepy[w] : 0); left; left &= left - 1) {
            int64_t node = 64 * w + __builtin_ctzll(left);
            uint64_t own = left & -left;
            if (p->waking[w] & own) {
                p->state[node] = RISING;
                e->weights[node] = s->weights[node];
                note_switched(e, node, 1);
                at(e, e->now + s->boot_s[node], BOOTED, (int32_t)node);
            } else if (p->sleepy[w] & own) {
                int64_t due = p->since[node] + s->suspend_s[node];
                if (due < second && !(p->kept[w] & own) && (!s->suspend_rate || off < (double)s->suspend_rate)) {
                    p->state[node] = FALLING;
                    p->since[node] = second;
                    p->falling[w] |= own;
                    p->falling_count++;
                    count_sleepy(e, node, -1);
                    e->up[w] &= ~own;
                    note_switched(e, node, 0);
                    off += 1.0;
                    p->recent_off += 1.0;
                } else if (due < p->soonest) p->soonest = due;
            } else if (p->since[node] + s->suspend_timeout_s[node] < second) {
                switch_off(e, node);
                p->falling[w] &= ~own;
                p->falling_count--;
                e->up[w] |= own;
                again = 1;
            }
        }
    p->wanted = p->wanted && wants_nodes(e);
    plan_power(e);
    return again;
}

static void close_power(struct engine *e) {
    struct power *p = &e->power;
    free(p->state), free(p->since), free(p->jobs), free(p->ready_at), free(p->sleepy), free(p->falling), free(p->waking), free(p->kept);
}

/* Begin with all nodes idle since `first`. Return whether the memory suffices. */
static int open_power(struct engine *e, double first) {
    const struct setup *s = e->s;
    size_t jobs = (size_t)s->jobs, nodes = (size_t)s->nodes, words = (size_t)e->words;
    int64_t second = whole_second(e, first);
    e->power = (struct power){
        .state = calloc(nodes, 1), .since = malloc(nodes * sizeof(int64_t)), .jobs = malloc(jobs * sizeof(int32_t)),
        .ready_at = malloc(jobs * sizeof(double)), .sleepy = calloc(words, sizeof(uint64_t)),
        .falling = calloc(words, sizeof(uint64_t)), .waking = calloc(words, sizeof(uint64_t)),
        .kept = calloc(words, sizeof(uint64_t)), .due = INFINITY, .last = -INFINITY, .looked = second, .touched = second,
        .soonest = INT64_MAX,
    };
    struct power *p = &e->power;
    if (!p->state || !p->since || !p->jobs || !p->ready_at || !p->sleepy || !p->falling || !p->waking || !p->kept) return 0;
    for (size_t job = 0; job < jobs; job++) p->ready_at[job] = NAN;
    for (int64_t node = 0; node < s->nodes; node++) {
        p->since[node] = second;
        if (s->begins_off[node]) switch_off(e, node);
        else count_sleepy(e, node, 1);
    }
    return 1;
}
