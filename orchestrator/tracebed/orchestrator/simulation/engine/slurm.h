/* Slurm with whole nodes, one partition and the order of submission: as policies/slurm.py and slurm_backfill.py. The
 * instants of the passes and the plan are those of simulation/slurm/engine. Part of engine.c. */

struct slurm_running { int64_t end; int32_t job; };

struct slurm {
    struct loops loops;
    struct slots slots;
    struct slurm_running *running; int64_t running_count; /* in the order of their expected ends, whole seconds */
    int32_t *pending;                /* the jobs of a backfill pass */
    int32_t *jobs_of_user;
    struct block *blocks;
    uint64_t *everything, *usable, *idle_then, *ready, *picked;
    int noticed; /* see slurm_backfill.py */
};

#define SLURM_ARRAYS(_) \
    _(s, running, e->in.nodes) _(s, pending, e->in.jobs) _(s, jobs_of_user, e->in.bf_max_job_user ? e->in.jobs : 0) \
    _(s, blocks, e->in.nodes / 2 + 1) \
    _(s, everything, e->words) _(s, usable, e->words) _(s, idle_then, e->words) _(s, ready, e->words) _(s, picked, e->words)

static void slurm_new(struct engine *e) {
    struct slurm *s = e->slurm = make(e, 1, sizeof *s);
    if (!s) return;
    s->loops = LOOPS_OF(&e->in);
    SLURM_ARRAYS(MADE)
    for (int64_t node = 0; node < e->in.nodes && !e->failed; node++) s->everything[node >> 6] |= UINT64_C(1) << (node & 63);
}

static void slurm_free(struct engine *e) {
    struct slurm *s = e->slurm;
    if (!s) return;
    slots_close(&s->slots);
    SLURM_ARRAYS(FREED)
    free(s);
}

static double at_wall(const struct engine *e, double time) { return e->in.speed != 0.0 ? time / e->in.speed : time; }

static int young(const struct engine *e, int32_t job) {
    return at_wall(e, e->now - e->in.submit[job]) < (double)e->in.bf_min_age_reserve;
}

/* The time limit of `job` in whole minutes, s. */
static int64_t slurm_limit(const struct engine *e, int32_t job) {
    double minutes = ceil(at_wall(e, e->in.limit[job]) / 60.0 - SECOND_ROUNDING_S);
    return 60 * (minutes > 1.0 ? (int64_t)minutes : 1);
}

static int64_t slurm_main_pass(struct engine *e, double at, int *left) {
    struct slurm *s = e->slurm;
    int64_t depth = e->in.default_queue_depth, started = 0, tested = 0;
    if (at - last_full(&s->loops) >= (double)e->in.sched_interval) {
        s->loops.full_last = at;
        depth = e->in.jobs;
    }
    for (int32_t job = queue_first(e); job >= 0 && !e->failed; job = queue_next(e, job), tested++) {
        if (tested == depth || (e->in.sched_max_job_start && started == e->in.sched_max_job_start)) {
            *left = LEFT;
            break;
        }
        int32_t nodes = e->in.requested[job];
        if (nodes <= e->idle) {
            best_fit(e->words, e->idle_bits, nodes, s->picked, s->blocks);
            start_among(e, job, s->picked);
            started++;
        } else if (!young(e, job)) break;
    }
    return started;
}

/* Let `job` end at `end` among the running jobs. */
static void slurm_runs(struct slurm *s, int64_t end, int32_t job) {
    int64_t k = s->running_count++;
    for (; k && (end < s->running[k - 1].end || (end == s->running[k - 1].end && job < s->running[k - 1].job)); k--)
        s->running[k] = s->running[k - 1];
    s->running[k] = (struct slurm_running){end, job};
}

/* The first instant until `latest` (0: any) at which `nodes` of the usable nodes are idle, -1: none; they are in
 * s->idle_then. The running jobs end one after another; one that has passed its expected end ends in one second. */
static int64_t slurm_first(struct engine *e, int64_t nodes, int64_t now, int64_t latest) {
    struct slurm *s = e->slurm;
    for (int64_t w = 0; w < e->words; w++) s->idle_then[w] = s->usable[w] & e->idle_bits[w];
    int64_t free = nodes_in(e->words, s->idle_then);
    if (free >= nodes) return now;
    for (int64_t k = 0; k < s->running_count; k++) {
        int64_t end = s->running[k].end > now + 1 ? s->running[k].end : now + 1;
        if (latest && end > latest) return -1;
        free += add_held(e, s->idle_then, s->running[k].job, s->usable);
        if (free >= nodes) return end;
    }
    CHECK(0);
    return -1;
}

