/* The layer that resizes running jobs beside Slurm's loops, as in tests/oracles/slurm_simulation/layer.py; its decisions
 * are those of resize_layer.py. Part of slurm.c. */

enum { DMR, PREF, MIN, AVG, KEEP_PREF }; /* the order of RESIZE_POLICIES */
static const double EXPANDER_S = 600.0;

static int has_layer(const struct engine *e) { return e->s->resize_policy >= 0; }
static int is_expander(const struct engine *e, int32_t job) { return has_layer(e) && e->layer.owner[job] >= 0; }

static int open_layer(struct engine *e) {
    struct layer *l = &e->layer;
    size_t jobs = (size_t)e->s->jobs, words = (size_t)e->words;
    *l = (struct layer){
        .asking = malloc(jobs * sizeof(int32_t)), .owner = malloc(jobs * sizeof(int32_t)), .wanted = calloc(jobs, sizeof(int32_t)),
        .largest = calloc(jobs, sizeof(int32_t)), .size = calloc(jobs, sizeof(int32_t)), .asked = malloc(jobs * sizeof(double)),
        .shrink_at = malloc(jobs * sizeof(double)), .done = calloc(jobs, sizeof(double)), .since = calloc(jobs, sizeof(double)),
        .leaving = calloc(jobs, sizeof(uint64_t *)), .jobs = malloc(jobs * sizeof *l->jobs), .growing = malloc(jobs * sizeof *l->jobs),
        .closed = malloc(words * sizeof(uint64_t)), .taken = malloc(words * sizeof(uint64_t)), .next = INFINITY,
    };
    if (!l->asking || !l->owner || !l->wanted || !l->largest || !l->size || !l->asked || !l->shrink_at || !l->done || !l->since ||
        !l->leaving || !l->jobs || !l->growing || !l->closed || !l->taken) return 0;
    for (size_t job = 0; job < jobs; job++) {
        l->owner[job] = -1;
        l->asked[job] = l->shrink_at[job] = NAN;
    }
    for (size_t job = 0; job < jobs; job++)
        if (e->s->expander[job] >= 0) l->owner[e->s->expander[job]] = (int32_t)job;
    return 1;
}

static void close_layer(struct engine *e) {
    struct layer *l = &e->layer;
    for (int64_t job = 0; l->leaving && job < e->s->jobs; job++) free(l->leaving[job]);
    free(l->asking), free(l->owner), free(l->wanted), free(l->largest), free(l->size), free(l->asked), free(l->shrink_at);
    free(l->done), free(l->since), free(l->leaving), free(l->jobs), free(l->growing), free(l->closed), free(l->taken);
    free(l->able), free(l->releases);
}

/* -- what the simulation tells -------------------------------------------------------------------------------------- */

static void layer_started(struct engine *e, int32_t job) {
    struct layer *l = &e->layer;
    if (!has_layer(e)) return;
    l->touched = 1;
    if (!e->s->least[job] || nodes_held(e, job) != e->s->wanted_cores[job] / e->s->per_node[job]) return; /* unlike nodes */
    l->running++;
    l->largest[job] = l->size[job] = (int32_t)nodes_held(e, job);
    l->done[job] = 0;
    l->since[job] = e->s->launched[job];
}

static void leave_expander(struct engine *e, int32_t entry, int merged) {
    const struct setup *s = e->s;
    vacate(e, entry);
    if (merged && s->merged_counted) count_kind(&e->limits, entry, JOBS, 1);
    count_job(&e->limits, entry, NULL, -1);
    s->range_size[entry] = 0;
    e->layer.asked[entry] = NAN;
}

/* Whether an expander waits. */
static int asks(const struct engine *e, int32_t entry) {
    for (int64_t k = 0; k < e->layer.asking_count; k++)
        if (e->layer.asking[k] == entry) return 1;
    return 0;
}

static void stop_asking(struct engine *e, int32_t entry) {
    struct layer *l = &e->layer;
    int64_t k = 0;
    while (l->asking[k] != entry) k++;
    memmove(l->asking + k, l->asking + k + 1, (size_t)(--l->asking_count - k) * sizeof *l->asking);
}

