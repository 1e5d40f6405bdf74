/* The allocation of nodes that two jobs may share. As cluster.py. Part of engine.c. */

struct loan { int32_t owner, guest, cores; int64_t place; double since; };  /* guest -1: no loan; place: in visits */
struct part { int32_t first, count; };                              /* cores of a job on a node */
struct resident {                    /* a running job */
    int32_t *owned; int64_t owned_count, owned_room;  /* nodes in order of allocation */
    int32_t *visits; int64_t visit_count, visiting;   /* nodes as a guest, -1: no longer; number of those left */
    int64_t lends;                   /* number of its nodes that are shared */
    int32_t first;                   /* first node, if it started without own nodes; -1 */
    int32_t can_host, sockets;       /* cores and sockets per node if it can lend cores; 0 and 1: it cannot */
    int32_t previous, next;          /* running jobs in order of start; -1: none */
};
struct lend { int32_t owner, cores; int64_t first, count; };        /* nodes: a stretch of `lent` */

struct sharing {
    struct resident **of;            /* job -> null: not running */
    struct loan *loans;              /* of each node */
    double *owned_since;             /* of each node */
    struct part *noted_owner, *noted_guest;  /* of each node: cores since the last change; count -1: all that it uses */
    int32_t first_running, last_running, least_cores;
    int even;                        /* whether all nodes are alike */
    int64_t stamp, *listed, *entered, *gone;  /* job -> the stamp of the list that it is in */
    int32_t *gains, *guests, *others, *todo; int64_t todo_room;
    int32_t *entry; double *entry_end;
    struct lend *lends; int64_t lend_count, lend_room;
    int32_t *lent; int64_t lent_count, lent_room;
    /* changes of cores */
    int64_t core_count, core_room;
    int32_t *core_job, *core_node, *core_from, *core_to; uint8_t *core_cause; double *core_asked;
};

#define CORE_CHANGES(_) \
    _(s, core_job, room) _(s, core_node, room) _(s, core_from, room) _(s, core_to, room) _(s, core_cause, room) _(s, core_asked, room)
#define SHARING(_) /* the arrays of `sharing` */ \
    CORE_CHANGES(_) _(s, todo, room) _(s, lends, room) _(s, lent, room) _(s, of, jobs) _(s, listed, jobs) _(s, entered, jobs) \
    _(s, gone, jobs) _(s, loans, nodes) _(s, owned_since, nodes) _(s, noted_owner, nodes) _(s, noted_guest, nodes) \
    _(s, gains, running) _(s, guests, running) _(s, others, running) _(s, entry, running) _(s, entry_end, running)

static int shares_nodes(const struct resident *r) { return r->visiting || r->lends; }

/* The nodes of a job: the nodes that it owns, then those on which it is a guest. `node` -1: no longer a guest there. */
static int64_t node_count(const struct resident *r) { return r->owned_count + r->visit_count; }

static int32_t node_at(const struct resident *r, int64_t at) {
    return at < r->owned_count ? r->owned[at] : r->visits[at - r->owned_count];
}

/* Add to the ledger that `job` held `node` from `since` until now. `part`, as held_part: cores of a guest, or minus
 * those of an owner; 0: all. */
static void past(struct engine *e, int32_t job, int32_t node, double since, int32_t part) {
    int64_t last = e->held_count - 1;
    if (last >= 0 && e->held_job[last] == job && e->instants[e->held_since[last]] == since
        && e->instants[e->held_until[last]] == e->now && e->held_part[last] == part && e->held_first[last] + e->held_nodes[last] == node) {
        e->held_nodes[last]++;
        return;
    }
    int64_t row = enter(e, job, node, 1, instant(e, since));
    if (row < 0) return;
    e->held_until[row] = instant(e, e->now);
    e->held_part[row] = part;
}

static void own(struct engine *e, struct resident *r, int32_t node, int at_front) {
    if (r->owned_count == r->owned_room) {
        int64_t room = r->owned_room ? 2 * r->owned_room : 4;
        if (!grow(e, &r->owned, room, 4)) return;
        r->owned_room = room;
    }
    if (at_front) memmove(r->owned + 1, r->owned, (size_t)r->owned_count * 4);
    r->owned[at_front ? 0 : r->owned_count] = node;
    r->owned_count++;
    e->sharing->owned_since[node] = e->now;
}

/* Allocate the `count` lowest idle nodes to the resident. */
static void occupy_idle(struct engine *e, struct resident *r, int64_t count) {
    CHECK(count >= 0 && count <= e->cluster_idle);
    if (count > r->owned_room) {
        if (!grow(e, &r->owned, count, 4)) return;
        r->owned_room = count;
    }
    e->cluster_idle -= count;
    int64_t word = e->lowest;
    for (; count > 0; word++) {
        CHECK(word < e->words);
        for (; count > 0 && e->idle_bits[word]; count--) {
            own(e, r, (int32_t)(word * 64 + __builtin_ctzll(e->idle_bits[word])), 0);
            e->idle_bits[word] &= e->idle_bits[word] - 1;
        }
        if (e->idle_bits[word]) break;
    }
    e->lowest = word;
}