/* When `job` can start at the earliest, -1: never; its nodes are in s->picked. */
static int64_t slurm_plan(struct engine *e, int32_t job, int64_t now) {
    struct slurm *s = e->slurm;
    int64_t later = now, limit = slurm_limit(e, job), nodes = e->in.requested[job], unit = e->in.bf_resolution;
    int64_t released = -1; /* running jobs whose nodes are in s->ready */
    slots_next_job(&s->slots);
    for (;;) {
        int64_t since = later;
        later = slots_later(&s->slots, since, limit, NULL);
        int fits = slots_usable(&s->slots, since, limit, s->everything, s->usable) >= nodes;
        if (fits && later && since > now) { /* whether enough usable nodes are idle until `later` */
            if (released < 0) {
                copy_nodes(e, s->ready, e->idle_bits);
                released = 0;
            }
            for (; released < s->running_count && s->running[released].end <= later; released++)
                add_held(e, s->ready, s->running[released].job, NULL);
            fits = common(e->words, s->usable, s->ready) >= nodes;
        }
        if (fits) {
            int64_t start = slurm_first(e, nodes, now, later);
            if (start >= 0 && start < since) {
                start = since;
                s->noticed = 1;
            }
            if (start >= 0 && (!later || start <= later)) {
                if (start > now + 60 * e->in.bf_window) return -1;
                int64_t begin = slots_round(start, unit), end = slots_round_end(&s->slots, start + limit, unit);
                best_fit(e->words, s->idle_then, nodes, s->picked, s->blocks);
                if (start <= now || !slots_overlap(&s->slots, begin, end, s->picked)) return start;
                later = start; /* other nodes may be usable then */
            }
        }
        if (later <= since) return -1;
    }
}

/* Whether the plan may leave enough nodes for a start of `job` now. Starts and reservations only remove some. */
static int slurm_may_start(const struct engine *e, int32_t job) {
    const uint64_t *usable = slots_now(&e->slurm->slots, slurm_limit(e, job));
    return common(e->words, usable, e->idle_bits) >= e->in.requested[job];
}

static int64_t slurm_backfill_pass(struct engine *e, double at, int *left) {
    struct slurm *s = e->slurm;
    const struct setup *in = &e->in;
    int64_t now = loops_second(&s->loops, at), started = 0, reserved = 0, count = 0, last = 0;
    int64_t table = in->bf_node_space_size ? in->bf_node_space_size : in->bf_max_job_test;
    if (in->bf_max_job_user) memset(s->jobs_of_user, 0, (size_t)in->jobs * sizeof *s->jobs_of_user);
    for (int32_t job = queue_first(e); job >= 0 && count < in->bf_max_job_test; job = queue_next(e, job)) {
        if (in->bf_max_job_user && ++s->jobs_of_user[in->user[job]] > in->bf_max_job_user) continue;
        s->pending[count++] = job;
        if (in->requested[job] <= e->idle) last = count;
    }
    int few = e->waiting_count <= FEW && !e->idle;
    if (few) last = count; /* all are planned, to know whether Slurm sees a change */
    s->noticed = !few;
    if (!last) {
        *left = few ? QUIET : 0;
        return 0;
    }
    int some_young = 0;
    for (int64_t k = 0; k < last && in->bf_min_age_reserve && !some_young; k++) some_young = young(e, s->pending[k]);
    s->running_count = 0;
    RELEASES(e, r) {
        if (r->job >= in->jobs) { /* nodes that are being switched off */
            slurm_runs(s, loops_second(&s->loops, at_wall(e, r->end)), r->job);
            continue;
        }
        double begun = at_wall(e, e->expected_end[r->job] - in->limit[r->job]);
        slurm_runs(s, loops_second(&s->loops, begun) + slurm_limit(e, r->job), r->job);
    }
    slots_begin(&s->slots, e->words, now, now + 60 * in->bf_window, s->everything, NULL, 0, in->release);
    for (int64_t k = 0; k < last && !s->slots.failed && !e->failed; k++) {
        int32_t job = s->pending[k];
        int64_t begin = slurm_plan(e, job, now), limit = slurm_limit(e, job), unit = in->bf_resolution;
        if (begin < 0) continue;
        if (begin <= now) {
            start_among(e, job, s->picked);
            slurm_runs(s, now + limit, job);
            if (++started == in->bf_max_job_start) {
                *left = LEFT;
                return started;
            }
        } else if (young(e, job) || (in->bf_job_part_count_reserve && reserved == in->bf_job_part_count_reserve)) continue;
        else if (s->slots.count >= table) break;
        else {
            reserved++;
            slots_reserve(&s->slots, slots_round(begin, unit), slots_round_end(&s->slots, begin + limit, unit), s->picked);
        }
        while (!few && last > k && !slurm_may_start(e, s->pending[last - 1])) last--; /* those jobs change nothing */
    }
    if (s->slots.failed) e->failed = NO_MEMORY;
    *left = (some_young ? LEFT : 0) | (s->noticed ? 0 : QUIET);
    return started;
}

static int64_t slurm_pass(void *engine, int backfills, double at, int *left) {
    return backfills ? slurm_backfill_pass(engine, at, left) : slurm_main_pass(engine, at, left);
}

static void slurm_decide(struct engine *e) {
    int64_t arrived = 0;
    for (int64_t job = e->arrived; job >= 0 && job < e->next_job; job++) arrived += e->waiting[job];
    double now = at_wall(e, e->now), speed = e->in.speed != 0.0 ? e->in.speed : 1.0;
    double next = loops_decide(&e->slurm->loops, now, e->arrived >= 0 || e->freed, 0, e->waiting_count > arrived, -INFINITY, slurm_pass, e);
    if (next < INFINITY) e->wake = next * speed <= e->now ? e->now : due(e, next * speed);
}