/* Remove an expander, whether it waits or runs. */
static void withdraw(struct engine *e, int32_t entry) {
    if (entry < 0 || isnan(e->layer.asked[entry])) return;
    if (asks(e, entry)) {
        stop_asking(e, entry);
        e->layer.asked[entry] = NAN;
        count_job(&e->limits, entry, NULL, -1);
    } else {
        leave_expander(e, entry, 0);
        e->freed = 1;
    }
}

/* A job has ended: its expander goes, and a shrink that is in progress has no effect. */
static void layer_ended(struct engine *e, int32_t job) {
    struct layer *l = &e->layer;
    if (!has_layer(e) || !l->largest[job]) return;
    l->running--;
    l->largest[job] = 0;
    l->shrink_at[job] = NAN;
    withdraw(e, e->s->expander[job]);
}

/* Note the next pass, after the events of an instant. */
static void plan_layer(struct engine *e) {
    struct layer *l = &e->layer;
    if (!has_layer(e) || !l->running) return;
    double later = nextafter(e->now, INFINITY), step = e->s->resize_interval_s, phase = e->s->resize_phase_s;
    double instant = l->touched ? multiple_after(step, later, phase, 0) : INFINITY;
    for (int64_t k = 0; k < l->asking_count; k++) {
        double since = l->asked[l->asking[k]] + EXPANDER_S;
        instant = sooner_of(instant, multiple_after(step, since > later ? since : later, phase, 0));
    }
    if (instant < l->next) {
        l->next = instant;
        at(e, instant, LAYER, 0);
    }
}

/* -- the resized job ------------------------------------------------------------------------------------------------ */

static double rate_of(const struct engine *e, int32_t job, int32_t size) {
    return e->s->rates[e->s->rate_first[job] + size - e->s->least[job]];
}

/* The time limit of a job after a resize to `size`. */
static int64_t limit_after(const struct engine *e, int32_t job, int32_t size) {
    int64_t second = whole_second(e, e->now);
    double ratio = rate_of(e, job, e->layer.size[job]) / rate_of(e, job, size);
    double rest = (double)(e->due[job] - second) * ratio + e->s->pause_s;
    double minutes = ceil(((double)(second - whole_second(e, e->s->start[job])) + rest) / MINUTE_S - 1e-6);
    return (int64_t)(minutes < 1.0 ? 1.0 : minutes) * MINUTE_S;
}

static void work_with(struct engine *e, int32_t job, int32_t size) {
    struct layer *l = &e->layer;
    double done = e->now - l->since[job];
    if (done > 0) {
        l->done[job] += done * rate_of(e, job, l->size[job]);
        l->since[job] = e->now;
    }
    l->since[job] += e->s->pause_s;
    l->size[job] = size;
    double left = e->s->run_time[job] - l->done[job], end = l->since[job] + (left > 0 ? left : 0.0) / rate_of(e, job, size);
    ends(e, job, end, end - e->s->launched[job], e->limit[job]);
}

/* Let a running job hold the nodes `e->picked`, with the cores `e->share`, from now on. */
static void reshape(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    if (s->active[job] < e->now) stint(e, job, e->now);
    s->active[job] = e->now;
    vacate(e, job);
    note_nodes(e, job);
    if (e->out_of_memory) return;
    e->due[job] = whole_second(e, s->start[job]) + e->limit[job];
    occupy(e, job);
}

/* Pick the nodes that a job holds, besides those `without` (null: all). */
static void pick_held(struct engine *e, int32_t job, const uint64_t *without) {
    const struct range *ranges = e->ranges + e->s->range_first[job];
    for (int32_t r = 0; r < e->s->range_size[job]; r++)
        for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--) {
            if (without && has(without, node)) continue;
            e->picked[node >> 6] |= 1ull << (node & 63);
            e->share[node] = ranges[r].cores;
        }
}

