/* Simulation of programs on a machine. reference.py says what it does and is its reference: all times are the same to
 * the bit, because every sum is made in the same order. Only the nodes and links concerned are looked at here, and
 * activities end in the order of a heap. */
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef TRACEBED_CHECK
#include <assert.h>
#else
#define assert(condition) ((void)0)
#endif

enum kind { COMPUTE, SEND, RECEIVE, FORK, JOIN };
enum leak { STATIC, CONTIGUOUS, NONCONTIGUOUS };
enum outcome { DONE, NO_MEMORY };
enum type { COMPUTING, DELAYED, FLOWING };
enum { SENT = 1, AWAITED = 2, TRAVELS = 4, ARRIVED = 8 };

/* The fields of `Setup` in compiled.py, in the same order; each has 8 bytes. */
struct setup {
    int64_t jobs, dimensions, side0, side1, side2, torus, cores, synchronous, leak, waits, alone, starts, cancels;
    double bandwidth, latency;
    const int64_t *processes, *messages, *steps, *parent, *home, *kind, *argument, *sender, *receiver;
    const double *amount, *size;
    const int64_t *first_node, *nodes;                  /* the nodes of the jobs; not read if leak */
    const int64_t *neighbour, *neighbours;              /* first neighbor of each node; the neighbors */
    const int64_t *snake, *entry;                       /* the nodes as searched; where each job begins in them */
    const double *start, *cancel;
    const int64_t *start_order, *cancel_order;          /* jobs in the order of their starts and cancellations */
    double *started, *ended, *work, *held;
    uint8_t *accepted, *completed;
};

struct activity {
    double amount, since, rate, end;
    int64_t number;
    int32_t owner, heap, place, hops, fixed, type;      /* place: in the list of its node */
};

struct process {
    double core_since;
    int64_t step, last;
    int32_t job, node, joined_by, activity;
    int32_t ended;
};

struct on_link { int32_t activity, hop; };

struct link {
    struct on_link *on;
    double left, share;
    int32_t count, room, open, dirty, seen;
};

struct node {
    int32_t *computing;
    int32_t count, room, dirty;
};

struct held { int32_t *nodes, *cores; int32_t count, room; };

struct machine {
    const struct setup *in;
    jmp_buf out_of_memory;
    int64_t first_job, first_process, first_message, count_processes, count_messages, count_jobs;
    int64_t count_nodes, count_links, longest, activities, idle_cores;
    double now;
    struct process *process;
    uint8_t *message;
    int32_t *transfer;                                  /* the activity of each message that travels, or -1 */
    int64_t *alive;
    struct held *held;
    int64_t *idle, *waiting;                            /* jobs that wait for a core, in the order of their starts */
    int64_t waiting_count;
    struct node *node;
    struct link *link;
    int32_t *dirty_nodes, *dirty_links, *component, *ready;
    int64_t dirty_nodes_count, dirty_links_count, ready_first, ready_count;
    int32_t stamp;
    struct activity *activity;
    int32_t *route, *where;                             /* `longest` for each activity: links, and place on each */
    int32_t room, used, free_first;                     /* free activities are a list through `place` */
    int32_t *heap;
    int32_t heap_count;
};

static void *resized(struct machine *m, void *old, int64_t count, size_t size) {
    void *made = realloc(old, (size_t)(count > 0 ? count : 1) * size);
    if (!made) longjmp(m->out_of_memory, 1);
    return made;
}

static void *zeros(struct machine *m, int64_t count, size_t size) {
    void *made = calloc((size_t)(count > 0 ? count : 1), size);
    if (!made) longjmp(m->out_of_memory, 1);
    return made;
}

/* -- the heap of activities by (end, number) -------------------------------------------------------------------- */

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

/* -- activities ----------------------------------------------------------------------------------------------------- */

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

/* -- rates ---------------------------------------------------------------------------------------------------------- */

static void share_node(struct machine *m, struct node *node) {
    double rate = (double)m->in->cores / node->count;
    node->dirty = 0;
    for (int32_t i = 0; i < node->count; i++) run(m, node->computing[i], rate < 1.0 ? rate : 1.0);
}

