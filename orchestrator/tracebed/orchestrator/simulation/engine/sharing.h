/* What follows from shared nodes: rates, expected ends and changes of cores. As scheduler.py, record.py, and the
 * simulator and the scheduler. Part of engine.c. */

/* -- rates and expected ends --------------------------------------------------------------------------------------- */

/* Return the cores of `node` that `job` holds, in the order of their numbers. */
static struct part part_of(const struct engine *e, int32_t job, int32_t node) {
    const struct loan *loan = &e->sharing->loans[node];
    int32_t cores = e->in.cores[node];
    if (loan->guest < 0) return (struct part){0, cores};
    if (loan->owner == job) return (struct part){0, cores - loan->cores};
    return (struct part){cores - loan->cores, loan->cores};
}

/* Return the rate that the scheduler expects. Cores lent to guests with the stamp `without` in `gone` count as
 * returned. */
static double expected_rate(const struct engine *e, int32_t job, int64_t without) {
    const struct sharing *s = e->sharing;
    const struct resident *r = s->of[job];
    double share = 1.0;
    for (int64_t at = 0; shares_nodes(r) && at < node_count(r); at++) {
        int32_t node = node_at(r, at);
        if (node < 0 || s->loans[node].guest < 0 || s->gone[s->loans[node].guest] == without) continue;
        double part = (double)part_of(e, job, node).count / (double)at_most(e->in.job_cores[job], e->in.cores[node]);
        if (part < share) share = part;
    }
    return rate_of_share(e, job, e->in.requested[job], 1.0, share);
}

/* Return the actual rate. */
static double rate_on_cores(const struct engine *e, int32_t job) {
    const struct resident *r = e->sharing->of[job];
    int64_t sum = 0, wanted = e->in.job_cores[job], poorest = wanted;
    if (!shares_nodes(r) && wanted <= e->sharing->least_cores) return 1.0;
    for (int64_t at = 0; at < node_count(r); at++) {
        int32_t node = node_at(r, at);
        if (node < 0) continue;
        int64_t cores = part_of(e, job, node).count;
        sum += cores < wanted ? cores : wanted;
        if (cores < poorest) poorest = cores;
    }
    int32_t nodes = e->in.requested[job];
    double share = e->in.runtime_model == IDEAL ? (double)sum / (double)(wanted * nodes) : (double)poorest / (double)wanted;
    return rate_of_share(e, job, nodes, 1.0, share);
}

/* Return when the limit of `job` ends if its guests end at their expected ends. */
static double end_beside_guests(struct engine *e, int32_t job) {
    struct sharing *s = e->sharing;
    const struct progress *p = &e->limits[job];
    double now = e->now, left = e->limit[job] - p->done - (e->now - p->since) * p->rate, r = p->rate;
    int32_t *guests = s->guests;
    int64_t count = guests_of(e, job, guests);
    for (int64_t at = 1; at < count; at++) {
        int32_t guest = guests[at];
        int64_t to = at;
        for (; to > 0 && e->expected_end[guests[to - 1]] > e->expected_end[guest]; to--) guests[to] = guests[to - 1];
        guests[to] = guest;
    }
    int64_t gone = ++s->stamp;
    for (int64_t at = 0; at < count; at++) {
        double end = e->expected_end[guests[at]], there = end - now > 0.0 ? (end - now) * r : 0.0;
        if (left <= there) break;
        left -= there;
        if (end > now) now = end;
        s->gone[guests[at]] = gone;
        r = expected_rate(e, job, gone);
    }
    return now + left / r;
}

/* Return the number of nodes released at the expected end of `job`: the later job releases a shared node. */
static int32_t frees(const struct engine *e, int32_t job) {
    const struct sharing *s = e->sharing;
    const struct resident *r = s->of[job];
    if (!shares_nodes(r)) return (int32_t)r->owned_count;
    int32_t count = 0;
    for (int64_t at = 0; at < node_count(r); at++) {
        int32_t node = node_at(r, at);
        if (node < 0) continue;
        const struct loan *loan = &s->loans[node];
        if (loan->guest < 0) count++;
        else if (loan->owner == job) count += e->expected_end[loan->guest] <= e->expected_end[job];
        else count += e->expected_end[loan->owner] < e->expected_end[job];
    }
    return count;
}

/* Note the expected end of `job`, unless it has been noted with the stamp `entered`. */
static void enter_once(struct engine *e, int64_t entered, int64_t *entries, int32_t job) {
    struct sharing *s = e->sharing;
    if (s->entered[job] != entered) {
        s->entry[*entries] = job;
        s->entry_end[(*entries)++] = e->expected_end[job];
    }
    s->entered[job] = entered;
}

