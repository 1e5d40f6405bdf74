/* Checks of the status, as dmr_check_status of the DMR API (S. Iserte et al., the paper on the malleable HPG-aligner,
   listings 1 and 2), for C and C++ programs on Linux. The header needs no library.

   A program that changes its own threads or processes checks at each malleability point:

       if (tb_dmr_request(size, 2, 8, 4, &size) != TB_DMR_NONE)   // least, most, preferred size
           use(size);

   A program of MPI includes mpi.h before this header. Its processes spawn new ones, or release some of them:

       MPI_Init(&argc, &argv);
       tb_dmr d;
       tb_dmr_start(&d, argv);                 // d.comm: the processes that compute
       if (d.joined)
           redistribute(&d, &data), tb_dmr_resume(&d);
       for (...) {
           ...                                 // an iteration; a spawned process begins with one
           if (tb_dmr_check_status(&d, 2, 8, 4, &size, &handler) != TB_DMR_NONE) {
               redistribute(&d, &data);        // from d.before to d.size processes of `handler`
               if (!tb_dmr_resume(&d)) break;  // this process is released
           }
       }
       tb_dmr_end(&d);
       MPI_Finalize();

   DMR starts all processes again. Here the processes that stay go on: `handler` has the processes before the change
   first, in their order, and then the new ones. The processes below `size` stay. A pragma "inout(data) onto(handler,
   r)" of DMR is tb_dmr_onto in the process that has the data, and tb_dmr_from in process r. In one and the same process
   both do nothing, because its data stay. All of MPI may be used on `handler` as well. MPICH 5.0.2 loses a message
   between merged groups that arrives before its receive from MPI_ANY_SOURCE: probe, and receive from the source found.

   Without a resource manager (TRACEBED_DMR) the program is rigid: no check changes anything. */
#ifndef TRACEBED_DMR_H
#define TRACEBED_DMR_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

typedef enum { TB_DMR_NONE = 0, TB_DMR_EXPAND = 1, TB_DMR_SHRINK = 2 } tb_dmr_action;

enum { TB_DMR_ANSWER_S = 10, TB_DMR_LONGEST = 4096 }; /* longest wait for an answer, s; longest answer, bytes */

/* Sends a request of a line to the resource manager, and reads its line. Returns the size in it, or -1. */
static inline int tb_dmr_ask(const char *path, const char *request, char *answer) {
    struct sockaddr_un address;
    struct timeval longest = {TB_DMR_ANSWER_S, 0};
    size_t sent = 0, length = strlen(request), used = 0;
    ssize_t count = 1;
    const char *size;
    int link = -1;
    answer[0] = '\0';
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    errno = ENAMETOOLONG;
    if (strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link < 0) return -1;
    setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
    setsockopt(link, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
    if (connect(link, (struct sockaddr *)&address, sizeof address) != 0) count = -1;
    while (count > 0 && sent < length) {
        count = send(link, request + sent, length - sent, MSG_NOSIGNAL);
        sent += count > 0 ? (size_t)count : 0;
    }
    while (count > 0 && used + 1 < TB_DMR_LONGEST && memchr(answer, '\n', used) == NULL) {
        count = recv(link, answer + used, TB_DMR_LONGEST - 1 - used, 0);
        used += count > 0 ? (size_t)count : 0;
    }
    if (count == 0) errno = ECONNRESET;
    close(link);
    answer[used] = '\0';
    size = count > 0 ? strstr(answer, "\"size\":") : NULL;
    return size == NULL ? -1 : atoi(size + strlen("\"size\":"));
}

/* Requests a change of `size` threads or processes at a malleability point. The program can have `least` to `most` of
   them, and prefers `preferred`. Stores the new size in `after`. The change is complete when the next request has the
   new size as its size. Without an answer the program keeps its size, with a line on standard error. */
static inline tb_dmr_action tb_dmr_request(int size, int least, int most, int preferred, int *after) {
    const char *path = getenv("TRACEBED_DMR");
    char request[128], answer[TB_DMR_LONGEST] = "the sizes are invalid";
    int found = -1;
    *after = size;
    if (path == NULL || *path == '\0') return TB_DMR_NONE;
    snprintf(request, sizeof request, "{\"size\":%d,\"least\":%d,\"preferred\":%d,\"most\":%d}\n", size, least,
             preferred, most);
    errno = 0;
    found = tb_dmr_ask(path, request, answer);
    if (found < 1) {
        fprintf(stderr, "tracebed: the resource manager %s does not answer the check %.*s: %s\n", path,
                (int)strcspn(request, "\n"), request, *answer != '\0' ? answer : strerror(errno));
        return TB_DMR_NONE;
    }
    *after = found;
    return found > size ? TB_DMR_EXPAND : found < size ? TB_DMR_SHRINK : TB_DMR_NONE;
}

#ifdef MPI_VERSION
enum { TB_DMR_TAG = 19937 }; /* of tb_dmr_onto */

typedef struct {
    MPI_Comm comm;    /* the processes that compute; MPI_COMM_NULL: not yet, or no longer */
    int joined;       /* a check has started this process, and the change is not complete */
    MPI_Comm handler; /* during a change: the processes before it and after it */
    int before, size; /* the numbers of processes before and after the change */
    char **argv;
    MPI_Request *sends;
    int count;
} tb_dmr;

/* Begins, after MPI_Init. `argv` of main: spawned processes run the same program with the same arguments. */
static inline void tb_dmr_start(tb_dmr *d, char **argv) {
    MPI_Comm parent;
    int sizes[2];
    memset(d, 0, sizeof *d);
    d->argv = argv;
    d->comm = d->handler = MPI_COMM_NULL;
    MPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL) {
        MPI_Comm_dup(MPI_COMM_WORLD, &d->comm);
        MPI_Comm_size(d->comm, &d->size);
        d->before = d->size;
        return;
    }
    MPI_Intercomm_merge(parent, 1, &d->handler);
    MPI_Bcast(sizes, 2, MPI_INT, 0, d->handler);
    MPI_Comm_free(&parent);
    d->before = sizes[0];
    d->size = sizes[1];
    d->joined = 1;
}

