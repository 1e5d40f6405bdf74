/* The state of the machine, and memory. Part of evolving.c. */

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
    int64_t jobs, dimensions, side0, side1, side2, torus, cores, synchronous, leak, waits, joins_release, by_nodes, alone, starts, cancels;
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
    int32_t ended, is_first;
};

struct on_link { int32_t activity, hop; };

struct link {
    struct on_link *on;
    double left;                                        /* bandwidth left */
    int32_t count, room, open, dirty, seen, place;      /* open: messages without a rate; place: in `component` */
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
    int64_t count_nodes, count_links, longest, activities, idle_cores, idle_nodes;
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
    double *shares;                                     /* bandwidth left per open message, of each link of `component` */
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