static void note_resize(struct engine *e, int32_t job, double asked, double decided, double ended, int64_t before, int64_t after) {
    struct layer *l = &e->layer;
    if (!grow((void **)&l->resizes, &l->resize_room, l->resize_count + 1, sizeof *l->resizes)) { e->out_of_memory = 1; return; }
    double applied = decided + e->s->pause_s;
    l->resizes[l->resize_count++] = (struct resized){asked, decided, applied, isnan(ended) ? applied : ended, job, (int32_t)before, (int32_t)after};
}

/* -- shrinks -------------------------------------------------------------------------------------------------------- */

static void shrink(struct engine *e, int32_t job) { /* by the nodes `e->layer.leaving[job]` */
    struct layer *l = &e->layer;
    withdraw(e, e->s->expander[job]);
    l->shrink_at[job] = e->now;
    int32_t size = (int32_t)(nodes_held(e, job) - nodes_in(e->words, l->leaving[job]));
    e->limit[job] = limit_after(e, job, size);
    work_with(e, job, size);
    at(e, e->now + e->s->release_s, SHRUNK, job);
}

static int release_nodes(struct engine *e, int32_t job) {
    struct layer *l = &e->layer;
    double asked = l->shrink_at[job];
    if (isnan(asked) || asked + e->s->release_s != e->now) return 0;
    if (e->s->fate[job] == PREEMPTED || e->s->fate[job] == LOST || e->s->end[job] <= e->now) return 0;
    int64_t before = nodes_held(e, job);
    l->shrink_at[job] = NAN;
    e->alike = 0;
    memset(e->picked, 0, (size_t)e->words * sizeof *e->picked);
    pick_held(e, job, l->leaving[job]);
    reshape(e, job);
    note_resize(e, job, asked, asked, e->now, before, nodes_held(e, job));
    e->freed = 1;
    return 1;
}

/* Release in `e->expected` (1) what a job has on a node, or take it again (-1). */
static void give_back(struct engine *e, struct release own, int sign) {
    const struct setup *s = e->s;
    struct free_resources *free = &e->expected;
    free->cores[own.node] += sign * own.cores;
    free->memory[own.node] += sign * memory_of(s, own.job, own.node, own.cores);
    for (int64_t k = own.node * s->kinds, g = own.job * s->kinds; k < (own.node + 1) * s->kinds; k++, g++)
        if (!s->kept || !s->kept[k]) free->gres[k] += sign * s->wanted_gres[g];
}

/* Prepare `suffices_after` for a job: what is free after the shrinks in progress, and what it can use of each usable node. */
static void prepare_head(struct engine *e, int32_t job, const uint64_t *usable) {
    const struct setup *s = e->s;
    struct layer *l = &e->layer;
    copy_free(e);
    for (int64_t k = 0; k < e->running_count; k++) {
        int32_t other = e->running[k].job;
        if (isnan(l->shrink_at[other]) || l->shrink_at[other] == e->now) continue;
        const struct range *ranges = e->ranges + s->range_first[other];
        for (int32_t r = 0; r < s->range_size[other]; r++)
            for (int32_t n = 0; n < ranges[r].count; n++)
                if (has(l->leaving[other], ranges[r].first + n))
                    give_back(e, (struct release){other, ranges[r].first + n, ranges[r].cores}, 1);
    }
    l->head_cores = l->head_nodes = 0;
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = usable[w]; left; left &= left - 1) {
            int32_t node = (int32_t)(64 * w + __builtin_ctzll(left)), own = capacity(s, &e->expected, job, node);
            e->room[node] = own;
            l->head_cores += own;
            l->head_nodes += own > 0;
        }
}

