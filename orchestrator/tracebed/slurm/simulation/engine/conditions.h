/* Conditions of the starts and arrays, as in tests/oracles/slurm_simulation/progress.py. Part of slurm.c. */

enum { AFTER, AFTER_OK, AFTER_NOT_OK, AFTER_ANY, SINGLETON }; /* kinds of conditions */
enum { WAITING, RUNNING, DONE, FAILED, CANCELLED, STUCK };    /* states of jobs */
enum { OPEN, MET, IMPOSSIBLE };

/* Whether as many tasks of the array of a job run as may. */
static int full_array(const struct engine *e, int32_t job) {
    int32_t array = e->s->array[job];
    return array >= 0 && e->s->array_most[array] > 0 && e->array_running[array] >= e->s->array_most[array];
}

/* Number of an array in a partition, whose tasks are one entry of Slurm's queue; -1: no task of an array. */
static int64_t array_entry(const struct engine *e, int32_t job) {
    return e->s->array[job] < 0 ? -1 : e->s->array[job] * e->s->partitions + e->s->partition[job];
}

/* The start of a job, whose state is that of its first entry `job`; NaN: it has not started. */
static double start_of(const struct engine *e, int32_t job) {
    while (isnan(e->s->start[job]) && e->s->following[job] >= 0) job = e->s->following[job];
    return e->s->start[job];
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
    if (kind == SINGLETON) return alone(e, s->first_entry[job], of);
    int state = e->state[of];
    if (state == STUCK) return IMPOSSIBLE;
    if (state == WAITING) return OPEN;
    if (kind == AFTER) {
        double instant = start_of(e, of) + s->condition_delay[k];
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
    if (e->state[s->first_entry[job]] >= CANCELLED) return IMPOSSIBLE; /* another entry of the job has found out */
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
    set_state(e, e->s->first_entry[job], state);
    if (job == e->s->first_entry[job]) count_job(&e->limits, job, NULL, -1);
    e->now_left--;
    if (job < e->s->watched) e->to_start--;
}

static void refresh(struct engine *e) {
    const struct setup *s = e->s;
    int again = e->unready > 0;
    if (s->bookings) {
        int64_t kept = 0, now = whole_second(e, e->now);
        for (int64_t k = 0; k < e->queue_count; k++) {
            int32_t job = e->queue[k];
            if (s->inside[job] >= 0 && s->booked_end[s->inside[job]] <= now) {
                if (e->ready[job]) count_ready(e, job, -1);
                else e->unready--;
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
                    e->unready--;
                    again = 1;
                    continue;
                }
                if (result == MET && e->earliest[job] <= e->now + ROUNDING_S) {
                    e->ready[job] = 1;
                    e->unready--;
                    if (e->now < e->accrued[job]) e->accrued[job] = e->now;
                    count_ready(e, job, 1);
                } else if (e->now < later && later < INFINITY) at(e, later, CHANGE, job);
            }
            e->queue[kept++] = job;
        }
        e->queue_count = kept;
    }
}