/* Share the links that are connected with `first` by messages: max-min fairly. */
static void share_links(struct machine *m, int32_t first) {
    int64_t count = 0, flows = 0;
    int32_t *component = m->component;
    if (m->link[first].seen == m->stamp) return;
    m->link[first].seen = m->stamp;
    component[count++] = first;
    for (int64_t i = 0; i < count; i++) {
        struct link *link = &m->link[component[i]];
        link->left = m->in->bandwidth;
        link->open = link->count;
        if (link->count) link->share = link->left / link->open;
        for (int32_t j = 0; j < link->count; j++) {
            int32_t number = link->on[j].activity;
            struct activity *a = &m->activity[number];
            if (a->fixed == -m->stamp) continue;
            a->fixed = -m->stamp;
            flows++;
            for (int32_t hop = 0; hop < a->hops; hop++) {
                int32_t other = m->route[number * m->longest + hop];
                if (m->link[other].seen == m->stamp) continue;
                m->link[other].seen = m->stamp;
                component[count++] = other;
            }
        }
    }
    while (flows) {
        int32_t narrowest = -1;
        double rate = INFINITY;
        for (int64_t i = 0; i < count;) {
            struct link *link = &m->link[component[i]];
            if (!link->open) {
                component[i] = component[--count];
                continue;
            }
            if (link->share < rate || (link->share == rate && component[i] < narrowest)) {
                rate = link->share;
                narrowest = component[i];
            }
            i++;
        }
        assert(narrowest >= 0 && rate > 0.0);
        for (int32_t j = 0; j < m->link[narrowest].count; j++) {
            int32_t number = m->link[narrowest].on[j].activity;
            struct activity *a = &m->activity[number];
            if (a->fixed == m->stamp) continue;
            a->fixed = m->stamp;
            flows--;
            run(m, number, rate);
            for (int32_t hop = 0; hop < a->hops; hop++) {
                struct link *link = &m->link[m->route[number * m->longest + hop]];
                link->left -= rate;
                if (--link->open) link->share = link->left / link->open;
            }
        }
    }
}

static void share(struct machine *m) {
    for (int64_t i = 0; i < m->dirty_nodes_count; i++) share_node(m, &m->node[m->dirty_nodes[i]]);
    m->dirty_nodes_count = 0;
    m->stamp++;
    for (int64_t i = 0; i < m->dirty_links_count; i++) {
        m->link[m->dirty_links[i]].dirty = 0;
        share_links(m, m->dirty_links[i]);
    }
    m->dirty_links_count = 0;
}

/* -- nodes ---------------------------------------------------------------------------------------------------------- */

static int64_t next_of_snake(const struct machine *m, int64_t job) {
    for (int64_t i = 0; m->idle_cores && i < m->count_nodes; i++) {
        int64_t node = m->in->snake[(m->in->entry[job] + i) % m->count_nodes];
        if (m->idle[node]) return node;
    }
    return -1;
}

static int64_t beside(const struct machine *m, int64_t node) {
    if (m->idle[node]) return node;
    for (int64_t i = m->in->neighbour[node]; i < m->in->neighbour[node + 1]; i++)
        if (m->idle[m->in->neighbours[i]]) return m->in->neighbours[i];
    return -1;
}

static int64_t search(const struct machine *m, int64_t job, int64_t origin) {
    const struct held *held = &m->held[job - m->first_job];
    int64_t found = -1;
    if (!m->idle_cores) return -1;
    if (origin >= 0) found = beside(m, origin);
    for (int32_t i = 0; origin >= 0 && found < 0 && i < held->count; i++) found = beside(m, held->nodes[i]);
    if (found < 0 && (origin < 0 || m->in->leak == NONCONTIGUOUS)) found = next_of_snake(m, job);
    return found;
}

static void hold(struct machine *m, struct held *held, int64_t node) {
    int32_t at = 0;
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
        int64_t found = search(m, process->job, m->process[parent].node);
        process->node = found < 0 ? m->process[parent].node : (int32_t)found;
        if (found >= 0) {
            process->core_since = m->now;
            hold(m, &m->held[process->job - m->first_job], found);
        }
    }
    make_ready(m, number);
}

/* -- messages ------------------------------------------------------------------------------------------------------- */

static int64_t sender_of(const struct machine *m, int64_t message) {
    return m->in->sender[m->first_message + message] - m->first_process;
}

static int64_t receiver_of(const struct machine *m, int64_t message) {
    return m->in->receiver[m->first_message + message] - m->first_process;
}

/* Store the links from a node to another, as `Machine.route`, and return their number. */
static int32_t find_route(const struct machine *m, int64_t node, int64_t other, int32_t *links) {
    const int64_t sides[3] = {m->in->side0, m->in->side1, m->in->side2};
    int64_t at[3], end[3], stride[3], axis;
    int32_t count = 0;
    for (axis = m->in->dimensions - 1; axis >= 0; axis--) {
        stride[axis] = axis == m->in->dimensions - 1 ? 1 : stride[axis + 1] * sides[axis + 1];
        at[axis] = node / stride[axis] % sides[axis];
        end[axis] = other / stride[axis] % sides[axis];
    }
    for (axis = 0; axis < m->in->dimensions; axis++) {
        int64_t ahead = (end[axis] - at[axis] + sides[axis]) % sides[axis];
        int upwards = m->in->torus ? 2 * ahead <= sides[axis] : end[axis] > at[axis];
        while (at[axis] != end[axis]) {
            int64_t next = (at[axis] + (upwards ? 1 : -1) + sides[axis]) % sides[axis];
            assert(count < m->longest);
            links[count++] = (int32_t)((node * m->in->dimensions + axis) * 2 + upwards);
            node += (next - at[axis]) * stride[axis];
            at[axis] = next;
        }
    }
    return count;
}