/* Whether the resources suffice for the job of `prepare_head` after the first `count` releases. */
static int suffices_after(struct engine *e, int32_t job, int64_t count) {
    const struct setup *s = e->s;
    struct layer *l = &e->layer;
    int64_t cores = l->head_cores, nodes = l->head_nodes;
    memset(l->taken, 0, (size_t)e->words * sizeof *l->taken);
    for (int64_t k = 0; k < count; k++) give_back(e, l->releases[k], 1);
    for (int64_t k = 0; k < count; k++) {
        int32_t node = l->releases[k].node;
        if (has(l->taken, node)) continue;
        l->taken[node >> 6] |= 1ull << (node & 63);
        int32_t own = capacity(s, &e->expected, job, node);
        cores += own - e->room[node];
        nodes += (own > 0) - (e->room[node] > 0);
    }
    for (int64_t k = 0; k < count; k++) give_back(e, l->releases[k], -1);
    return cores >= s->wanted_cores[job] && nodes >= s->fewest[job];
}

/* Add the releases by which a job shrinks to `floor` nodes, the last node first. */
static void add_releases(struct engine *e, const struct resizable *own, int32_t floor, const uint64_t *usable) {
    struct layer *l = &e->layer;
    const struct range *ranges = e->ranges + e->s->range_first[own->job];
    int32_t left = own->size - floor;
    if (!grow((void **)&l->releases, &l->release_room, l->release_count + own->size, sizeof *l->releases)) { e->out_of_memory = 1; return; }
    for (int32_t r = e->s->range_size[own->job] - 1; r >= 0; r--)
        for (int32_t n = ranges[r].count - 1; n >= 0 && left > 0; n--) {
            int32_t node = ranges[r].first + n;
            if ((!r && !n) || !has(usable, node)) continue;
            l->releases[l->release_count++] = (struct release){own->job, node, ranges[r].cores};
            left--;
        }
}

static double relative(const struct resizable *own, int32_t size) {
    return own->most > own->least ? (double)(size - own->least) / (double)(own->most - own->least) : 0.0;
}

/* Releases of all jobs, those furthest above their reference size first; `of_least`: whether that is the least one. */
static void in_turn(struct engine *e, const struct resizable *jobs, int64_t count, int of_least, int to_least, const uint64_t *usable) {
    int64_t order[count + 1];
    for (int64_t k = 0; k < count; k++) {
        int32_t own = (of_least ? jobs[k].least : jobs[k].preferred) - jobs[k].size;
        int64_t at = k;
        for (; at; at--) {
            const struct resizable *other = &jobs[order[at - 1]];
            if ((of_least ? other->least : other->preferred) - other->size <= own) break;
            order[at] = order[at - 1];
        }
        order[at] = k;
    }
    for (int64_t k = 0; k < count; k++)
        add_releases(e, &jobs[order[k]], to_least ? jobs[order[k]].least : jobs[order[k]].preferred, usable);
}

/* Releases one by one, each of the job with the largest relative size. */
static void level(struct engine *e, const struct resizable *jobs, int64_t count, const uint64_t *usable) {
    struct layer *l = &e->layer;
    int64_t first[count + 1], next[count + 1];
    for (int64_t k = 0; k < count; k++) {
        next[k] = first[k] = l->release_count;
        add_releases(e, &jobs[k], jobs[k].least, usable);
    }
    first[count] = l->release_count;
    int64_t total = l->release_count;
    if (!total) return;
    if (!grow((void **)&l->releases, &l->release_room, 2 * total, sizeof *l->releases)) { e->out_of_memory = 1; return; }
    for (int64_t n = 0; n < total; n++) {
        int64_t best = -1;
        double largest = 0;
        for (int64_t k = 0; k < count; k++) {
            if (next[k] == first[k + 1]) continue;
            double own = relative(&jobs[k], jobs[k].size - (int32_t)(next[k] - first[k]));
            if (best < 0 || own > largest) best = k, largest = own;
        }
        l->releases[total + n] = l->releases[next[best]++];
    }
    memmove(l->releases, l->releases + total, (size_t)total * sizeof *l->releases);
    l->release_count = total;
}