/* Spawns processes until there are d->size, and merges them behind those before. */
static inline void tb_dmr_spawn(tb_dmr *d) {
    MPI_Comm spawned;
    int sizes[2] = {d->before, d->size};
    MPI_Comm_spawn(d->argv[0], d->argv + 1, d->size - d->before, MPI_INFO_NULL, 0, d->comm, &spawned,
                   MPI_ERRCODES_IGNORE);
    MPI_Intercomm_merge(spawned, 0, &d->handler);
    MPI_Bcast(sizes, 2, MPI_INT, 0, d->handler);
    MPI_Comm_free(&spawned);
}

/* Checks the status at a malleability point, in all processes of d->comm. Returns the action, and stores the new number
   of processes and the communicator of the change. After an action, the data move, and tb_dmr_resume follows. */
static inline tb_dmr_action tb_dmr_check_status(tb_dmr *d, int least, int most, int preferred, int *size,
                                                MPI_Comm *handler) {
    int rank, answer[2] = {TB_DMR_NONE, 0};
    MPI_Comm_rank(d->comm, &rank);
    MPI_Comm_size(d->comm, &d->before);
    if (rank == 0) answer[0] = (int)tb_dmr_request(d->before, least, most, preferred, &answer[1]);
    MPI_Bcast(answer, 2, MPI_INT, 0, d->comm);
    *size = d->size = answer[1];
    if (answer[0] == TB_DMR_EXPAND)
        tb_dmr_spawn(d);
    else if (answer[0] == TB_DMR_SHRINK)
        MPI_Comm_dup(d->comm, &d->handler);
    *handler = d->handler;
    return (tb_dmr_action)answer[0];
}

/* Conveys data to process `rank` of the handler, as onto(handler, rank). They must not change before tb_dmr_resume. */
static inline void tb_dmr_onto(tb_dmr *d, int rank, const void *data, int count, MPI_Datatype type) {
    int own;
    MPI_Comm_rank(d->handler, &own);
    if (rank == own) return;
    d->sends = (MPI_Request *)realloc(d->sends, (size_t)(d->count + 1) * sizeof *d->sends);
    if (d->sends == NULL) MPI_Abort(d->handler, 1);
    MPI_Isend(data, count, type, rank, TB_DMR_TAG, d->handler, &d->sends[d->count++]);
}

/* Receives the data that process `rank` of the handler conveys to this one, in the order in which it conveys them. */
static inline void tb_dmr_from(tb_dmr *d, int rank, void *data, int count, MPI_Datatype type) {
    int own;
    MPI_Comm_rank(d->handler, &own);
    if (rank != own) MPI_Recv(data, count, type, rank, TB_DMR_TAG, d->handler, MPI_STATUS_IGNORE);
}

/* Completes a change, in all processes of the handler. Returns 1 if this process goes on, 0 if it is released. */
static inline int tb_dmr_resume(tb_dmr *d) {
    MPI_Comm next = d->handler;
    int rank, stays;
    MPI_Waitall(d->count, d->sends, MPI_STATUSES_IGNORE);
    free(d->sends);
    d->sends = NULL;
    d->count = d->joined = 0;
    MPI_Comm_rank(d->handler, &rank);
    stays = rank < d->size;
    if (d->size < d->before) {
        MPI_Comm_split(d->handler, stays ? 0 : MPI_UNDEFINED, rank, &next);
        MPI_Comm_free(&d->handler);
    }
    if (d->comm != MPI_COMM_NULL) MPI_Comm_free(&d->comm);
    d->comm = next;
    d->handler = MPI_COMM_NULL;
    return stays;
}

/* Ends, before MPI_Finalize. */
static inline void tb_dmr_end(tb_dmr *d) {
    if (d->comm != MPI_COMM_NULL) MPI_Comm_free(&d->comm);
}
#endif
#endif
