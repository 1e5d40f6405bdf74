/* The rates of jobs, their overheads, and the multiples of a step. Part of engine.c. */

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

/* Return the rate on `nodes` nodes with a share of the requested cores; `r` is the rate with all, as `Jobs.rate`. */
static double rate_of_share(const struct engine *e, int32_t job, int32_t nodes, double r, double share) {
    if (share == 1.0) return r;
    double parallel = e->in.parallel[job] * e->in.requested[job] / nodes * r;
    return r * share / (share + parallel * (1.0 - share));
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
    return rate_of_share(e, job, nodes, r, share);
}

static double next_multiple(double step, double at, double origin, int64_t first) {
    if ((at - origin) / step >= 0x1p53) return at; /* as in scheduler.py */
    double k = ceil((at - origin) / step) - 1.0;
    if (k < (double)first) k = (double)first;
    while (origin + k * step < at) k += 1.0;
    return origin + k * step;
}

/* Return an overhead times its drawn factor, as in delays.py. */
static double delay(double constant, const double *drawn, int64_t at) {
    return drawn ? constant * drawn[at] : constant;
}

static double launch_delay(const struct setup *in, int32_t job, int32_t ranks) {
    double constant = in->launch_s;
    if (ranks != 1) constant = in->launch_s + (in->launch_join_s + in->launch_rank_s * (ranks - 2));
    return delay(constant, in->drawn_launch, job);
}

static double end_delay(const struct setup *in, int32_t job, int32_t ranks) {
    return delay(in->end_s + in->end_rank_s * (ranks - 1), in->drawn_end, job);
}

static double expand_delay(const struct setup *in, int64_t row, int32_t ranks) {
    if (ranks <= 0) return 0.0;
    return delay(in->expand_s + in->expand_rank_s * (ranks - 1), in->drawn_expand, row % in->drawn_rows);
}

/* Return the pause of `job` in a resize by `added` nodes; NaN: its application was not measured. */
static double own_pause(const struct setup *in, int32_t job, int32_t added) {
    if (!in->pause_fixed) return NAN;
    int64_t at = 2 * (int64_t)job + (added < 0);
    return in->pause_fixed[at] + in->pause_rank[at] * (abs(added) - 1);
}

static double reconfiguration_delay(const struct setup *in, int64_t row, int32_t job, int32_t added) {
    double own = own_pause(in, job, added);
    return delay(isnan(own) ? in->reconfiguration_s : own, in->drawn_reconfiguration, row % in->drawn_rows);
}

static double release_delay(const struct setup *in, int64_t row, int32_t job, int32_t added) {
    double own = in->pause_release ? own_pause(in, job, added) + in->pause_release[job] : NAN;
    return delay(isnan(own) ? in->release_s : own, in->drawn_release, row % in->drawn_rows);
}

static double planned_s(const struct engine *e, int32_t job) {
    return e->in.limit[job] > SHORTEST_S ? e->in.limit[job] : SHORTEST_S;
}