/* Find the releases of `count` jobs with which `job` can start; return their number, 0: none suffice. */
static int64_t find_releases(struct engine *e, int32_t job, const struct resizable *jobs, int64_t count, const uint64_t *usable) {
    struct layer *l = &e->layer;
    int64_t policy = e->s->resize_policy, tries = policy == DMR ? 2 * count : policy == PREF ? 2 : 1;
    for (int64_t k = 0; k < tries && !e->out_of_memory; k++) {
        l->release_count = 0;
        if (policy == DMR) add_releases(e, &jobs[k / 2], k % 2 ? jobs[k / 2].least : jobs[k / 2].preferred, usable);
        else if (policy == AVG) level(e, jobs, count, usable);
        else in_turn(e, jobs, count, policy == MIN, policy == MIN || k, usable);
        if (!l->release_count || !suffices_after(e, job, l->release_count)) continue;
        if (policy == DMR) return l->release_count;
        int64_t few = 0, enough = l->release_count;
        while (enough - few > 1) {
            int64_t middle = (few + enough) / 2;
            if (suffices_after(e, job, middle)) enough = middle;
            else few = middle;
        }
        return enough;
    }
    return 0;
}

/* -- expansions ----------------------------------------------------------------------------------------------------- */

/* Choose nodes for an expander among the `usable` ones, as many as it asked for, or as there are. The nodes of small
 * blocks of neighbors come first. */
static int choose_expander(struct engine *e, int32_t entry, const uint64_t *usable) {
    const struct setup *s = e->s;
    const struct layer *l = &e->layer;
    int32_t owner = l->owner[entry];
    const struct view *v = view_of(e, entry);
    for (int64_t w = 0; w < e->words; w++) e->then[w] = usable[w] & v->able[w];
    const struct bits *bits = e->bits + e->bits_first[owner];
    for (int32_t k = 0; k < e->bits_size[owner]; k++) e->then[bits[k].word] &= ~bits[k].nodes;
    int32_t room = 0;
    for (int64_t w = 0; w < e->words; w++)
        for (uint64_t left = e->then[w]; left; left &= left - 1) {
            int32_t node = (int32_t)(64 * w + __builtin_ctzll(left));
            int32_t first = room;
            if (room && e->by_load[room - 1].node == node - 1 && e->weights[node - 1] == e->weights[node])
                first = e->by_load[room - 1].free;
            e->by_load[room++] = (struct load){node, v->cores[node], e->weights[node], first};
        }
    for (int32_t k = room, size = 0; k--;) { /* `free` was the first of the block, and becomes less for larger ones */
        int32_t first = e->by_load[k].free;
        if (!size) size = k - first + 1;
        e->by_load[k].free = -size;
        if (k == first) size = 0;
    }
    qsort(e->by_load, (size_t)room, sizeof *e->by_load, by_load);
    e->alike = 0;
    memset(e->picked, 0, (size_t)e->words * sizeof *e->picked);
    for (int32_t k = 0; k < room && k < l->wanted[entry]; k++) {
        const struct load *own = &e->by_load[k];
        e->picked[own->node >> 6] |= 1ull << (own->node & 63);
        e->share[own->node] = held_on(s, &e->free, entry, own->node, own->cores);
    }
    return room > 0;
}

/* Whether any expander may start in a backfill pass. */
static int may_expand(struct engine *e) {
    for (int64_t k = 0; k < e->layer.asking_count; k++) {
        int32_t entry = e->layer.asking[k];
        if (e->s->preempts || (reached(&e->limits, entry, JOBS) < 0 && view_of(e, entry)->count)) return 1;
    }
    return 0;
}

/* Start an expander on some of the `usable` nodes. Return whether it has started. */
static int expand(struct engine *e, int32_t entry, const uint64_t *usable) {
    const struct setup *s = e->s;
    if (!choose_expander(e, entry, usable) || exceeds(e, entry, 1)) return 0;
    stop_asking(e, entry);
    note_nodes(e, entry);
    if (e->out_of_memory) return 0;
    s->start[entry] = e->now;
    s->end[entry] = INFINITY;
    e->due[entry] = whole_second(e, e->now) + e->limit[entry];
    occupy(e, entry);
    e->last = e->now;
    at(e, e->now + s->merge_s + s->merge_rank_s * (double)(nodes_held(e, entry) - 1), JOINED, entry);
    return 1;
}

