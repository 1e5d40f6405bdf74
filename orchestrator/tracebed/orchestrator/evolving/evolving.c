/* Simulation of programs on a machine. reference.py says what it does and is its reference: all times are the same to
 * the bit, because every sum is made in the same order. Only the nodes and links concerned are looked at here, and
 * activities end in the order of a heap. */
#include "machine.h"
#include "activities.h"
#include "rates.h"
#include "nodes.h"
#include "messages.h"
#include "processes.h"

static void begin(struct machine *m, int64_t job) {
    int64_t first = m->in->processes[job] - m->first_process, end = m->in->processes[job + 1] - m->first_process;
    m->in->started[job] = m->now;
    m->alive[job - m->first_job] = end - first;
    for (int64_t number = first; number < end; number++)
        if (m->in->parent[m->first_process + number] < 0) place(m, number, first);
}

static void stop_waiting(struct machine *m, int64_t place) {
    m->waiting_count--;
    memmove(m->waiting + place, m->waiting + place + 1, (size_t)(m->waiting_count - place) * sizeof *m->waiting);
}

static void admit(struct machine *m) {
    while (m->waiting_count && !is_full(m)) {
        int64_t job = m->waiting[0];
        stop_waiting(m, 0);
        begin(m, job);
        advance(m);
    }
}

static void submit(struct machine *m, int64_t job) {
    if (m->in->cancel[job] < m->now || (is_full(m) && !m->in->waits)) return;
    m->in->accepted[job] = 1;
    m->waiting[m->waiting_count++] = job;
    admit(m);
}

static void cancel(struct machine *m, int64_t job) {
    int64_t end = m->in->processes[job + 1] - m->first_process;
    for (int64_t place = 0; place < m->waiting_count; place++) {
        if (m->waiting[place] != job) continue;
        stop_waiting(m, place);
        m->in->ended[job] = m->now;
    }
    if (!m->alive[job - m->first_job]) return;
    for (int64_t number = m->in->processes[job] - m->first_process; number < end; number++) {
        struct process *process = &m->process[number];
        if (process->activity >= 0) {
            m->in->work[job] += m->in->amount[process->step] - left(&m->activity[process->activity], m->now);
            remove_activity(m, process->activity);
            process->activity = -1;
        }
        release(m, process);
    }
    for (int64_t i = m->in->messages[job] - m->first_message; i < m->in->messages[job + 1] - m->first_message; i++) {
        if (m->transfer[i] >= 0) remove_activity(m, m->transfer[i]);
        m->transfer[i] = -1;
    }
    m->alive[job - m->first_job] = 0;
    m->in->ended[job] = m->now;
}

static void prepare(struct machine *m) {
    const struct setup *in = m->in;
    int64_t sides[3] = {in->side0, in->side1, in->side2}, last_job = m->first_job + m->count_jobs;
    m->first_process = in->processes[m->first_job];
    m->first_message = in->messages[m->first_job];
    m->count_processes = in->processes[last_job] - m->first_process;
    m->count_messages = in->messages[last_job] - m->first_message;
    m->count_nodes = 1;
    for (int64_t axis = 0; axis < in->dimensions; axis++) {
        m->count_nodes *= sides[axis];
        m->longest += in->torus ? sides[axis] / 2 : sides[axis] - 1;
    }
    if (!m->longest) m->longest = 1;
    m->count_links = m->count_nodes * in->dimensions * 2;
    m->free_first = -1;
    m->idle_nodes = m->count_nodes;
    m->idle_cores = m->count_nodes * in->cores;
    m->process = zeros(m, m->count_processes, sizeof *m->process);
    m->message = zeros(m, m->count_messages, sizeof *m->message);
    m->transfer = zeros(m, m->count_messages, sizeof *m->transfer);
    m->alive = zeros(m, m->count_jobs, sizeof *m->alive);
    m->held = zeros(m, m->count_jobs, sizeof *m->held);
    m->idle = zeros(m, m->count_nodes, sizeof *m->idle);
    m->waiting = zeros(m, m->count_jobs, sizeof *m->waiting);
    m->node = zeros(m, m->count_nodes, sizeof *m->node);
    m->link = zeros(m, m->count_links, sizeof *m->link);
    m->dirty_nodes = zeros(m, m->count_nodes, sizeof *m->dirty_nodes);
    m->dirty_links = zeros(m, m->count_links, sizeof *m->dirty_links);
    m->shares = zeros(m, m->count_links, sizeof *m->shares);
    m->component = zeros(m, m->count_links, sizeof *m->component);
    m->ready = zeros(m, m->count_processes, sizeof *m->ready);
    for (int64_t i = 0; i < m->count_nodes; i++) m->idle[i] = in->cores;
    for (int64_t i = 0; i < m->count_messages; i++) m->transfer[i] = -1;
    for (int64_t job = m->first_job; job < last_job; job++)
        for (int64_t i = in->processes[job]; i < in->processes[job + 1]; i++)
            m->process[i - m->first_process] = (struct process){
                .core_since = NAN, .step = in->steps[i], .last = in->steps[i + 1], .job = (int32_t)job,
                .node = -1, .joined_by = -1, .activity = -1, .is_first = in->parent[i] < 0};
}

