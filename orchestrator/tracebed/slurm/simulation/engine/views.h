/* Which jobs hold which nodes, and what each class of requests can use of the nodes. Views are kept up to date by the
 * nodes that have changed since they were read last. Part of slurm.c. */

struct holder { int64_t end; int32_t job, cores; };
struct holders { struct holder *list; int32_t count, room; }; /* of a node, by expected end and number of the job */

struct class {
    int32_t job; /* one of the class */
    int step; /* whether each node has room either for what it has room for when it is empty, or for nothing */
    int32_t unit; /* cores that the job can use of each node with room; 0: they differ */
    int blocks; /* whether it uses whole nodes that are alike: blocks of consecutive nodes compare by their number of nodes */
};

/* After the end of the running job `at`, `more` cores of a node can be used, which had none before if `new`; and the
 * cores and nodes with room of the whole cluster then. */
struct growth { int64_t sum, count; int32_t at, node, more, new; };

struct view {
    int32_t class; /* -1: not in use */
    int64_t seen; /* number of changes of nodes that the view knows */
    int64_t sum, count; /* of the cores that a job can use now, and of the nodes with room */
    int32_t *cores; /* of each node: those that a job can use now; of a step: of the empty node */
    uint64_t *able, *empty; /* the nodes with room now; of a step: those with room when they are empty */
    int32_t *last; uint32_t *version; /* of each node: the holder after whose end it has room, and when that was so */
    int64_t ordered; /* number of changes of nodes that the following knows, see `order_nodes` */
    int32_t *order, *order_at; int64_t order_count; /* the nodes without room, and the running jobs after which they have room */
    struct growth *growth; int64_t growth_count, growth_room; /* of requests not of a step, see `order_growth` */
    uint64_t *steps; /* the nodes with room before each `1 << shift`th node of the order */
};

enum { OF_TASKS = 1 }; /* see resources.py */

static int64_t memory_of(const struct setup *s, int32_t job, int32_t node, int32_t cores) {
    if (s->whole[job] || s->wanted_memory[job] < 0) return s->memory[node];
    return s->by_core[job] ? s->wanted_memory[job] * cores : s->wanted_memory[job];
}

/* Whether a job may hold more cores than it uses: whole sockets or, on nodes with unlike cores, all CPUs of a core. */
static int holds_more(const struct setup *s, int32_t job) { return s->threads || s->by_socket[job]; }

/* How many cores of `node` a job gets together. */
static int32_t grain_of(const struct setup *s, int32_t job, int32_t node) {
    return s->by_socket[job] ? s->sockets[node] : s->threads ? s->threads[node] : 1;
}

/* The CPUs of a core of which a job uses one, as its cores count. */
static int32_t of_core(const struct setup *s, int32_t job, int32_t node) {
    return s->one_thread[job] && s->threads ? s->threads[node] : 1;
}

/* The cores that a job holds on `node` if it uses `used` of them, and these resources are free. */
static int32_t held_on(const struct setup *s, const struct free_resources *free, int32_t job, int32_t node, int32_t used) {
    if (!holds_more(s, job)) return used;
    if (s->whole[job]) return s->cores[node];
    int32_t grain = grain_of(s, job, node), cores = used * of_core(s, job, node);
    int64_t count = (cores + grain - 1) / grain, memory = s->wanted_memory[job] * grain;
    if (s->by_socket[job] == OF_TASKS || (s->by_socket[job] && cores % grain)) { /* tasks are dealt out to the sockets */
        int64_t most = (free->cores[node] + grain - 1) / grain;
        if (s->by_core[job] && memory > 0 && free->memory[node] / memory < most) most = free->memory[node] / memory;
        int32_t dealt = s->threads && !s->one_thread[job] ? (used + s->threads[node] - 1) / s->threads[node] : used;
        if (dealt < most) most = dealt;
        if (most > count) count = most;
    }
    return count * grain < free->cores[node] ? (int32_t)(count * grain) : free->cores[node];
}

