/* The map of reservations of a call of `sd`, with the limits of the plan of Slurm's backfill. As policies/sd.py.
 * Part of engine.c. */

struct planned { double start, duration; int32_t nodes; };  /* start NaN: the earliest possible */
struct tried { double duration, start; int64_t call; };     /* the last job planned, and the call of the policy */

struct plan {
    int64_t call;                    /* number of the call of the policy */
    int begun;                       /* whether the profile is that of this call */
    double last;                     /* end of the window */
    struct planned *to_come; int64_t count, room;         /* what the profile does not have yet */
    struct tried *tried;             /* of each number of nodes */
    struct planned *in_vain; int64_t vain_count, vain_room;  /* jobs that do not start within the window */
    double *bounds; int64_t bound_count, bound_room;      /* instants at which a reservation begins or ends */
    struct { int64_t call; int32_t jobs; } *users;        /* jobs of each user in this pass */
};

static int limits_plan(const struct setup *in) {
    return in->window_s != 0.0 || in->resolution_s != 0.0 || in->slots || in->most_of_user;
}

static void plan_new_call(struct engine *e) {
    struct plan *plan = e->plan;
    plan->call++;
    plan->begun = 0;
    plan->count = plan->vain_count = plan->bound_count = 0;
    plan->last = e->in.window_s != 0.0 ? e->now + e->in.window_s : INFINITY;
}

static void plan_add(struct engine *e, double start, double duration, int32_t nodes) {
    struct plan *plan = e->plan;
    if (!make_room(e, &plan->to_come, plan->count, &plan->room, sizeof *plan->to_come)) return;
    plan->to_come[plan->count++] = (struct planned){start, duration, nodes};
}

/* Make the profile of the running jobs. To be called before the first decision of the call. */
static void plan_begin(struct engine *e) {
    if (!e->plan->begun) profile_of_running(e);
    e->plan->begun = 1;
}

/* Return the earliest instant from which `nodes` nodes are idle for `duration` seconds; INFINITY: beyond the window. */
static double plan_earliest(struct engine *e, int32_t nodes, double duration) {
    struct plan *plan = e->plan;
    for (int64_t at = 0; at < plan->vain_count; at++)
        if (nodes >= plan->in_vain[at].nodes && duration >= plan->in_vain[at].duration) return INFINITY;
    struct tried *tried = &plan->tried[nodes];
    int64_t from = e->step;
    if (tried->call == plan->call && duration >= tried->duration) from = step_from(e, tried->start);
    double start = earliest_from(e, from, nodes, duration, INFINITY, INFINITY);
    *tried = (struct tried){duration, start, plan->call};
    if (start <= plan->last) return start;
    int64_t kept = 0;
    for (int64_t at = 0; at < plan->vain_count; at++)
        if (plan->in_vain[at].nodes < nodes || plan->in_vain[at].duration < duration)
            plan->in_vain[kept++] = plan->in_vain[at];
    plan->vain_count = kept;
    if (!make_room(e, &plan->in_vain, kept, &plan->vain_room, sizeof *plan->in_vain)) return INFINITY;
    plan->in_vain[plan->vain_count++] = (struct planned){NAN, duration, nodes};
    return INFINITY;
}

/* Return the multiple of the resolution at or before `at`, but not before now. The quotient is that of Python. */
static double plan_rounded(const struct engine *e, double at) {
    double unit = e->in.resolution_s, rest = fmod(at, unit), quotient = (at - rest) / unit;
    if (rest < 0.0) quotient -= 1.0;
    double whole = floor(quotient);
    if (quotient - whole > 0.5) whole += 1.0;
    return whole * unit > e->now ? whole * unit : e->now;
}

static void plan_bound(struct engine *e, double at) {
    struct plan *plan = e->plan;
    if (!(e->now < at && at < plan->last)) return;
    for (int64_t n = 0; n < plan->bound_count; n++)
        if (plan->bounds[n] == at) return;
    if (!make_room(e, &plan->bounds, plan->bound_count, &plan->bound_room, 8)) return;
    plan->bounds[plan->bound_count++] = at;
}

/* Reserve the nodes from the earliest time, if within the window. Return 0 if the plan has no slot left. */
static int plan_place(struct engine *e, double duration, int32_t nodes) {
    double start = plan_earliest(e, nodes, duration), end = start + duration;
    if (start == INFINITY) return 1;
    if (e->in.slots && e->plan->bound_count + 1 >= e->in.slots) return 0;
    if (e->in.resolution_s != 0.0) {
        start = plan_rounded(e, start);
        end = plan_rounded(e, end);
    }
    occupy(e, start, start + (end - start), nodes);
    if (e->in.slots) {
        plan_bound(e, start);
        plan_bound(e, end);
    }
    return 1;
}

/* Bring the profile up to date. */
static void plan_update(struct engine *e) {
    struct plan *plan = e->plan;
    plan_begin(e);
    for (int64_t at = 0; at < plan->count; at++) {
        const struct planned *p = &plan->to_come[at];
        if (isnan(p->start)) plan_place(e, p->duration, p->nodes);
        else occupy(e, p->start, p->start + p->duration, p->nodes);
    }
    plan->count = 0;
}

/* Reserve the nodes from the earliest time. Return 0 if the plan has no slot left. */
static int plan_reserve(struct engine *e, double duration, int32_t nodes) {
    if (!e->in.slots) {
        plan_add(e, NAN, duration, nodes);
        return 1;
    }
    plan_update(e);
    return plan_place(e, duration, nodes);
}

/* Return the earliest instant from which `nodes` nodes are idle for `duration` seconds; INFINITY: beyond the window. */
static double plan_start(struct engine *e, int32_t nodes, double duration) {
    plan_update(e);
    return plan_earliest(e, nodes, duration);
}

/* Return whether the pass has enough jobs of the user of the waiting `job`. */
static int is_beyond_limit_of_user(struct engine *e, int32_t job) {
    struct plan *plan = e->plan;
    if (!e->in.most_of_user) return 0;
    int32_t user = e->in.user[job];
    if (plan->users[user].call != plan->call) plan->users[user].jobs = 0;
    plan->users[user].call = plan->call;
    return plan->users[user].jobs++ >= e->in.most_of_user;
}

#define PLAN(_) /* the arrays of `plan`; at most as many users as jobs */ \
    _(plan, to_come, room) _(plan, in_vain, room) _(plan, bounds, room) _(plan, tried, e->in.nodes + 1) \
    _(plan, users, e->in.most_of_user ? e->in.jobs : 0)

static void plan_free(struct engine *e) {
    struct plan *plan = e->plan;
    if (!plan) return;
    PLAN(FREED)
    free(plan);
}

static void plan_new(struct engine *e) {
    struct plan *plan = e->plan = make(e, 1, sizeof *plan);
    if (!plan) return;
    int64_t room = plan->room = plan->vain_room = plan->bound_room = 64;
    PLAN(MADE)
}
