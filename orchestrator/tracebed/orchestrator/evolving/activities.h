/* Computations and messages, in a heap by (end, number). Part of evolving.c. */

static int before(const struct machine *m, int32_t a, int32_t b) {
    const struct activity *x = &m->activity[a], *y = &m->activity[b];
    return x->end < y->end || (x->end == y->end && x->number < y->number);
}

static void put(struct machine *m, int32_t at, int32_t a) {
    m->heap[at] = a;
    m->activity[a].heap = at;
}

static void sift(struct machine *m, int32_t at) {
    int32_t a = m->heap[at];
    for (; at > 0 && before(m, a, m->heap[(at - 1) / 2]); at = (at - 1) / 2) put(m, at, m->heap[(at - 1) / 2]);
    for (int32_t child; (child = 2 * at + 1) < m->heap_count; at = child) {
        if (child + 1 < m->heap_count && before(m, m->heap[child + 1], m->heap[child])) child++;
        if (!before(m, m->heap[child], a)) break;
        put(m, at, m->heap[child]);
    }
    put(m, at, a);
}

static void leave_heap(struct machine *m, int32_t a) {
    int32_t at = m->activity[a].heap, last;
    if (at < 0) return;
    m->activity[a].heap = -1;
    last = m->heap[--m->heap_count];
    if (last == a) return;
    put(m, at, last);
    sift(m, at);
}

static int32_t new_activity(struct machine *m, enum type type, int64_t owner, double amount) {
    int32_t a = m->free_first;
    if (a >= 0) {
        m->free_first = m->activity[a].place;
    } else {
        if (m->used == m->room) {
            int32_t room = m->room ? 2 * m->room : 64;
            m->activity = resized(m, m->activity, room, sizeof *m->activity);
            m->heap = resized(m, m->heap, room, sizeof *m->heap);
            m->route = resized(m, m->route, room * m->longest, sizeof *m->route);
            m->where = resized(m, m->where, room * m->longest, sizeof *m->where);
            m->room = room;
        }
        a = m->used++;
    }
    m->activity[a] = (struct activity){.amount = amount, .since = m->now, .end = INFINITY, .number = ++m->activities,
                                       .owner = (int32_t)owner, .heap = -1, .type = type};
    return a;
}

static double left(const struct activity *a, double now) {
    double amount = a->amount - a->rate * (now - a->since);
    return amount > 0.0 ? amount : 0.0;
}

static void run(struct machine *m, int32_t number, double rate) {
    struct activity *a = &m->activity[number];
    if (rate == a->rate) return;
    a->amount = left(a, m->now);
    a->since = m->now;
    a->rate = rate;
    a->end = m->now + a->amount / rate;
    if (a->heap < 0) {
        m->heap[m->heap_count] = number;
        a->heap = m->heap_count++;
    }
    sift(m, a->heap);
}

static void touch_node(struct machine *m, int64_t node) {
    if (m->node[node].dirty) return;
    m->node[node].dirty = 1;
    m->dirty_nodes[m->dirty_nodes_count++] = (int32_t)node;
}

static void touch_link(struct machine *m, int32_t link) {
    if (m->link[link].dirty) return;
    m->link[link].dirty = 1;
    m->dirty_links[m->dirty_links_count++] = link;
}

static void remove_activity(struct machine *m, int32_t number) {
    struct activity *a = &m->activity[number];
    leave_heap(m, number);
    if (a->type == COMPUTING) {
        int32_t at = m->process[a->owner].node;
        struct node *node = &m->node[at];
        int32_t last = node->computing[--node->count];
        node->computing[a->place] = last;
        m->activity[last].place = a->place;
        touch_node(m, at);
    } else if (a->type == FLOWING) {
        for (int32_t hop = 0; hop < a->hops; hop++) {
            int32_t id = m->route[number * m->longest + hop], place = m->where[number * m->longest + hop];
            struct link *link = &m->link[id];
            struct on_link last = link->on[--link->count];
            link->on[place] = last;
            m->where[last.activity * m->longest + last.hop] = place;
            touch_link(m, id);
        }
    }
    a->place = m->free_first;
    m->free_first = number;
}