/* Recompute the expected ends of `jobs` and of the jobs hosting them. */
static void expect_shared(struct engine *e, const int32_t *jobs, int64_t count) {
    struct sharing *s = e->sharing;
    int64_t entries = 0, entered = ++s->stamp, running = 2 * e->in.nodes;
    if (count > s->todo_room) {
        if (!grow(e, &s->todo, 2 * count, 4)) return;
        s->todo_room = 2 * count;
    }
    if (count) memcpy(s->todo, jobs, (size_t)count * 4);
    for (int64_t at = 0; at < count; at++) {  /* the list grows: a host may be a guest elsewhere */
        int32_t job = s->todo[at];
        enter_once(e, entered, &entries, job);
        e->expected_end[job] = end_beside_guests(e, job);
        if (count + running > s->todo_room) {
            if (!grow(e, &s->todo, 2 * (count + running), 4)) return;
            s->todo_room = 2 * (count + running);
        }
        count += hosts_of(e, job, s->todo + count);
    }
    for (int64_t at = 0, first = entries; at < first; at++) {
        int64_t guests = guests_of(e, s->entry[at], s->guests);
        for (int64_t g = 0; g < guests; g++) enter_once(e, entered, &entries, s->guests[g]);
    }
    for (int64_t at = 0; at < entries; at++) {
        releases_remove(e, s->entry[at], s->entry_end[at]);
        releases_add(e, s->entry[at], e->expected_end[s->entry[at]], frees(e, s->entry[at]));
    }
}

/* Expect every running job past its limit to run for another limit from now on. */
static void expect_shared_again(struct engine *e) {
    int32_t *passed = e->sharing->others;
    int64_t count = find_overdue(e, passed);
    int any = 0;
    for (int64_t at = 0; at < count; at++) {
        int32_t job = passed[at];
        if (e->expected_end[job] > e->now) continue;  /* the host of a guest whose expected end moved */
        const struct progress *p = &e->limits[job];
        e->limit[job] = p->done + (e->now - p->since) * p->rate + planned_s(e, job);
        expect_shared(e, &job, 1);
        any = 1;
    }
    if (any) came_free(e);
}

/* Note whether `job` can lend cores: it is malleable, its nodes are alike, and none is shared. */
static void note_host(struct engine *e, int32_t job) {
    struct resident *r = e->sharing->of[job];
    int can = e->in.kind[job] == MALLEABLE && !shares_nodes(r) && r->owned_count;
    for (int64_t at = 1; can && !e->sharing->even && at < r->owned_count; at++)
        can = e->in.cores[r->owned[at]] == e->in.cores[r->owned[0]]
              && e->in.sockets[r->owned[at]] == e->in.sockets[r->owned[0]];
    r->can_host = can ? e->in.cores[r->owned[0]] : 0;
    r->sockets = can ? e->in.sockets[r->owned[0]] : 1;
}

/* Update the progress of `job` and continue at the rate of its current cores. */
static void adapt(struct engine *e, int32_t job) {
    struct progress *p = &e->limits[job];
    note_host(e, job);
    double done = p->done + (e->now - p->since) * p->rate;
    *p = (struct progress){done, e->now, expected_rate(e, job, -1)};
}

/* -- what the simulator does --------------------------------------------------------------------------------------- */

/* Start `job` on its nodes. */
static void launch_shared(struct engine *e, int32_t job) {
    struct sharing *s = e->sharing;
    const struct resident *r = s->of[job];
    double begin = e->now + launch_delay(&e->in, job, e->in.requested[job]), speed = rate_on_cores(e, job);
    e->start[job] = e->now;
    for (int64_t at = 0; at < r->visit_count; at++) {
        struct part part = part_of(e, job, r->visits[at]);
        s->noted_guest[r->visits[at]] = (struct part){part.first, at_most(part.count, e->in.job_cores[job])};
    }
    e->launched[job] = begin;
    e->progress[job] = (struct progress){0.0, begin, speed};
    end_at(e, job, begin + e->in.work[job] / speed + end_delay(&e->in, job, e->in.requested[job]));
}

/* Add a row for each node of `job` whose cores changed. */
static void note_changes(struct engine *e, int32_t job) {
    struct sharing *s = e->sharing;
    const struct resident *r = s->of[job];
    int32_t wanted = e->in.job_cores[job];
    for (int64_t at = 0; at < node_count(r); at++) {
        int32_t node = node_at(r, at);
        if (node < 0) continue;
        struct part *noted = &(at < r->owned_count ? s->noted_owner : s->noted_guest)[node];
        struct part part = part_of(e, job, node);
        part.count = at_most(part.count, wanted);
        if (noted->count < 0) *noted = (struct part){0, at_most(e->in.cores[node], wanted)};
        if (noted->first == part.first && noted->count == part.count) continue;
        if (s->core_count == s->core_room) {
            int64_t room = s->core_room * 2;
            if (!(1 CORE_CHANGES(GROWN))) return;
            s->core_room = room;
        }
        int64_t row = s->core_count++;
        s->core_job[row] = job;
        s->core_node[row] = node;
        s->core_from[row] = noted->count;
        s->core_to[row] = part.count;
        s->core_cause[row] = part.count < noted->count ? LEND : noted->first ? INHERIT : RETURN;
        s->core_asked[row] = e->now;
        *noted = part;
    }
}