static void free_machine(struct machine *m) {
    for (int64_t i = 0; m->held && i < m->count_jobs; i++) {
        free(m->held[i].nodes);
        free(m->held[i].cores);
    }
    for (int64_t i = 0; m->node && i < m->count_nodes; i++) free(m->node[i].computing);
    for (int64_t i = 0; m->link && i < m->count_links; i++) free(m->link[i].on);
    void *blocks[] = {m->process, m->message, m->transfer, m->alive, m->held, m->idle, m->waiting, m->node, m->link,
                      m->dirty_nodes, m->dirty_links, m->shares, m->component, m->ready, m->activity, m->route, m->where, m->heap};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) free(blocks[i]);
}

/* Simulate `count` jobs from `first`, until no job runs. */
static enum outcome simulate(const struct setup *in, int64_t first, int64_t count, const int64_t *starts,
                             int64_t starts_count, const int64_t *cancels, int64_t cancels_count) {
    struct machine *m = calloc(1, sizeof *m);
    int64_t next_start = 0, next_cancel = 0;
    if (!m) return NO_MEMORY;
    m->in = in;
    m->first_job = first;
    m->count_jobs = count;
    if (setjmp(m->out_of_memory)) {
        free_machine(m);
        free(m);
        return NO_MEMORY;
    }
    prepare(m);
    while (m->heap_count || next_start < starts_count || next_cancel < cancels_count) {
        int64_t so_far = m->activities;
        double now = m->heap_count ? m->activity[m->heap[0]].end : INFINITY;
        if (next_start < starts_count) now = fmin(now, in->start[starts[next_start]]);
        if (next_cancel < cancels_count) now = fmin(now, in->cancel[cancels[next_cancel]]);
        m->now = now;
        while (m->heap_count && m->activity[m->heap[0]].end == now && m->activity[m->heap[0]].number <= so_far) {
            finish(m, m->heap[0]);
            advance(m);
        }
        admit(m);
        while (next_start < starts_count && in->start[starts[next_start]] <= now) submit(m, starts[next_start++]);
        while (next_cancel < cancels_count && in->cancel[cancels[next_cancel]] <= now) cancel(m, cancels[next_cancel++]);
        admit(m);
        share(m);
    }
    free_machine(m);
    free(m);
    return DONE;
}

int64_t tracebed_evolving_size(void) { return (int64_t)sizeof(struct setup); }

/* Simulate the jobs together, or each alone on the machine from its start on. */
int tracebed_evolving_run(const struct setup *in) {
    if (!in->alone)
        return simulate(in, 0, in->jobs, in->start_order, in->starts, in->cancel_order, in->cancels);
    for (int64_t i = 0; i < in->starts; i++)
        if (simulate(in, in->start_order[i], 1, in->start_order + i, 1, NULL, 0) == NO_MEMORY) return NO_MEMORY;
    return DONE;
}
