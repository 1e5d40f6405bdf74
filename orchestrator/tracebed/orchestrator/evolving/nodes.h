/* Where processes start: static homes, and cores found by leak. Part of evolving.c. */

/* Whether a search finds this node: it has an idle core, or with `by_nodes` all of its cores are idle. */
static int is_free(const struct machine *m, int64_t node) { return m->idle[node] >= (m->in->by_nodes ? m->in->cores : 1); }

static int64_t next_of_snake(const struct machine *m, int64_t job) {
    for (int64_t i = 0; m->idle_cores && i < m->count_nodes; i++) {
        int64_t node = m->in->snake[(m->in->entry[job] + i) % m->count_nodes];
        if (is_free(m, node)) return node;
    }
    return -1;
}

/* Whether no search finds a node. */
static int is_full(const struct machine *m) { return m->in->leak && !(m->in->by_nodes ? m->idle_nodes : m->idle_cores); }

static int64_t beside(const struct machine *m, int64_t node) {
    if (is_free(m, node)) return node;
    for (int64_t i = m->in->neighbour[node]; i < m->in->neighbour[node + 1]; i++)
        if (is_free(m, m->in->neighbours[i])) return m->in->neighbours[i];
    return -1;
}

static int64_t search(const struct machine *m, int64_t job, int64_t origin) {
    const struct held *held = &m->held[job - m->first_job];
    int64_t found = -1;
    if (is_full(m)) return -1;
    if (origin >= 0) found = beside(m, origin);
    for (int32_t i = 0; origin >= 0 && found < 0 && i < held->count; i++) found = beside(m, held->nodes[i]);
    if (found < 0 && (origin < 0 || m->in->leak == NONCONTIGUOUS)) found = next_of_snake(m, job);
    return found;
}

static void hold(struct machine *m, struct held *held, int64_t node) {
    int32_t at = 0;
    m->idle_nodes -= m->idle[node] == m->in->cores;
    m->idle[node]--;
    m->idle_cores--;
    while (at < held->count && held->nodes[at] != node) at++;
    if (at == held->count) {
        if (held->count == held->room) {
            int32_t room = held->room ? 2 * held->room : 8;
            held->nodes = resized(m, held->nodes, room, sizeof *held->nodes);
            held->cores = resized(m, held->cores, room, sizeof *held->cores);
            held->room = room;
        }
        held->nodes[at] = (int32_t)node;
        held->cores[at] = 0;
        held->count++;
    }
    held->cores[at]++;
}

static void release(struct machine *m, struct process *process) {
    struct held *held = &m->held[process->job - m->first_job];
    int32_t at = 0;
    if (isnan(process->core_since)) return;
    m->in->held[process->job] += m->now - process->core_since;
    process->core_since = NAN;
    m->idle[process->node]++;
    m->idle_nodes += m->idle[process->node] == m->in->cores;
    m->idle_cores++;
    while (held->nodes[at] != process->node) at++;
    assert(at < held->count);
    if (--held->cores[at]) return;
    held->count--;
    memmove(held->nodes + at, held->nodes + at + 1, (size_t)(held->count - at) * sizeof *held->nodes);
    memmove(held->cores + at, held->cores + at + 1, (size_t)(held->count - at) * sizeof *held->cores);
}

static void make_ready(struct machine *m, int64_t number) {
    assert(m->ready_count < m->count_processes);
    m->ready[(m->ready_first + m->ready_count++) % m->count_processes] = (int32_t)number;
}

/* Start a process, created by `parent`, on a node. Processes and messages are numbered from the first of these jobs. */
static void place(struct machine *m, int64_t number, int64_t parent) {
    struct process *process = &m->process[number];
    if (!m->in->leak) {
        int64_t home = m->in->home[m->first_process + number];
        process->node = (int32_t)m->in->nodes[m->in->first_node[process->job] + home];
    } else {
        const int64_t *home = m->in->home + m->first_process;
        int at_home = m->in->by_nodes && number != parent && home[number] == home[parent];
        int64_t found = at_home ? -1 : search(m, process->job, m->process[parent].node);
        process->node = found < 0 ? m->process[parent].node : (int32_t)found;
        if (m->idle[process->node]) {
            process->core_since = m->now;
            hold(m, &m->held[process->job - m->first_job], process->node);
        }
    }
    make_ready(m, number);
}
