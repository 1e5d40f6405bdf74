/* Node sharing without waiting. As policies/drom.py. Part of engine.c. */

/* Return the cores of `node` that `owner` lends to `job`. */
static int32_t lent_cores(const struct engine *e, int32_t job, int32_t owner, int32_t node) {
    int32_t cores = e->in.cores[node], most = cores - 1;
    if (!e->in.as_asked) {
        int32_t half = cores / 2, socket = cores / e->in.sockets[node], spare = cores - e->in.job_cores[owner];
        most = half >= socket ? half / socket * socket : half;
        if (spare > most) most = spare;
    }
    return at_most(e->in.job_cores[job], most);
}

/* Start `job` on all idle nodes and on nodes of running jobs in order of start. Return whether there were enough. */
static int share_at_once(struct engine *e, int32_t job) {
    struct sharing *s = e->sharing;
    int64_t missing = e->in.requested[job] - e->idle;
    if (e->in.kind[job] < MOLDABLE) return 0;
    s->lend_count = s->lent_count = 0;
    for (int32_t owner = s->first_running; owner >= 0; owner = s->of[owner]->next) {
        if (e->in.kind[owner] != MALLEABLE) continue;
        const struct resident *r = s->of[owner];
        for (int64_t at = 0; at < r->owned_count && s->lent_count < missing; at++) {
            int32_t node = r->owned[at], cores = s->loans[node].guest < 0 ? lent_cores(e, job, owner, node) : 0;
            if (!cores) continue;
            plan_to_lend(e, owner, &node, 1, cores);
            if (e->failed) return 0;
        }
        if (s->lent_count == missing) {
            share(e, job, e->idle);
            return !e->failed;
        }
    }
    return 0;
}

static void share_without_waiting(struct engine *e) {
    int32_t head;
    while ((head = heads(e)) >= 0 && !e->in.serial && share_at_once(e, head)) continue;
}