/* Continue `job` with its new cores. */
static void change_cores(struct engine *e, int32_t job) {
    note_changes(e, job);
    go_on(e, job, 0.0, rate_on_cores(e, job), e->in.requested[job]);
}

/* -- what the scheduler does --------------------------------------------------------------------------------------- */

/* Start `job` on idle nodes. */
static void start_alone(struct engine *e, int32_t job, int32_t nodes) {
    struct resident *r = settle_in(e, job);
    if (!r) return;
    e->size[job] = nodes;
    e->limits[job] = (struct progress){0.0, e->now, 1.0};
    occupy_idle(e, r, nodes);
    if (e->failed) return;
    note_host(e, job);
    launch_shared(e, job);
}

/* Start `job` on `idle` idle nodes and as a guest on the nodes of `lends`. */
static void share(struct engine *e, int32_t job, int64_t idle) {
    struct sharing *s = e->sharing;
    queue_remove(e, job);
    e->decided = 1;
    struct resident *r = settle_in(e, job);
    if (!r || !grow(e, &r->visits, s->lent_count, 4)) return;
    e->size[job] = e->in.requested[job];
    occupy_idle(e, r, idle);
    if (e->failed) return;
    for (int64_t at = 0; at < s->lend_count; at++)
        for (int64_t n = 0; n < s->lends[at].count; n++)
            lend_node(e, s->lends[at].owner, job, s->lent[s->lends[at].first + n], s->lends[at].cores);
    CHECK(r->owned_count + r->visit_count == e->in.requested[job]);
    e->limits[job] = (struct progress){0.0, e->now, expected_rate(e, job, -1)};
    e->expected_end[job] = e->now;
    note_host(e, job);
    releases_add(e, job, e->now, 0);
    for (int64_t at = 0; at < s->lend_count; at++) adapt(e, s->lends[at].owner);
    expect_shared(e, &job, 1);
    set_aside(e);
    launch_shared(e, job);
    int64_t hosts = hosts_of(e, job, s->others);
    for (int64_t at = 0; at < hosts && !e->failed; at++) change_cores(e, s->others[at]);
}

/* Add to the next share `count` nodes of `owner`, with `cores` cores each. */
static void plan_to_lend(struct engine *e, int32_t owner, const int32_t *nodes, int64_t count, int32_t cores) {
    struct sharing *s = e->sharing;
    if (!make_room(e, &s->lends, s->lend_count, &s->lend_room, sizeof *s->lends)) return;
    if (s->lent_count + count > s->lent_room) {
        if (!grow(e, &s->lent, 2 * (s->lent_count + count), 4)) return;
        s->lent_room = 2 * (s->lent_count + count);
    }
    struct lend *last = s->lend_count ? &s->lends[s->lend_count - 1] : NULL;
    if (last && last->owner == owner && last->cores == cores) last->count += count;
    else s->lends[s->lend_count++] = (struct lend){owner, cores, s->lent_count, count};
    memcpy(s->lent + s->lent_count, nodes, (size_t)count * 4);
    s->lent_count += count;
}

/* Release the nodes of the ended `job`. Jobs that gain cores continue with them, except moldable ones. */
static void end_shared(struct engine *e, int32_t job) {
    struct sharing *s = e->sharing;
    int64_t gaining = release_all(e, job), adapting = 0;
    releases_remove(e, job, e->expected_end[job]);
    e->size[job] = 0;
    move_out(e, job);
    for (int64_t at = 0; at < gaining; at++)
        if (e->in.kind[s->gains[at]] == MALLEABLE) s->others[adapting++] = s->gains[at];
    for (int64_t at = 0; at < adapting; at++) adapt(e, s->others[at]);
    expect_shared(e, s->gains, gaining);
    for (int64_t at = 0; at < adapting && !e->failed; at++) change_cores(e, s->others[at]);
    came_free(e);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static void sharing_free(struct engine *e) {
    struct sharing *s = e->sharing;
    if (!s) return;
    for (int32_t job = s->of ? s->first_running : -1; job >= 0;) {
        int32_t next = s->of[job]->next;
        move_out(e, job);
        job = next;
    }
    SHARING(FREED)
    free(s);
}

static void sharing_new(struct engine *e) {
    int64_t jobs = e->in.jobs, nodes = e->in.nodes, running = 2 * nodes;  /* at most two jobs run on a node */
    struct sharing *s = e->sharing = make(e, 1, sizeof *s);
    if (!s) return;
    s->first_running = s->last_running = -1;
    s->stamp = 1;
    int64_t room = s->todo_room = s->lend_room = s->lent_room = s->core_room = 256;
    SHARING(MADE)
    e->held_part = make(e, e->held_room, 4);
    if (e->failed) return;
    s->even = 1;
    s->least_cores = INT32_MAX;
    for (int64_t node = 0; node < nodes; node++) {
        s->loans[node].guest = s->noted_owner[node].count = -1;
        s->even &= e->in.cores[node] == e->in.cores[0] && e->in.sockets[node] == e->in.sockets[0];
        if (e->in.cores[node] < s->least_cores) s->least_cores = e->in.cores[node];
    }
}
