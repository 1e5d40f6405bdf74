/* The instants of Slurm's passes, as in scheduling/policies/slurm.py. Part of slurm.c and of engine.c. */

static const double SECOND_ROUNDING_S = 1e-6, WHOLE_STEPS = 9007199254740992.0, PING_S = 100.0;
enum { FEW = 4, CHANGED = 1, COMPUTED = 2 }; /* see scheduling/policies/slurm.py */
enum { LEFT = 1, QUIET = 2 }; /* of a pass: work is left; Slurm sees no change until an event or a ping */

struct loops {
    int64_t sched_interval, batch_sched_delay, bf_interval;
    double epoch_s, sched_loop_s, sched_phase_s, bf_loop_s, bf_phase_s;
    double sched_last, full_last, bf_last, sched_due, bf_due; /* NaN: never */
    int quiet; /* whether the last backfill pass was */
};

/* The loops of the parameters in a `struct setup`. */
#define LOOPS_OF(s) \
    (struct loops){(s)->sched_interval, (s)->batch_sched_delay, (s)->bf_interval, (s)->epoch_s, (s)->sched_loop_s, \
                   (s)->sched_phase_s, (s)->bf_loop_s, (s)->bf_phase_s, NAN, NAN, NAN, NAN, NAN, 0}

/* A pass at `instant`; return the number of jobs started, and in `left` the bits LEFT and QUIET. */
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

static double next_ping(const struct loops *l, double after) {
    return multiple_after(PING_S, after, l->sched_phase_s, 0);
}

static double full_from(const struct loops *l, double now) { return next_full(l, now - l->sched_loop_s); }

/* Set the last backfill pass before `now` to that which was not made. `sleeps`: none is made without a ping. */
static void catch_up(struct loops *l, double now, int sleeps) {
    double interval = backfill_interval(l), last = l->bf_last;
    if (isnan(last) || l->bf_interval <= 0) return;
    if (sleeps) {
        if (last < now - 2.0 * (interval + PING_S)) last = now - 2.0 * (interval + PING_S);
        for (double after; (after = next_backfill(l, next_ping(l, last), last)) < now;) last = after;
        l->bf_last = last;
    } else {
        double passes = ceil((now - last) / interval - SECOND_ROUNDING_S) - 1.0;
        if (passes > 0) l->bf_last += passes * interval;
    }
}

static double sooner_of(double a, double b) { return b < a ? b : a; }

/* Make the passes that are due. `event`: whether a job has been submitted or has ended since the last call; `changed`:
 * CHANGED or COMPUTED, if jobs may start without an event; `waits`: whether a job has waited since then; `held`: until when no pass
 * is made. Return the instant of the next call. */
static double loops_decide(struct loops *l, double now, int event, int changed, int waits, double held, pass_of *pass, void *engine) {
    double due[2] = {isnan(l->sched_due) ? INFINITY : l->sched_due, isnan(l->bf_due) ? INFINITY : l->bf_due};
    event |= !changed && now < sooner_of(due[0], due[1]) - SECOND_ROUNDING_S;
    if (event || changed) {
        int sleeps = !waits || l->quiet;
        catch_up(l, now, sleeps);
        due[0] = sooner_of(due[0], event ? next_main(l, now) : full_from(l, now));
        double waking = event || changed == COMPUTED || !sleeps ? now : next_ping(l, isnan(l->bf_last) ? now : l->bf_last);
        due[1] = sooner_of(due[1], next_backfill(l, waking, l->bf_last));
    }
    int first = due[1] < due[0];
    for (int k = 0; k < 2; k++) {
        int backfills = k ? !first : first;
        double instant = due[backfills];
        if (instant > now + SECOND_ROUNDING_S) continue;
        if (held > now) { /* the backfill thread looks again in each of its periods, and the main loop does not */
            due[backfills] = backfills ? multiple_after(l->bf_loop_s, held, instant, 0) : full_from(l, held);
            continue;
        }
        due[backfills] = INFINITY;
        *(backfills ? &l->bf_last : &l->sched_last) = instant;
        int left = 0;
        int64_t started = pass(engine, backfills, instant, &left);
        if (backfills) l->quiet = (left & QUIET) && !started;
        if (started) due[1] = sooner_of(due[1], next_backfill(l, now, backfills ? instant : l->bf_last));
        if (left & LEFT)
            due[backfills] = sooner_of(due[backfills], backfills ? next_backfill(l, now, instant) : next_full(l, instant));
    }
    l->sched_due = due[0];
    l->bf_due = due[1];
    return sooner_of(due[0], due[1]);
}