static struct resident *settle_in(struct engine *e, int32_t job) {
    struct sharing *s = e->sharing;
    struct resident *r = calloc(1, sizeof *r);
    if (!r) { e->failed = NO_MEMORY; return NULL; }
    r->first = r->next = -1;
    r->sockets = 1;
    r->previous = s->last_running;
    *(s->last_running < 0 ? &s->first_running : &s->of[s->last_running]->next) = job;
    s->last_running = job;
    return s->of[job] = r;
}

static void move_out(struct engine *e, int32_t job) {
    struct sharing *s = e->sharing;
    struct resident *r = s->of[job];
    *(r->previous < 0 ? &s->first_running : &s->of[r->previous]->next) = r->next;
    *(r->next < 0 ? &s->last_running : &s->of[r->next]->previous) = r->previous;
    free(r->owned);
    free(r->visits);
    free(r);
    s->of[job] = NULL;
}

static void lend_node(struct engine *e, int32_t owner, int32_t guest, int32_t node, int32_t cores) {
    struct sharing *s = e->sharing;
    struct resident *r = s->of[guest];
    CHECK(s->loans[node].guest < 0 && cores > 0 && cores < e->in.cores[node]);
    if (s->owned_since[node] < e->now) past(e, owner, node, s->owned_since[node], 0);
    s->owned_since[node] = e->now;
    if (!r->owned_count && r->first < 0) r->first = node;
    s->loans[node] = (struct loan){owner, guest, cores, r->visit_count, e->now};
    r->visits[r->visit_count++] = node;
    r->visiting++;
    s->of[owner]->lends++;
}

/* Add `job` to the list of the present stamp, unless it is in it. */
static void list_once(struct sharing *s, int32_t *list, int64_t *count, int32_t job) {
    if (s->listed[job] != s->stamp) list[(*count)++] = job;
    s->listed[job] = s->stamp;
}

/* End the loan of `node`. */
static void end_loan(struct engine *e, int32_t node) {
    struct loan *loan = &e->sharing->loans[node];
    if (loan->since < e->now) {
        past(e, loan->owner, node, loan->since, loan->cores - e->in.cores[node]);
        past(e, loan->guest, node, loan->since, loan->cores);
    }
    struct resident *guest = e->sharing->of[loan->guest];
    guest->visits[loan->place] = -1;
    guest->visiting--;
    e->sharing->of[loan->owner]->lends--;
    loan->guest = -1;
}

/* Release all nodes of `job`. Write the jobs that gain cores to `gains`, and return their number. */
static int64_t release_all(struct engine *e, int32_t job) {
    struct sharing *s = e->sharing;
    struct resident *r = s->of[job];
    int64_t count = 0;
    s->stamp++;
    for (int64_t at = 0; at < r->visit_count; at++) {
        int32_t node = r->visits[at];
        if (node < 0) continue;
        int32_t owner = s->loans[node].owner;
        end_loan(e, node);
        s->owned_since[node] = e->now;
        list_once(s, s->gains, &count, owner);
    }
    for (int64_t at = 0; at < r->owned_count; at++) {
        int32_t node = r->owned[at], heir = s->loans[node].guest;
        if (heir < 0) {
            past(e, job, node, s->owned_since[node], 0);
            give_back(e, node, 1);
            s->noted_owner[node].count = -1;
            continue;
        }
        end_loan(e, node);
        own(e, s->of[heir], node, s->of[heir]->first == node);
        s->noted_owner[node] = s->noted_guest[node];
        list_once(s, s->gains, &count, heir);
    }
    return count;
}

/* Write the owners of the nodes on which `job` is a guest to `list`, without duplicates; return their number. */
static int64_t hosts_of(struct engine *e, int32_t job, int32_t *list) {
    struct sharing *s = e->sharing;
    const struct resident *r = s->of[job];
    int64_t count = 0;
    s->stamp++;
    for (int64_t at = 0; r->visiting && at < r->visit_count; at++) {
        if (r->visits[at] < 0) continue;
        list_once(s, list, &count, s->loans[r->visits[at]].owner);
    }
    return count;
}

/* Write the guests on the nodes of `job` to `list`, without duplicates; return their number. */
static int64_t guests_of(struct engine *e, int32_t job, int32_t *list) {
    struct sharing *s = e->sharing;
    const struct resident *r = s->of[job];
    int64_t count = 0;
    s->stamp++;
    for (int64_t at = 0; r->lends && at < r->owned_count; at++) {
        int32_t guest = s->loans[r->owned[at]].guest;
        if (guest >= 0) list_once(s, list, &count, guest);
    }
    return count;
}
