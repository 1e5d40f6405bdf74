/* The instants of Slurm's passes, as in scheduling/policies/slurm.py. Part of slurm.c and of engine.c. */

static const double SECOND_ROUNDING_S = 1e-6, WHOLE_STEPS = 9007199254740992.0;

struct loops {
    int64_t sched_interval, batch_sched_delay, bf_interval;
    double epoch_s, sched_loop_s, sched_phase_s, bf_loop_s, bf_phase_s;
    double sched_last, full_last, bf_last, sched_due, bf_due; /* NaN: never */
};

/* The loops of the parameters in a `struct setup`. */
#define LOOPS_OF(s) \
    (struct loops){(s)->sched_interval, (s)->batch_sched_delay, (s)->bf_interval, (s)->epoch_s, (s)->sched_loop_s, \
                   (s)->sched_phase_s, (s)->bf_loop_s, (s)->bf_phase_s, NAN, NAN, NAN, NAN, NAN}

/* A pass at `instant`; return the number of jobs started, and in `left` whether work is left. */
typedef int64_t pass_of(void *engine, int backfills, double instant, int *left);

static int64_t loops_second(const struct loops *l, double instant) {
    return (int64_t)floor(instant + l->epoch_s + SECOND_ROUNDING_S);
}

static double multiple_after(double step, double instant, double origin, int positive) {
    if ((instant - origin) / step >= WHOLE_STEPS) return instant;
    double k = ceil((instant - origin) / step) - 1.0;
    if (positive && k < 0) k = 0;
    while (origin + k * step < instant) k += 1.0;
    return origin + k * step;
}

static double next_main(const struct loops *l, double now) {
    if (l->sched_interval < 0) return INFINITY;
    double instant = multiple_after(l->sched_loop_s, now, l->sched_phase_s, 0);
    if (!isnan(l->sched_last))
        while (loops_second(l, instant) - loops_second(l, l->sched_last) < l->batch_sched_delay) instant += l->sched_loop_s;
    return instant;
}

/* The last pass of the main loop over the whole queue, or the first instant of the loop. */
static double last_full(const struct loops *l) { return isnan(l->full_last) ? l->sched_phase_s : l->full_last; }

static double next_full(const struct loops *l, double last) {
    if (l->sched_interval < 0) return INFINITY;
    double since = last_full(l), least = last + l->sched_loop_s, interval = (double)l->sched_interval;
    if (0 < l->sched_interval && interval < least - since) { /* passes that were not simulated */
        double period = ceil(interval / l->sched_loop_s) * l->sched_loop_s;
        since += (ceil((least - since) / period - SECOND_ROUNDING_S) - 1.0) * period;
    }
    return multiple_after(l->sched_loop_s, least > since + interval ? least : since + interval, l->sched_phase_s, 0);
}

static double backfill_interval(const struct loops *l) { return (double)l->bf_interval + l->bf_loop_s - 1.0; }

static double next_backfill(const struct loops *l, double now, double last) {
    if (l->bf_interval < 0) return INFINITY;
    if (isnan(last)) return multiple_after(l->bf_loop_s, now, l->bf_phase_s, 1);
    return multiple_after(l->bf_loop_s, now, last + backfill_interval(l), 1);
}

static double sooner_of(double a, double b) { return b < a ? b : a; }

/* Make the passes that are due. `event`: whether a job has been submitted or has ended since the last call; `changed`:
 * whether jobs may start that no event tells of; `waits`: whether a job has waited since then. Return the instant of the
 * next call. */
static double loops_decide(struct loops *l, double now, int event, int changed, int waits, pass_of *pass, void *engine) {
    double due[2] = {isnan(l->sched_due) ? INFINITY : l->sched_due, isnan(l->bf_due) ? INFINITY : l->bf_due};
    event |= !changed && now < sooner_of(due[0], due[1]) - SECOND_ROUNDING_S;
    if (event || changed) {
        if (!isnan(l->bf_last) && l->bf_interval > 0 && waits) {
            double passes = ceil((now - l->bf_last) / backfill_interval(l) - SECOND_ROUNDING_S) - 1.0;
            if (passes > 0) l->bf_last += passes * backfill_interval(l);
        }
        due[0] = sooner_of(due[0], event ? next_main(l, now) : next_full(l, now - l->sched_loop_s));
        if (event || waits || l->sched_interval < 0) due[1] = sooner_of(due[1], next_backfill(l, now, l->bf_last));
    }
    int first = due[1] < due[0];
    for (int k = 0; k < 2; k++) {
        int backfills = k ? !first : first;
        double instant = due[backfills];
        if (instant > now + SECOND_ROUNDING_S) continue;
        due[backfills] = INFINITY;
        *(backfills ? &l->bf_last : &l->sched_last) = instant;
        int left = 0;
        int64_t started = pass(engine, backfills, instant, &left);
        if (started) due[1] = sooner_of(due[1], next_backfill(l, now, backfills ? instant : l->bf_last));
        if (left) due[backfills] = sooner_of(due[backfills], backfills ? next_backfill(l, now, instant) : next_full(l, instant));
    }
    l->sched_due = due[0];
    l->bf_due = due[1];
    return sooner_of(due[0], due[1]);
}