/* The cores of `node` that a job can use if these resources are free. */
static int32_t capacity_of(const struct setup *s, int32_t free, int64_t memory, const int64_t *gres, int32_t job, int32_t node) {
    int64_t cores = free;
    for (int64_t k = 0; k < s->kinds; k++)
        if (s->wanted_gres[job * s->kinds + k] > gres[k]) return 0;
    int32_t used = of_core(s, job, node);
    if (s->whole[job]) return cores == s->cores[node] ? (int32_t)cores / used : 0;
    int64_t least = s->per_node[job] > 1 ? s->per_node[job] : 1, wanted = s->wanted_memory[job];
    if (wanted < 0) {
        if (memory != s->memory[node]) return 0;
    } else if (s->by_core[job] && wanted) {
        int64_t most = memory / wanted;
        int32_t grain = most < cores ? grain_of(s, job, node) : 1;
        if (most < cores && s->by_socket[job] == OF_TASKS) cores = most / grain * (s->threads ? s->threads[node] : 1);
        else if (most < cores) cores = most - most % grain;
    } else if (wanted > memory) return 0;
    if (used > 1) cores /= used;
    return cores < least ? 0 : s->per_node[job] ? s->per_node[job] : (int32_t)cores;
}

static int32_t capacity(const struct setup *s, const struct free_resources *free, int32_t job, int32_t node) {
    return capacity_of(s, free->cores[node], free->memory[node], free->gres + node * s->kinds, job, node);
}

/* Allocate (`sign` -1) or release (1) what `job` holds. */
static void take(struct engine *e, struct free_resources *free, int32_t job, int sign) {
    const struct setup *s = e->s;
    const struct range *ranges = e->ranges + e->s->range_first[job];
    for (int32_t r = 0; r < e->s->range_size[job]; r++)
        for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--) {
            free->cores[node] += sign * ranges[r].cores;
            free->memory[node] += sign * memory_of(s, job, node, ranges[r].cores);
            for (int64_t k = node * s->kinds, g = job * s->kinds; k < (node + 1) * s->kinds; k++, g++)
                if (!s->kept || !s->kept[k]) free->gres[k] += sign * s->wanted_gres[g];
        }
}

static int earlier(int64_t end, int32_t job, int64_t other_end, int32_t other) {
    return end < other_end || (end == other_end && job < other);
}

/* Note that the free resources of a node have changed. */
static void note_change(struct engine *e, int32_t node) {
    uint64_t own = 1ull << (node & 63);
    e->changed[e->change_count++ & (e->change_room - 1)] = node;
    e->version[node]++;
    if (e->holders[node].count == 1) e->alone[node >> 6] |= own;
    else e->alone[node >> 6] &= ~own;
}

/* Add `job` to the holders of its nodes. */
static void hold(struct engine *e, int32_t job) {
    const struct range *ranges = e->ranges + e->s->range_first[job];
    for (int32_t r = 0; r < e->s->range_size[job]; r++)
        for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--) {
            struct holders *of = &e->holders[node];
            if (of->count == of->room) {
                int32_t room = of->room ? 2 * of->room : 2;
                struct holder *larger = realloc(of->list, (size_t)room * sizeof *larger);
                if (!larger) { e->out_of_memory = 1; return; }
                of->list = larger;
                of->room = room;
            }
            int32_t k = of->count++;
            for (; k && earlier(e->due[job], job, of->list[k - 1].end, of->list[k - 1].job); k--) of->list[k] = of->list[k - 1];
            of->list[k] = (struct holder){e->due[job], job, ranges[r].cores};
            note_change(e, node);
        }
}

/* Remove `job` from the holders of its nodes. */
static void leave(struct engine *e, int32_t job) {
    const struct range *ranges = e->ranges + e->s->range_first[job];
    for (int32_t r = 0; r < e->s->range_size[job]; r++)
        for (int32_t node = ranges[r].first, left = ranges[r].count; left; node++, left--) {
            struct holders *of = &e->holders[node];
            int32_t k = 0;
            while (of->list[k].job != job) k++;
            of->count--;
            for (; k < of->count; k++) of->list[k] = of->list[k + 1];
            note_change(e, node);
        }
}

