/* The steps of processes. Part of evolving.c. */

static int compute(struct machine *m, int64_t number, double work) {
    int32_t a;
    struct node *node = &m->node[m->process[number].node];
    if (!(work > 0.0)) return 1;
    a = new_activity(m, COMPUTING, number, work);
    if (node->count == node->room) {
        int32_t room = node->room ? 2 * node->room : 8;
        node->computing = resized(m, node->computing, room, sizeof *node->computing);
        node->room = room;
    }
    m->process[number].activity = a;
    m->activity[a].place = node->count;
    node->computing[node->count++] = a;
    touch_node(m, m->process[number].node);
    return 0;
}

/* Do a step of a process; return 0 if the process must wait. */
static int is_done(struct machine *m, int64_t number, int64_t step) {
    int64_t kind = m->in->kind[step], argument = m->in->argument[step];
    switch (kind) {
    case COMPUTE:
        return compute(m, number, m->in->amount[step]);
    case FORK:
        place(m, argument - m->first_process, number);
        return 1;
    case JOIN:
        m->process[argument - m->first_process].joined_by = (int32_t)number;
        if (m->process[argument - m->first_process].ended) release(m, &m->process[argument - m->first_process]);
        return m->process[argument - m->first_process].ended;
    }
    argument -= m->first_message;
    if (m->message[argument] & ARRIVED) return 1;
    m->message[argument] |= kind == SEND ? SENT : AWAITED;
    begin_transfer(m, argument);
    return kind == SEND && !m->in->synchronous;
}

static void end_process(struct machine *m, struct process *process) {
    int64_t first = m->in->processes[process->job] - m->first_process;
    int64_t end = m->in->processes[process->job + 1] - m->first_process;
    process->ended = 1;
    if (process->joined_by >= 0 || process->is_first || !m->in->joins_release) release(m, process);
    if (process->joined_by >= 0) make_ready(m, process->joined_by);
    if (--m->alive[process->job - m->first_job]) return;
    m->in->ended[process->job] = m->now;
    m->in->completed[process->job] = 1;
    if (m->in->joins_release)
        for (int64_t number = first; number < end; number++) release(m, &m->process[number]);
}

static void advance(struct machine *m) {
    while (m->ready_count) {
        int32_t number = m->ready[m->ready_first];
        struct process *process = &m->process[number];
        m->ready_first = (m->ready_first + 1) % m->count_processes;
        m->ready_count--;
        while (process->step < process->last && is_done(m, number, process->step)) process->step++;
        if (process->step == process->last) end_process(m, process);
    }
}

static void finish(struct machine *m, int32_t a) {
    int64_t owner = m->activity[a].owner;
    enum type type = m->activity[a].type;
    remove_activity(m, a);
    if (type == COMPUTING) {
        struct process *process = &m->process[owner];
        m->in->work[process->job] += m->in->amount[process->step];
        process->step++;
        process->activity = -1;
        make_ready(m, owner);
        return;
    }
    m->transfer[owner] = -1;
    if (type == DELAYED) flow(m, owner); else arrive(m, owner);
}
