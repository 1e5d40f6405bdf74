/* SD-Policy: waiting jobs start as guests on nodes of running jobs, the mates. As policies/sd.py. Part of engine.c. */

#define SLACK 1e-9  /* as in sd.py */
#define FOUND_LISTS 1024

struct host {                        /* least: its penalty if it shares for 0 s; the last three follow from the request */
    double wait, limit, left, least; int32_t job, nodes, cores, used, can_lose, given; double guest_rate, rate;
};
struct lender { double penalty; int32_t host; };
struct mate { double penalty, wait, limit, left, guest_rate, rate; int32_t job, nodes, cores, alike; };
struct found { double limit, duration; int32_t nodes, cores, ranks, head, next; int64_t first, count; };  /* 0: none */

struct trial {                       /* one call of the policy */
    double cut_off;
    int hosts_known;                 /* whether the hosts are up to date */
    struct host *hosts; int64_t host_count;
    int32_t rated_cores;             /* the cores of the request that the rates of the hosts are of, or -1 */
    struct lender *heap, *kept;      /* of the request, the largest penalty first; those that find_pairs keeps */
    int32_t *with_nodes;             /* nodes -> lenders with as many; 0 outside find_pairs */
    double *slowdowns;               /* of the running jobs, for their quantile */
    struct mate *mates; int64_t mate_count;               /* of the request, least penalty first */
    int32_t *alike_first;            /* nodes -> the first mate with as many, whose field `alike` is the next; or -1 */
    int32_t *chosen, *best; int64_t best_count; double best_total, best_duration;  /* of the search */
    struct found *found; int64_t found_count, found_room; int32_t found_list[FOUND_LISTS];  /* since a decision */
    struct lend *picked; int64_t picked_count, picked_room;
    double *mate_end;                /* expected ends of the mates before the share */
};