/* Bring a view up to date about one node. */
static void see(struct engine *e, struct view *v, int32_t node) {
    const struct class *class = &e->classes[v->class];
    uint64_t own = 1ull << (node & 63);
    if (!(e->s->eligible[e->s->set[class->job] * e->words + (node >> 6)] & own)) return;
    int had = (v->able[node >> 6] & own) != 0;
    int32_t before = had ? v->cores[node] : 0, cores = capacity(e->s, &e->free, class->job, node);
    v->sum += cores - before;
    v->count += (cores > 0) - had;
    if (cores) v->able[node >> 6] |= own;
    else v->able[node >> 6] &= ~own;
    if (!class->step) v->cores[node] = cores;
}

/* The view of the class of `job`, up to date. */
static struct view *view_of(struct engine *e, int32_t job) {
    const struct setup *s = e->s;
    int32_t class = s->class[job];
    struct view *v = &e->views[class % e->view_count];
    int other = v->class != class;
    if (other || e->change_count - v->seen >= e->change_room) {
        const struct class *own = &e->classes[class];
        const uint64_t *eligible = s->eligible + s->set[job] * e->words;
        if (other) memset(v->version, 0xff, (size_t)s->nodes * sizeof *v->version);
        v->class = class;
        v->ordered = -1;
        v->sum = v->count = 0;
        memset(v->able, 0, (size_t)e->words * sizeof *v->able);
        if (other) memset(v->empty, 0, (size_t)e->words * sizeof *v->empty);
        for (int64_t w = 0; w < e->words; w++)
            for (uint64_t left = eligible[w]; left; left &= left - 1) {
                int32_t node = (int32_t)(64 * w + __builtin_ctzll(left));
                if (other && own->step) {
                    v->cores[node] = capacity(s, &e->empty, own->job, node);
                    if (v->cores[node]) v->empty[w] |= left & -left;
                }
                see(e, v, node);
            }
    } else
        for (int64_t k = v->seen; k < e->change_count; k++) see(e, v, e->changed[k & (e->change_room - 1)]);
    v->seen = e->change_count;
    return v;
}

/* The holder after whose end `node`, without room now, has room for a request of a step; -1: none. */
static int32_t last_holder(struct engine *e, struct view *v, int32_t node) {
    if (v->version[node] == e->version[node]) return v->last[node];
    const struct setup *s = e->s;
    const struct holders *of = &e->holders[node];
    int32_t job = e->classes[v->class].job, last = -1, cores = e->free.cores[node];
    int64_t memory = e->free.memory[node], gres[s->kinds + 1];
    memcpy(gres, e->free.gres + node * s->kinds, (size_t)s->kinds * sizeof *gres);
    for (int32_t k = 0; k < of->count && last < 0; k++) {
        const struct holder *own = &of->list[k];
        cores += own->cores;
        memory += memory_of(s, own->job, node, own->cores);
        for (int64_t g = 0; g < s->kinds; g++)
            if (!s->kept || !s->kept[node * s->kinds + g]) gres[g] += s->wanted_gres[own->job * s->kinds + g];
        if (capacity_of(s, cores, memory, gres, job, node)) last = own->job;
    }
    v->version[node] = e->version[node];
    return v->last[node] = last;
}

/* What the classes of requests have in common; from a job of each. */
static void classify(struct engine *e) {
    const struct setup *s = e->s;
    for (int64_t job = s->jobs - 1; job >= 0; job--) e->classes[s->class[job]].job = (int32_t)job;
    for (int64_t c = 0; c < s->classes; c++) {
        struct class *own = &e->classes[c];
        const uint64_t *eligible = s->eligible + s->set[own->job] * e->words;
        int whole = s->whole[own->job], alike = 1;
        own->step = whole || s->per_node[own->job] > 0;
        own->unit = whole ? 0 : s->per_node[own->job];
        int32_t cores = own->unit; /* of all nodes, if they are alike */
        for (int64_t w = 0; w < e->words && own->step && alike; w++)
            for (uint64_t left = eligible[w]; left; left &= left - 1) {
                int64_t node = 64 * w + __builtin_ctzll(left);
                int32_t here = s->cores[node] / of_core(s, own->job, (int32_t)node);
                if (!cores) cores = here;
                alike &= here == cores;
            }
        if (whole && alike) own->unit = cores;
        own->blocks = own->step && alike && e->one_weight && !s->switches && !holds_more(s, own->job) && !s->least_loaded[own->job];
    }
}