static void arrive(struct machine *m, int64_t message) {
    m->message[message] |= ARRIVED;
    if (m->in->synchronous) make_ready(m, sender_of(m, message));
    if (m->message[message] & AWAITED) make_ready(m, receiver_of(m, message));
}

static void flow(struct machine *m, int64_t message) {
    int64_t from = m->process[sender_of(m, message)].node, to = m->process[receiver_of(m, message)].node;
    double size = m->in->size[m->first_message + message];
    if (from == to || size <= 0.0) {
        arrive(m, message);
        return;
    }
    int32_t number = new_activity(m, FLOWING, message, size);
    struct activity *a = &m->activity[number];
    m->transfer[message] = number;
    a->hops = find_route(m, from, to, m->route + number * m->longest);
    for (int32_t hop = 0; hop < a->hops; hop++) {
        int32_t id = m->route[number * m->longest + hop];
        struct link *link = &m->link[id];
        if (link->count == link->room) {
            int32_t room = link->room ? 2 * link->room : 8;
            link->on = resized(m, link->on, room, sizeof *link->on);
            link->room = room;
        }
        m->where[number * m->longest + hop] = link->count;
        link->on[link->count++] = (struct on_link){number, hop};
        touch_link(m, id);
    }
}

static void begin_transfer(struct machine *m, int64_t message) {
    uint8_t state = m->message[message];
    int64_t from, to;
    if (state & TRAVELS || !(state & SENT) || m->process[receiver_of(m, message)].node < 0) return;
    if (m->in->synchronous && !(state & AWAITED)) return;
    m->message[message] |= TRAVELS;
    from = m->process[sender_of(m, message)].node;
    to = m->process[receiver_of(m, message)].node;
    if (m->in->latency > 0.0 && from != to) {
        int32_t number = new_activity(m, DELAYED, message, 0.0);
        int32_t hops = find_route(m, from, to, m->route + number * m->longest);
        m->activity[number].amount = m->in->latency * hops;
        m->transfer[message] = number;
        run(m, number, 1.0);
    } else {
        flow(m, message);
    }
}

/* -- processes ------------------------------------------------------------------------------------------------------ */

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
        return m->process[argument - m->first_process].ended;
    }
    argument -= m->first_message;
    if (m->message[argument] & ARRIVED) return 1;
    m->message[argument] |= kind == SEND ? SENT : AWAITED;
    begin_transfer(m, argument);
    return kind == SEND && !m->in->synchronous;
}

static void end_process(struct machine *m, struct process *process) {
    process->ended = 1;
    release(m, process);
    if (process->joined_by >= 0) make_ready(m, process->joined_by);
    if (--m->alive[process->job - m->first_job]) return;
    m->in->ended[process->job] = m->now;
    m->in->completed[process->job] = 1;
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

/* -- jobs ----------------------------------------------------------------------------------------------------------- */

static void begin(struct machine *m, int64_t job) {
    int64_t first = m->in->processes[job] - m->first_process, end = m->in->processes[job + 1] - m->first_process;
    m->in->started[job] = m->now;
    m->alive[job - m->first_job] = end - first;
    for (int64_t number = first; number < end; number++)
        if (m->in->parent[m->first_process + number] < 0) place(m, number, first);
}

static int is_full(const struct machine *m) { return m->in->leak && !m->idle_cores; }

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
    m->component = zeros(m, m->count_links, sizeof *m->component);
    m->ready = zeros(m, m->count_processes, sizeof *m->ready);
    for (int64_t i = 0; i < m->count_nodes; i++) m->idle[i] = in->cores;
    for (int64_t i = 0; i < m->count_messages; i++) m->transfer[i] = -1;
    for (int64_t job = m->first_job; job < last_job; job++)
        for (int64_t i = in->processes[job]; i < in->processes[job + 1]; i++)
            m->process[i - m->first_process] = (struct process){
                .core_since = NAN, .step = in->steps[i], .last = in->steps[i + 1], .job = (int32_t)job,
                .node = -1, .joined_by = -1, .activity = -1};
}

static void free_machine(struct machine *m) {
    for (int64_t i = 0; m->held && i < m->count_jobs; i++) {
        free(m->held[i].nodes);
        free(m->held[i].cores);
    }
    for (int64_t i = 0; m->node && i < m->count_nodes; i++) free(m->node[i].computing);
    for (int64_t i = 0; m->link && i < m->count_links; i++) free(m->link[i].on);
    void *blocks[] = {m->process, m->message, m->transfer, m->alive, m->held, m->idle, m->waiting, m->node, m->link,
                      m->dirty_nodes, m->dirty_links, m->component, m->ready, m->activity, m->route, m->where, m->heap};
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