static int by_slowdown(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Return the mean predicted slowdown of the running jobs, or its quantile. */
static double cut_off(const struct engine *e) {
    double sum = 0.0, *slowdowns = e->trial->slowdowns;
    int64_t count = 0;
    RELEASES(e, r) {
        double limit = e->in.limit[r->job];
        if (!(limit > 0.0)) continue;
        slowdowns[count] = ((r->end > e->now ? r->end : e->now) - e->in.submit[r->job]) / limit;
        sum += slowdowns[count++];
    }
    if (!count) return INFINITY;
    if (e->in.slowdown_quantile == 0.0) return sum / (double)count;
    qsort(slowdowns, (size_t)count, sizeof *slowdowns, by_slowdown);
    return slowdowns[(int64_t)ceil(e->in.slowdown_quantile * (double)count) - 1];
}

/* Return the penalty of a mate that shares for `duration` seconds. */
static double penalty_for(double wait, double limit, double rate, double duration) {
    return (wait + duration * (1.0 - rate) + limit) / limit;
}

/* Return what counts of a penalty in a sum of penalties. */
static double weigh(const struct engine *e, const struct mate *mate, double penalty) {
    return penalty * (e->in.weighted ? (double)mate->nodes : 1.0);
}

static int is_below_cut_off(const struct engine *e, double penalty) {
    return penalty < e->trial->cut_off * (1.0 - SLACK);
}

/* Return whether a guest for `duration` seconds ends before a mate that has `left` seconds, and runs at `rate`. */
static int is_inside(const struct engine *e, double left, double rate, double duration) {
    return e->in.inside == OFF || left >= (e->in.inside == BEFORE ? duration : duration * rate);
}

/* Set the running jobs that can lend cores. */
static void find_hosts(struct engine *e) {
    struct trial *t = e->trial;
    if (t->hosts_known) return;
    t->hosts_known = 1;
    t->host_count = 0;
    t->rated_cores = -1;
    RELEASES(e, r) {
        const struct resident *resident = e->sharing->of[r->job];
        double limit = e->in.limit[r->job], start = e->start[r->job];
        if (!resident->can_host || !(limit > 0.0)) continue;
        int32_t cores = resident->can_host, used = at_most(e->in.job_cores[r->job], cores);
        int32_t socket = cores / resident->sockets, most = (int32_t)(used * e->in.sharing_factor + SLACK);
        most = at_most(most, used > e->in.ranks[r->job] ? used - e->in.ranks[r->job] : 0);
        if (most >= socket) most = most / socket * socket;
        double wait = start - e->in.submit[r->job] + (r->end - (start + limit)), least = (wait + limit) / limit;
        if (!is_below_cut_off(e, least)) continue;
        t->hosts[t->host_count++] = (struct host){
            wait, limit, r->end - e->now, least, r->job, e->in.requested[r->job], cores, used, most, 0, 0.0, 0.0,
        };
    }
}

static int is_worse(const struct engine *e, const struct lender *a, const struct lender *b) {
    if (a->penalty != b->penalty) return a->penalty > b->penalty;
    int32_t x = e->trial->hosts[a->host].job, y = e->trial->hosts[b->host].job;
    if (e->start[x] != e->start[y]) return e->start[x] > e->start[y];
    return x > y;
}

/* Move the lender at `at` of the heap downwards. */
static void sink_lender(const struct engine *e, int64_t count, int64_t at) {
    struct lender *heap = e->trial->heap, moved = heap[at];
    int64_t child;
    while ((child = 2 * at + 1) < count) {
        if (child + 1 < count && is_worse(e, &heap[child + 1], &heap[child])) child++;
        if (!is_worse(e, &heap[child], &moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Set what the hosts lend to a job of `cores` per node, and the rates of the guest and of the hosts. */
static void rate_hosts(struct trial *t, int32_t cores) {
    if (t->rated_cores == cores) return;
    t->rated_cores = cores;
    for (int64_t at = 0; at < t->host_count; at++) {
        struct host *host = &t->hosts[at];
        int32_t wanted = at_most(cores, host->cores), spare = host->cores - host->used;
        int32_t lost = at_most(wanted > spare ? wanted - spare : 0, host->can_lose);
        host->given = at_most(wanted, spare + lost);
        host->guest_rate = (double)host->given / (double)wanted;
        host->rate = (double)(host->used - lost) / (double)host->used;
    }
}

/* Set the lenders of a job, as a heap if there are `candidates`. Return their number. */
static int64_t find_lenders(struct engine *e, int32_t nodes, int32_t cores, int32_t ranks, double limit) {
    struct trial *t = e->trial;
    int64_t most = e->in.candidates ? e->in.candidates : t->host_count, count = 0;
    rate_hosts(t, cores);
    for (int32_t at = (int32_t)t->host_count - 1; at >= 0; at--) {  /* the last to end have the least penalties */
        const struct host *host = &t->hosts[at];
        if (host->nodes > nodes && !e->in.partial) continue;
        if (host->given < at_most(ranks, host->cores) || (count == most && host->least > t->heap[0].penalty)) continue;
        double duration = limit / host->guest_rate;
        struct lender lender = {penalty_for(host->wait, host->limit, host->rate, duration), at};
        if (!is_below_cut_off(e, lender.penalty) || !is_inside(e, host->left, host->rate, duration)) continue;
        if (count < most) {
            t->heap[count++] = lender;
            for (int64_t top = count / 2 - 1; count == most && top >= 0; top--) sink_lender(e, count, top);
        } else if (is_worse(e, &t->heap[0], &lender)) {
            t->heap[0] = lender;
            sink_lender(e, count, 0);
        }
    }
    return count;
}

/* Keep the lenders whose nodes can be all nodes of a job, alone or with one other lender. Return their number.
 * Only for jobs with at most two mates, all nodes of them, and no idle nodes. */
static int64_t find_pairs(struct engine *e, int64_t count, int32_t nodes) {
    struct trial *t = e->trial;
    int64_t kept = 0;
    for (int64_t at = 0; at < count; at++) t->with_nodes[t->hosts[t->heap[at].host].nodes]++;
    for (int64_t at = 0; at < count; at++) {
        int32_t has = t->hosts[t->heap[at].host].nodes, rest = nodes - has;
        if (!rest || (e->in.mates == 2 && t->with_nodes[rest] > (rest == has))) t->kept[kept++] = t->heap[at];
    }
    for (int64_t at = 0; at < count; at++) t->with_nodes[t->hosts[t->heap[at].host].nodes] = 0;
    struct lender *heap = t->heap;
    t->heap = t->kept;
    t->kept = heap;
    return kept;
}

/* Set the mates to the lenders, the least penalty first. */
static void sort_mates(struct engine *e, int64_t count) {
    struct trial *t = e->trial;
    t->mate_count = count;
    for (int64_t top = count / 2 - 1; top >= 0; top--) sink_lender(e, count, top);
    for (int64_t end = count - 1; end >= 0; end--) {
        const struct lender *worst = &t->heap[0];
        const struct host *host = &t->hosts[worst->host];
        t->mates[end] = (struct mate){
            worst->penalty, host->wait, host->limit, host->left, host->guest_rate, host->rate, host->job, host->nodes,
            host->given, -1,
        };
        t->heap[0] = t->heap[end];
        sink_lender(e, end, 0);
    }
}

struct search { double limit, shadow; int64_t extra, idle; };

/* Take the first `count` chosen mates and `idle` idle nodes, if they are better than the best so far. */
static void try_out(struct engine *e, const struct search *search, int64_t count, int64_t idle) {
    struct trial *t = e->trial;
    double slowest = INFINITY, total = 0.0;
    for (int64_t at = 0; at < count; at++)
        if (t->mates[t->chosen[at]].guest_rate < slowest) slowest = t->mates[t->chosen[at]].guest_rate;
    double duration = search->limit / slowest;
    if (idle && idle > search->extra && e->now + duration > search->shadow) return;
    for (int64_t at = 0; at < count; at++) {
        const struct mate *mate = &t->mates[t->chosen[at]];
        total += weigh(e, mate, penalty_for(mate->wait, mate->limit, mate->rate, duration));
    }
    if (!(total < t->best_total)) return;
    for (int64_t at = 0; at < count; at++) {
        const struct mate *mate = &t->mates[t->chosen[at]];
        if (!is_below_cut_off(e, penalty_for(mate->wait, mate->limit, mate->rate, duration))) return;
        if (!is_inside(e, mate->left, mate->rate, duration)) return;
    }
    t->best_total = total;
    t->best_duration = duration;
    t->best_count = count;
    memcpy(t->best, t->chosen, (size_t)count * 4);
}

/* Try all further mates from `first` on after the `count` chosen ones; `missing` nodes are missing. */
static void extend(
    struct engine *e, const struct search *search, int64_t count, int64_t first, int64_t missing, double impact
) {
    struct trial *t = e->trial;
    int last = count + 1 == e->in.mates, alike = last && !search->idle && !e->in.partial;
    int64_t at = first;
    if (alike) {
        at = missing <= e->in.nodes ? t->alike_first[missing] : -1;
        while (at >= 0 && at < first) at = t->mates[at].alike;
    }
    while (at >= 0 && at < t->mate_count) {
        const struct mate *mate = &t->mates[at];
        double sum = impact + weigh(e, mate, mate->penalty);
        int64_t rest = missing - mate->nodes, next = alike ? mate->alike : at + 1;
        if (sum < t->best_total) {
            t->chosen[count] = (int32_t)at;
            if (rest <= search->idle && (rest >= 0 || e->in.partial))
                try_out(e, search, count + 1, rest > 0 ? rest : 0);
            if (rest > 0 && !last) extend(e, search, count + 1, at + 1, rest, sum);
        } else if (!e->in.weighted) {
            return;  /* the later ones have larger penalties */
        }
        at = next;
    }
}

/* Return whether the nodes of the largest lenders and `idle` idle nodes are at least `wanted`. */
static int can_suffice(const struct engine *e, int64_t count, int64_t wanted, int64_t idle) {
    const struct trial *t = e->trial;
    int64_t largest = 0, sum = idle;
    for (int64_t at = 0; at < count; at++) {
        int32_t nodes = t->hosts[t->heap[at].host].nodes;
        if (nodes > largest) largest = nodes;
        sum += nodes;
    }
    /* More lenders than mates: an exact test would be no faster than the search. */
    return (count > e->in.mates ? largest * e->in.mates + idle : sum) >= wanted;
}

/* Return the mates of such a job with the least sum of penalties. */
static const struct found *pick(struct engine *e, int32_t job, double limit, int32_t head) {
    struct trial *t = e->trial;
    int32_t nodes = e->in.requested[job], cores = e->in.job_cores[job], ranks = e->in.ranks[job];
    int64_t list = ((int64_t)nodes * 31 + cores * 7 + (int64_t)fmod(limit, 1e6) * 13 + (head >= 0)) % FOUND_LISTS;
    for (int32_t at = t->found_list[list]; at >= 0; at = t->found[at].next) {
        const struct found *f = &t->found[at];
        if (f->nodes == nodes && f->cores == cores && f->ranks == ranks && f->limit == limit && f->head == head) return f;
    }
    if (!make_room(e, &t->found, t->found_count, &t->found_room, sizeof *t->found)) return NULL;
    struct search search = {limit, INFINITY, 0, e->in.include_free_nodes ? e->idle : 0};
    find_hosts(e);
    int64_t count = find_lenders(e, nodes, cores, ranks, limit);
    if (e->in.mates <= 2 && !e->in.partial && !search.idle) count = find_pairs(e, count, nodes);
    if (head >= 0) {
        reservation(e, e->in.requested[head]);
        search.shadow = e->shadow;
        search.extra = e->extra;
    }
    t->best_total = INFINITY;
    t->best_count = 0;
    if (can_suffice(e, count, nodes, search.idle)) {
        sort_mates(e, count);
        for (int64_t at = t->mate_count - 1; at >= 0; at--) {
            t->mates[at].alike = t->alike_first[t->mates[at].nodes];
            t->alike_first[t->mates[at].nodes] = (int32_t)at;
        }
        extend(e, &search, 0, 0, nodes, 0.0);
        for (int64_t at = 0; at < t->mate_count; at++) t->alike_first[t->mates[at].nodes] = -1;
    }
    while (t->picked_count + t->best_count > t->picked_room) {
        if (!grow(e, &t->picked, 2 * t->picked_room, sizeof *t->picked)) return NULL;
        t->picked_room *= 2;
    }
    struct found *f = &t->found[t->found_count];
    *f = (struct found){
        limit, t->best_duration, nodes, cores, ranks, head, t->found_list[list], t->picked_count, t->best_count,
    };
    t->found_list[list] = (int32_t)t->found_count++;
    for (int64_t at = 0; at < t->best_count; at++) {
        const struct mate *mate = &t->mates[t->best[at]];
        t->picked[t->picked_count++] = (struct lend){mate->job, mate->cores, 0, at_most(mate->nodes, nodes)};
        nodes -= at_most(mate->nodes, nodes);  /* fewer than all only of the last mate, if partial */
    }
    return f;
}

/* Forget what was found for the state before a decision. */
static void changed(struct engine *e) {
    struct trial *t = e->trial;
    for (int64_t list = 0; t->found_count && list < FOUND_LISTS; list++) t->found_list[list] = -1;
    t->found_count = t->picked_count = 0;
    t->hosts_known = 0;
}

/* Return what a job on `nodes` nodes takes of the plan: the nodes of the mate `at` while it is delayed; of the index
 * behind the mates, idle nodes. */
static struct planned taken(const struct engine *e, const struct found *f, int64_t at, int32_t nodes) {
    const struct lend *lend = &e->trial->picked[f->first];
    if (at == f->count) {
        for (int64_t mate = 0; mate < at; mate++) nodes -= lend[mate].count;
        return (struct planned){e->now, f->duration, nodes};
    }
    int32_t mate = lend[at].owner, cores = e->sharing->of[mate]->can_host;
    int32_t used = at_most(e->in.job_cores[mate], cores), lost = lend[at].cores - (cores - used);
    double rate = (double)(used - (lost > 0 ? lost : 0)) / (double)used, end = e->expected_end[mate];
    return (struct planned){end > e->now ? end : e->now, f->duration * (1.0 - rate), e->in.requested[mate]};
}

/* Return whether a job can take its nodes of the plan and no reservation lacks one. */
static int has_room(struct engine *e, const struct found *f, int32_t nodes) {
    int32_t least = 0;
    plan_update(e);
    for (int sign = 1; sign >= -1; sign--) {
        for (int64_t at = 0; at <= f->count && !e->failed; at++) {
            struct planned p = taken(e, f, at, nodes);
            if (!(p.duration > 0.0) || !p.nodes) continue;
            if (sign) { occupy(e, p.start, p.start + p.duration, sign * p.nodes); continue; }
            int64_t last = step_at(e, p.start + p.duration);
            for (int64_t step = step_at(e, p.start); step < last; step++) least = at_most(least, e->idle_then[step]);
        }
    }
    return least >= 0;
}

/* Start `job` as a guest if it then ends earlier. Return whether it started. */
static int share_with_mates(struct engine *e, int32_t job, int32_t head) {
    struct trial *t = e->trial;
    int32_t nodes = e->in.requested[job];
    double limit = e->in.limit[job];
    const struct found *f = pick(e, job, limit, head);
    if (!f || !f->count) return 0;
    double end = e->now + f->duration;
    int64_t idle = e->idle + e->returning, chunk = 0, mates = f->count, rest = nodes;
    int32_t row = 0;
    if (e->in.if_earlier && end >= room_for(e, nodes, &idle, &chunk, &row) + limit
        && end >= plan_start(e, nodes, planned_s(e, job)) + limit) return 0;
    if (e->in.keep_plan && !has_room(e, f, nodes)) return 0;
    plan_begin(e);
    e->sharing->lend_count = e->sharing->lent_count = 0;
    for (int64_t at = 0; at < mates; at++) {
        const struct lend *lend = &t->picked[f->first + at];
        t->mate_end[at] = e->expected_end[lend->owner];
        rest -= lend->count;
        plan_to_lend(e, lend->owner, e->sharing->of[lend->owner]->owned, lend->count, lend->cores);
    }
    if (e->failed) return 0;
    share(e, job, rest);
    changed(e);
    if (e->failed) return 0;
    if (rest) plan_add(e, e->now, e->expected_end[job] - e->now, (int32_t)rest);
    for (int64_t at = 0; at < mates; at++) {
        int32_t mate = e->sharing->lends[at].owner;
        double begin = t->mate_end[at] > e->now ? t->mate_end[at] : e->now;
        if (begin < e->expected_end[mate])
            plan_add(e, begin, e->expected_end[mate] - begin, e->in.requested[mate]);
    }
    return 1;
}

/* Return whether `job` can start on idle nodes without delaying `head`, or in Slurm's passes any earlier job. */
static int fits_idle(struct engine *e, int32_t job, int32_t head) {
    int32_t nodes = e->in.requested[job];
    if (nodes > e->idle) return 0;
    if (e->in.backfill_interval_s != 0.0) return plan_start(e, nodes, planned_s(e, job)) <= e->now;
    if (head < 0) return 1;
    reservation(e, e->in.requested[head]);
    return nodes <= e->extra || e->now + e->in.limit[job] <= e->shadow;
}

static void slowdown_driven(struct engine *e, int woken) {
    struct trial *t = e->trial;
    double interval = e->in.backfill_interval_s;
    if (interval != 0.0) {
        heads(e);
        if (!woken) {
            if (!e->waiting_count) return;
            double next = next_multiple(interval, e->now, 0.0, INT64_MIN);
            e->wake = next <= e->now ? e->now : due(e, next);
            e->decided = 1;
            return;
        }
    }
    int overdue = e->chunk_count && e->chunks[0]->row[0].end <= e->now;
    int32_t head = -1, last = -1, tried = 0;  /* jobs before `tried` were refused, and only time passed */
    if (e->settled && !overdue && !limits_plan(&e->in) && !e->in.keep_plan) tried = e->arrived >= 0 ? e->arrived : e->queue_end;
    int64_t looked = 0, more = 0;
    int begun = 0;
    plan_new_call(e);
    for (int32_t job = queue_first(e), end = e->queue_end; job >= 0 && job < end && !e->failed; job++) {
        if (!e->waiting[job] || is_beyond_limit_of_user(e, job)) continue;
        if (e->in.backfill_depth && looked++ == e->in.backfill_depth) { more = 1; break; }
        int32_t nodes = e->in.requested[job];
        last = job;
        if (job >= tried) {
            if (!begun) {
                t->cut_off = isnan(e->in.max_slowdown) ? cut_off(e) : e->in.max_slowdown;
                changed(e);
                begun = 1;
            }
            if (fits_idle(e, job, head)) {
                plan_begin(e);
                start(e, job, nodes);
                changed(e);
                plan_add(e, e->now, e->in.limit[job], nodes);
                continue;
            }
            if (e->in.mates && e->in.kind[job] >= MOLDABLE && share_with_mates(e, job, head)) continue;
        }
        if (head < 0) head = job;
        if (!plan_reserve(e, planned_s(e, job), nodes)) break;
    }
    if (!more || interval != 0.0 || e->failed) return;
    if (head < 0) head = last = heads(e);
    if (head >= 0) backfill_behind(e, head, last);
}

#define TRIAL(_) /* the arrays of `trial` */ \
    _(t, hosts, running) _(t, heap, running) _(t, kept, running) _(t, slowdowns, running) _(t, mates, running) _(t, chosen, running) \
    _(t, best, running) _(t, mate_end, running) _(t, with_nodes, nodes + 1) _(t, alike_first, nodes + 1) _(t, found, room) \
    _(t, picked, room)

static void trial_free(struct engine *e) {
    struct trial *t = e->trial;
    if (!t) return;
    TRIAL(FREED)
    free(t);
}

static void trial_new(struct engine *e) {
    int64_t nodes = e->in.nodes, running = 2 * nodes;
    struct trial *t = e->trial = make(e, 1, sizeof *t);
    if (!t) return;
    int64_t room = t->found_room = t->picked_room = 256;
    TRIAL(MADE)
    for (int64_t list = 0; list < FOUND_LISTS; list++) t->found_list[list] = -1;
    for (int64_t count = 0; t->alike_first && count <= nodes; count++) t->alike_first[count] = -1;
}
