/* Nodes that sleep after some idle time, as in scheduling/sleeping.py. Part of engine.c. */

static int by_node(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

static void held_without_ledger(struct engine *e, int32_t number, int32_t first, int32_t count) {
    int32_t at = new_range(e);
    if (at < 0) return;
    e->ranges[at] = (struct range){-1, first, count, e->held[number]};
    e->held[number] = at;
}

/* Nodes (ascending) are being switched off until an instant. A number beyond those of the jobs holds them, and is in
 * the releases. */
static void stop_nodes(struct engine *e, const int32_t *nodes, int64_t count, double until) {
    struct sleep *s = e->sleep;
    int32_t number = (int32_t)(e->in.jobs + nodes[0]);
    for (int64_t at = 0, run; at < count; at += run) {
        for (run = 1; at + run < count && nodes[at + run] == nodes[at] + run; run++) {}
        held_without_ledger(e, number, nodes[at], (int32_t)run);
    }
    for (int64_t at = 0; at < count; at++) drop_node(e->idle_bits, nodes[at]);
    e->cluster_idle -= count;
    releases_add(e, number, until, (int32_t)count);
    int64_t at = s->stop_count++;
    for (; at > 0 && (s->stops[at - 1].until < until
                      || (s->stops[at - 1].until == until && s->stops[at - 1].number < number)); at--)
        s->stops[at] = s->stops[at - 1];
    s->stops[at] = (struct stop){until, number};
    e->lapsed = 1;
    came_free(e);
}

/* Nodes that are off now become idle. Return whether there are any. */
static int finish_stops(struct engine *e) {
    struct sleep *s = e->sleep;
    int any = 0;
    while (s->stop_count && s->stops[s->stop_count - 1].until <= e->now) {
        struct stop stop = s->stops[--s->stop_count];
        int32_t at;
        while ((at = e->held[stop.number]) >= 0) {
            struct range *range = &e->ranges[at];
            give_back(e, range->first, range->count);
            for (int32_t node = range->first; node < range->first + range->count; node++) add_node(s->off, node);
            s->off_count += range->count;
            e->held[stop.number] = range->below;
            range->below = e->range_free;
            e->range_free = at;
        }
        releases_remove(e, stop.number, stop.until);
        came_free(e);
        any = 1;
    }
    return any;
}

/* Whether a node has been idle for long enough; if not, set when the next one may have been. */
static int is_due(struct engine *e) {
    struct sleep *s = e->sleep;
    s->due = INFINITY;
    while (s->rest < s->rest_count) {
        struct rest *front = &s->rests[s->rest];
        int32_t node = front->first + front->count - 1;
        if (has_node(e->idle_bits, node) && s->idle_since[node] == front->since) {
            s->due = front->since + e->in.idle_s;
            break;
        }
        if (!--front->count && ++s->rest == s->rest_count) s->rest = s->rest_count = 0;
    }
    return s->due <= e->now;
}

/* Switch off the nodes that have been idle for long enough, see `SleepingCluster.switch_off`. */
static void switch_off(struct engine *e) {
    struct sleep *s = e->sleep;
    if (!is_due(e)) return;
    int32_t head = queue_first(e); /* needs idle nodes, besides those that are set aside for jobs */
    int64_t needed = e->cluster_idle - e->idle + (head < 0 ? 0 : e->in.low[head]);
    int64_t count = 0, most = e->cluster_idle - s->off_count - e->in.keep - needed;
    while (count < most && is_due(e)) {
        int32_t node = s->rests[s->rest].first + s->rests[s->rest].count - 1;
        s->chosen[count++] = node;
        s->on_from[node] = INFINITY;
        s->idle_since[node] = NAN;
        if (has_node(s->waking, node)) { drop_node(s->waking, node); s->waking_count--; }
    }
    if (is_due(e)) s->due = INFINITY; /* until a job gives nodes back */
    if (!count) return;
    qsort(s->chosen, (size_t)count, sizeof *s->chosen, by_node);
    while (count && !e->failed) { /* those that take as long as the first one, and then the others */
        double until = e->now + e->in.shutdown_s[s->chosen[0]];
        int64_t many = 0, others = 0;
        int32_t *nodes = s->alike;
        for (int64_t at = 0; at < count; at++) {
            int32_t node = s->chosen[at];
            if (e->now + e->in.shutdown_s[node] == until) nodes[many++] = node; else s->chosen[others++] = node;
        }
        for (int64_t at = 0; at < many; at++) {
            note_power(e, nodes[at], e->now, NODE_SHUTDOWN);
            note_power(e, nodes[at], until, NODE_OFF);
        }
        if (until > e->now) {
            stop_nodes(e, nodes, many, until);
        } else {
            for (int64_t at = 0; at < many; at++) add_node(s->off, nodes[at]);
            s->off_count += many;
        }
        count = others;
    }
}

/* The next instant at which nodes are off, or may be switched off; infinite: there is none. */
static double sleep_next(const struct engine *e) {
    const struct sleep *s = e->sleep;
    double until = s->stop_count ? s->stops[s->stop_count - 1].until : INFINITY;
    return until < s->due ? until : s->due;
}