/* Give the nodes of an expander to its job. Return whether they are free instead. */
static int join(struct engine *e, int32_t entry) {
    const struct setup *s = e->s;
    struct layer *l = &e->layer;
    if (isnan(l->asked[entry]) || asks(e, entry)) return 0;
    if (s->start[entry] + s->merge_s + s->merge_rank_s * (double)(nodes_held(e, entry) - 1) != e->now) return 0;
    int32_t job = l->owner[entry];
    if (s->end[job] <= e->now) { /* its work is done, and its nodes are not yet free */
        withdraw(e, entry);
        return 1;
    }
    double asked = l->asked[entry];
    int64_t before = nodes_held(e, job);
    int32_t size = (int32_t)(before + nodes_held(e, entry));
    e->alike = 0;
    memset(e->picked, 0, (size_t)e->words * sizeof *e->picked);
    pick_held(e, job, NULL);
    pick_held(e, entry, NULL);
    leave_expander(e, entry, 1);
    e->limit[job] = limit_after(e, job, size);
    reshape(e, job);
    if (l->largest[job] < size) l->largest[job] = size;
    work_with(e, job, size);
    note_resize(e, job, asked, e->now, NAN, before, size);
    return 0;
}

/* The largest size to which a job may expand. */
static int32_t bound(const struct engine *e, int32_t job) {
    int32_t most = e->s->most[job], largest = e->layer.largest[job];
    return e->s->grows[job] || most < largest ? most : largest;
}

/* Take up to `most` idle nodes for the growing job number `k`. Return their number. */
static int32_t take_idle(struct engine *e, int64_t k, int32_t most) {
    struct layer *l = &e->layer;
    int32_t count = 0;
    for (int64_t w = 0; w < e->words && count < most; w++)
        for (uint64_t left = l->able[k * e->words + w] & ~l->taken[w]; left && count < most; left &= left - 1, count++)
            l->taken[w] |= left & -left;
    return count;
}

/* How many nodes each growing job asks for, in `more`, and their order. Return the number of those that ask. */
static int64_t find_expansions(struct engine *e, int64_t count, int32_t *more, int64_t *order) {
    const struct resizable *jobs = e->layer.growing;
    int64_t policy = e->s->resize_policy, asking = 0;
    memset(e->layer.taken, 0, (size_t)e->words * sizeof(uint64_t));
    memset(more, 0, (size_t)count * sizeof *more);
    if (policy == AVG) {
        uint8_t over[count + 1];
        memset(over, 0, sizeof over);
        for (;;) {
            int64_t best = -1;
            double least = 0;
            for (int64_t k = 0; k < count; k++) {
                double own = relative(&jobs[k], jobs[k].size + more[k]);
                if (!over[k] && (best < 0 || own < least)) best = k, least = own;
            }
            if (best < 0) return asking;
            if (jobs[best].size + more[best] >= jobs[best].most || !take_idle(e, best, 1)) over[best] = 1;
            else if (!more[best]++) order[asking++] = best;
        }
    }
    int64_t turn[count + 1];
    for (int64_t k = 0; k < count; k++) {
        int64_t at = k;
        for (; at && policy != DMR; at--) {
            const struct resizable *own = &jobs[k], *other = &jobs[turn[at - 1]];
            int32_t key = own->size - (policy == MIN ? own->least : own->preferred);
            if (other->size - (policy == MIN ? other->least : other->preferred) <= key) break;
            turn[at] = turn[at - 1];
        }
        turn[at] = k;
    }
    for (int step = policy == DMR || policy == MIN; step < 2; step++)
        for (int64_t k = 0; k < count; k++) {
            const struct resizable *own = &jobs[turn[k]];
            int32_t ceiling = step || own->most < own->preferred ? own->most : own->preferred;
            int32_t got = take_idle(e, turn[k], ceiling - own->size - more[turn[k]]);
            if (got && !more[turn[k]]) order[asking++] = turn[k];
            more[turn[k]] += got;
        }
    return asking;
}

/* -- passes --------------------------------------------------------------------------------------------------------- */

static int by_start(const void *a, const void *b, void *engine) {
    const struct engine *e = engine;
    int32_t x = ((const struct resizable *)a)->job, y = ((const struct resizable *)b)->job;
    if (e->s->start[x] != e->s->start[y]) return e->s->start[x] < e->s->start[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* The jobs that may be resized now, in the order of their starts. */
static void find_resizable(struct engine *e, int64_t second) {
    const struct setup *s = e->s;
    struct layer *l = &e->layer;
    l->count = 0;
    l->touched = 0;
    for (int64_t k = 0; k < e->running_count; k++) {
        int32_t job = e->running[k].job, entry;
        if (!l->largest[job]) continue;
        if (l->since[job] >= e->now) l->touched = 1; /* it does not work yet, or pauses */
        if (!(l->since[job] < e->now && e->now < s->end[job]) || s->fate[job] == PREEMPTED || s->fate[job] == LOST) continue;
        entry = s->expander[job];
        if (!isnan(l->shrink_at[job]) || e->due[job] <= second) continue;
        if (entry >= 0 && !isnan(l->asked[entry]) && !asks(e, entry)) continue;
        l->jobs[l->count++] = (struct resizable){job, (int32_t)nodes_held(e, job), s->least[job], s->preferred[job], s->most[job]};
    }
    qsort_r(l->jobs, (size_t)l->count, sizeof *l->jobs, by_start, e);
}

/* Let running jobs shrink for the first waiting jobs of the partitions. */
static void shrink_for_heads(struct engine *e, int64_t second) {
    const struct setup *s = e->s;
    struct layer *l = &e->layer;
    size_t size = (size_t)e->words * sizeof(uint64_t);
    memset(l->closed, 0, size);
    if (e->unsorted) qsort_r(e->queue, (size_t)e->queue_count, sizeof *e->queue, by_priority, e);
    e->unsorted = 0;
    for (int64_t q = 0; q < e->queue_count && !e->out_of_memory; q++) {
        int32_t job = e->queue[q], partition = s->partition[job];
        const uint64_t *all = e->partition_nodes + partition * e->words;
        if (!beyond(e, all, l->closed)) continue;
        if (!e->ready[job] || full_array(e, job) || e->withdrawn[job] || het_job_of(e, job) >= 0 || s->inside[job] >= 0) continue;
        if (reached(&e->limits, job, JOBS) >= 0 || exceeds(e, job, 0) || !suffice(e, e->licenses, job)) continue;
        e->limit[job] = s->limit[job];
        allowed_nodes(e, job, second, e->usable);
        int some = 0;
        for (int64_t w = 0; w < e->words; w++) {
            e->usable[w] &= s->eligible[s->set[job] * e->words + w] & e->up[w] & ~l->closed[w];
            l->closed[w] |= all[w];
            some |= e->usable[w] != 0;
        }
        if (!some) continue;
        prepare_head(e, job, e->usable);
        if (suffices_after(e, job, 0)) continue;
        struct resizable jobs[l->count + 1];
        int64_t count = 0;
        for (int64_t k = 0; k < l->count; k++)
            if (s->partition[l->jobs[k].job] == partition && s->shrinks[l->jobs[k].job] && isnan(l->shrink_at[l->jobs[k].job])) jobs[count++] = l->jobs[k];
        int64_t releases = find_releases(e, job, jobs, count, e->usable);
        for (int64_t k = 0; k < releases; k++) {
            int32_t own = l->releases[k].job, node = l->releases[k].node;
            if (!l->leaving[own] && !(l->leaving[own] = malloc(size))) { e->out_of_memory = 1; return; }
            if (isnan(l->shrink_at[own])) {
                memset(l->leaving[own], 0, size);
                l->shrink_at[own] = e->now;
            }
            l->leaving[own][node >> 6] |= 1ull << (node & 63);
        }
        for (int64_t k = 0; k < releases; k++) {
            int known = 0;
            for (int64_t other = 0; other < k && !known; other++) known = l->releases[other].job == l->releases[k].job;
            if (!known) shrink(e, l->releases[k].job);
        }
    }
}

/* Whether the partitions of two jobs have nodes in common. */
static int near(const struct engine *e, int32_t a, int32_t b) {
    const uint64_t *x = e->partition_nodes + e->s->partition[a] * e->words, *y = e->partition_nodes + e->s->partition[b] * e->words;
    return common(e->words, x, y) > 0;
}

/* Start a submitted expander at once, if no other job waits for nodes of its partition. */
static void try_at_once(struct engine *e, int32_t entry, int64_t second) {
    if (reached(&e->limits, entry, JOBS) >= 0) return;
    for (int64_t k = 0; k < e->queue_count; k++)
        if (e->ready[e->queue[k]] && near(e, e->queue[k], entry)) return;
    for (int64_t k = 0; k + 1 < e->layer.asking_count; k++)
        if (near(e, e->layer.asking[k], entry)) return;
    allowed_nodes(e, entry, second, e->usable);
    for (int64_t w = 0; w < e->words; w++) e->usable[w] &= e->up[w];
    expand(e, entry, e->usable);
}

/* Submit expanders. Return whether there are any. */
static int ask(struct engine *e, int64_t second) {
    const struct setup *s = e->s;
    struct layer *l = &e->layer;
    int64_t count = 0;
    int some = 0;
    for (int64_t k = 0; k < l->count; k++) {
        struct resizable own = l->jobs[k];
        int32_t entry = s->expander[own.job];
        if (entry < 0 || !isnan(l->asked[entry]) || !isnan(l->shrink_at[own.job])) continue;
        own.most = bound(e, own.job);
        if (own.size < own.most && e->due[own.job] - second >= MINUTE_S) l->growing[count++] = own;
    }
    if (!count) return 0;
    free(l->able);
    if (!(l->able = malloc((size_t)(count * e->words) * sizeof *l->able))) { e->out_of_memory = 1; return 0; }
    for (int64_t k = 0; k < count; k++) {
        int32_t job = l->growing[k].job, entry = s->expander[job];
        uint64_t *able = l->able + k * e->words;
        e->limit[entry] = (e->due[job] - second) / MINUTE_S * MINUTE_S;
        allowed_nodes(e, entry, second, able);
        const struct view *v = view_of(e, entry);
        for (int64_t w = 0; w < e->words; w++) able[w] &= v->able[w] & e->up[w];
        const struct bits *bits = e->bits + e->bits_first[job];
        for (int32_t b = 0; b < e->bits_size[job]; b++) able[bits[b].word] &= ~bits[b].nodes;
    }
    int32_t more[count];
    int64_t order[count], asking = find_expansions(e, count, more, order);
    for (int64_t k = 0; k < asking; k++) {
        int32_t entry = s->expander[l->growing[order[k]].job];
        if (reached(&e->limits, entry, SUBMITTED) >= 0) continue;
        count_job(&e->limits, entry, NULL, 1);
        l->asking[l->asking_count++] = entry;
        l->wanted[entry] = more[order[k]];
        l->asked[entry] = e->now;
        e->arrived++;
        some = 1;
        try_at_once(e, entry, second);
    }
    return some;
}

/* Handle an event of the layer. Return whether Slurm is told of it. */
static int layer_event(struct engine *e, int32_t kind, int32_t job) {
    struct layer *l = &e->layer;
    if (kind == SHRUNK || kind == JOINED) {
        l->touched = 1;
        return kind == SHRUNK ? release_nodes(e, job) : join(e, job);
    }
    if (e->now != l->next) return 0;
    l->next = INFINITY;
    int64_t second = whole_second(e, e->now);
    for (int64_t k = 0; k < l->asking_count;)
        if (l->asked[l->asking[k]] + EXPANDER_S <= e->now) withdraw(e, l->asking[k]);
        else k++;
    find_resizable(e, second);
    shrink_for_heads(e, second);
    return ask(e, second);
}
