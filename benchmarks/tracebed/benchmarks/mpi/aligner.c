/* The pipelined stand-in of HPG-aligner over MPI: workers, a manager and a writer are processes of their own (S. Iserte
   et al., the paper on the malleable HPG-aligner and the DMR API, figures 2 to 7, algorithms 1 to 3, listing 2).

       aligner VERSION OUTPUT READS CHUNKS INDEX_MIB [LEAST PREFERRED MOST]

   VERSION is `original` (figure 2: the parts of the workers are fixed at the start, there is no manager) or `malleable`
   (figures 3 and 4: the manager deals chunks to the workers). Of n processes, the last is the writer and, in the
   malleable version, the last but one the manager. In an iteration of the malleable version each worker gets a chunk;
   then all processes check the status. CHUNKS is the number of chunks; 0: four times the largest number of workers. In
   the original version it is the number of workers.

   A read takes a unit of PILS. A read with a number divisible by BLOCK also sums a part of the index, which is the
   common data. The worker data count splices. All sums are modulo 2^64, so neither the number of processes nor their
   changes change them, and the program fails if a read is lost or aligned twice. Waits of MPI sleep in between, so that
   a process that waits takes no CPU from one that computes. */
#include <mpi.h>
#include "tracebed_dmr.h"
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>

uint64_t tracebed_pils_units(uint64_t first, uint64_t units); /* kernels/pils.c */

enum { MIB = 1 << 20, BLOCK = 256, PART = 4096, JUNCTIONS = 1024, LEAST_NS = 20000, MOST_NS = 1000000 };
enum { READY = 1, INDEX, ALIGNED, SPLICES, TOTALS }; /* tags */

typedef struct {
    uint64_t chunk, reads, checksum; /* as an alignment: of a chunk, or STOP; as totals: number of chunks, sums */
} result;
static const uint64_t STOP = UINT64_MAX;

static struct {
    int malleable, chunks, least, preferred, most;
    uint64_t reads;
    const char *output;
    size_t size;
} given;
static unsigned char *cdata;        /* the index */
static uint64_t wdata[JUNCTIONS];   /* the splices of this worker */
static result written;              /* of the writer */

/* Sleeps between two looks at a message, and stores the next, longer pause. MPI would use the CPU meanwhile. */
static void sleep_for(long *pause_ns) {
    const struct timespec pause = {0, *pause_ns};
    nanosleep(&pause, NULL);
    *pause_ns = *pause_ns * 2 < MOST_NS ? *pause_ns * 2 : MOST_NS;
}

static void await(int count, MPI_Request *requests) {
    long pause_ns = LEAST_NS;
    int done = 0;
    for (;;) {
        MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
        if (done) return;
        sleep_for(&pause_ns);
    }
}

/* Probes first: see tracebed_dmr.h. */
static void receive(void *data, int count, int from, int tag, MPI_Comm comm) {
    long pause_ns = LEAST_NS;
    MPI_Status status;
    int arrived = 0;
    for (;;) {
        MPI_Iprobe(from, tag, comm, &arrived, &status);
        if (arrived) break;
        sleep_for(&pause_ns);
    }
    MPI_Recv(data, count, MPI_UINT64_T, status.MPI_SOURCE, tag, comm, MPI_STATUS_IGNORE);
}

static void send_to(const void *data, int count, int to, int tag, MPI_Comm comm) {
    MPI_Request request;
    MPI_Isend(data, count, MPI_UINT64_T, to, tag, comm, &request);
    await(1, &request);
}

static void barrier(MPI_Comm comm) {
    MPI_Request request;
    MPI_Ibarrier(comm, &request);
    await(1, &request);
}

static void make_index(void) {
    uint64_t x = 88172645463325252u;
    size_t i;
    for (i = 0; i < given.size; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift64 (Marsaglia 2003) */
        cdata[i] = (unsigned char)x;
    }
}

/* Aligns the reads of a chunk. */
static result align(uint64_t chunk) {
    uint64_t first = given.reads * chunk / (uint64_t)given.chunks;
    uint64_t end = given.reads * (chunk + 1) / (uint64_t)given.chunks, read;
    result found = {chunk, end - first, tracebed_pils_units(first, end - first)};
    for (read = (first + BLOCK - 1) / BLOCK * BLOCK; read < end; read += BLOCK) {
        size_t i, place = (size_t)(read / BLOCK * 40503 % (given.size - PART + 1));
        for (i = 0; i < PART; i++) found.checksum += (uint64_t)(i + 1) * cdata[place + i];
    }
    wdata[chunk % JUNCTIONS] += found.checksum;
    return found;
}

static void write_to_disk(FILE *file, const result *aligned) {
    written.chunk += 1;
    written.reads += aligned->reads;
    written.checksum += aligned->checksum;
    if (fprintf(file, "%ju %ju %016jx\n", (uintmax_t)aligned->chunk, (uintmax_t)aligned->reads,
                (uintmax_t)aligned->checksum) < 0) {
        perror(given.output);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Algorithm 1: an iteration of the manager, which deals the chunks from `first` to `end`. */
static void manage(uint64_t first, uint64_t end, int workers, MPI_Comm comm) {
    uint64_t chunk, who, *ids = calloc((size_t)workers, sizeof *ids);
    MPI_Request *requests = calloc(2 * (size_t)workers, sizeof *requests);
    int worker;
    if (ids == NULL || requests == NULL) MPI_Abort(comm, 1);
    for (chunk = first; chunk < end; chunk++) {
        receive(&who, 1, MPI_ANY_SOURCE, READY, comm);
        send_to(&chunk, 1, (int)who, INDEX, comm);
    }
    for (worker = 0; worker < workers; worker++) {
        MPI_Irecv(&ids[worker], 1, MPI_UINT64_T, worker, READY, comm, &requests[2 * worker]);
        MPI_Isend(&STOP, 1, MPI_UINT64_T, worker, INDEX, comm, &requests[2 * worker + 1]);
    }
    await(2 * workers, requests);
    free(ids);
    free(requests);
}

/* Algorithm 2: an iteration of a worker. */
static void work(int rank, int manager, int writer, MPI_Comm comm) {
    const result stop = {STOP, 0, 0};
    uint64_t own = (uint64_t)rank, chunk;
    result aligned;
    for (;;) {
        send_to(&own, 1, manager, READY, comm);
        receive(&chunk, 1, manager, INDEX, comm);
        if (chunk == STOP) {
            send_to(&stop, 3, writer, ALIGNED, comm);
            return;
        }
        aligned = align(chunk);
        send_to(&aligned, 3, writer, ALIGNED, comm);
    }
}

/* Algorithm 3: an iteration of the writer. */
static void write_iteration(int workers, int first_time, MPI_Comm comm) {
    FILE *file = fopen(given.output, first_time ? "w" : "a");
    int stopped = 0;
    result aligned;
    if (file == NULL) {
        perror(given.output);
        MPI_Abort(comm, 1);
    }
    while (stopped < workers) {
        receive(&aligned, 3, MPI_ANY_SOURCE, ALIGNED, comm);
        if (aligned.chunk == STOP)
            stopped++;
        else
            write_to_disk(file, &aligned);
    }
    if (fclose(file) != 0) {
        perror(given.output);
        MPI_Abort(comm, 1);
    }
}

/* Figure 6: the worker data of all workers are merged along a binary tree into those of process 0. */
static void merge_in_rank0(int rank, int workers, MPI_Comm comm) {
    uint64_t other[JUNCTIONS];
    int distance, i;
    for (distance = 1; distance < workers; distance *= 2) {
        if (rank % (2 * distance) == distance) {
            send_to(wdata, JUNCTIONS, rank - distance, SPLICES, comm);
            memset(wdata, 0, sizeof wdata);
            return;
        }
        if (rank + distance < workers) {
            receive(other, JUNCTIONS, rank + distance, SPLICES, comm);
            for (i = 0; i < JUNCTIONS; i++) wdata[i] += other[i];
        }
    }
}

/* Figures 5 and 7: the data that a change moves, and the next chunk `next`. The processes that stay keep theirs. */
static void redistribute(tb_dmr *d, uint64_t *next) {
    int rank, other, manager = d->before - 2, writer = d->before - 1, half = d->before + (d->size - d->before) / 2;
    MPI_Comm_rank(d->handler, &rank);
    if (d->joined) { /* the first half of the new processes gets the common data from the manager */
        other = rank < half ? manager : writer;
        tb_dmr_from(d, other, cdata, (int)given.size, MPI_BYTE);
        tb_dmr_from(d, other, next, 1, MPI_UINT64_T);
    } else if (d->size > d->before && rank >= manager) {
        int first = rank == manager ? d->before : half, end = rank == manager ? half : d->size;
        for (other = first; other < end; other++) {
            tb_dmr_onto(d, other, cdata, (int)given.size, MPI_BYTE);
            tb_dmr_onto(d, other, next, 1, MPI_UINT64_T);
        }
    }
    if (rank == writer) /* the last of the processes after the change is the writer */
        tb_dmr_onto(d, d->size - 1, &written, 3, MPI_UINT64_T);
    else if (rank == d->size - 1)
        tb_dmr_from(d, writer, &written, 3, MPI_UINT64_T);
}

/* Listing 2. Returns 0 if this process is released. */
static int run_malleable(tb_dmr *d, uint64_t next) {
    MPI_Comm handler;
    tb_dmr_action action;
    int size, rank, after;
    uint64_t end;
    for (;;) {
        MPI_Comm_rank(d->comm, &rank);
        MPI_Comm_size(d->comm, &size);
        end = next + (uint64_t)(size - 2); /* as many chunks as there are workers now */
        if (end > (uint64_t)given.chunks) end = (uint64_t)given.chunks;
        if (rank < size - 2)
            work(rank, size - 2, size - 1, d->comm);
        else if (rank == size - 2)
            manage(next, end, size - 2, d->comm);
        else
            write_iteration(size - 2, next == 0, d->comm);
        next = end;
        if (next == (uint64_t)given.chunks) return 1;
        barrier(d->comm); /* the malleability point */
        action = tb_dmr_check_status(d, given.least, given.most, given.preferred, &after, &handler);
        if (action == TB_DMR_NONE) continue;
        if (action == TB_DMR_SHRINK && rank < size - 2) merge_in_rank0(rank, size - 2, d->comm);
        if (rank == 0) printf("%d to %d processes before chunk %ju\n", size, after, (uintmax_t)next), fflush(stdout);
        redistribute(d, &next);
        if (!tb_dmr_resume(d)) return 0;
    }
}

/* Figure 2: each worker has one part of the reads, and the writer writes what the workers send. */
static void run_original(int rank, int workers, MPI_Comm comm) {
    const result stop = {STOP, 0, 0};
    result aligned;
    if (rank == workers) {
        write_iteration(workers, 1, comm);
        return;
    }
    aligned = align((uint64_t)rank);
    send_to(&aligned, 3, workers, ALIGNED, comm);
    send_to(&stop, 3, workers, ALIGNED, comm);
}

/* The CPU time of this process, s. */
static double cpu_time(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* Merges the worker data, and prints the result, which has to agree with what was written. */
static void finish(MPI_Comm comm, double begun, double cpu_s) {
    uint64_t sum = 0;
    double all_s = 0;
    int rank, size, i;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    if (rank < size - 1 - given.malleable) merge_in_rank0(rank, size - 1 - given.malleable, comm);
    if (rank == size - 1) send_to(&written, 3, 0, TOTALS, comm);
    if (rank == 0) {
        receive(&written, 3, size - 1, TOTALS, comm);
        begun = MPI_Wtime() - begun;
        for (i = 0; i < JUNCTIONS; i++) sum += wdata[i];
        if (sum != written.checksum || written.reads != given.reads || written.chunk != (uint64_t)given.chunks) {
            fprintf(stderr, "aligner: %ju reads in %ju chunks were written, expected %ju in %d; splices %016jx, "
                    "alignments %016jx\n", (uintmax_t)written.reads, (uintmax_t)written.chunk,
                    (uintmax_t)given.reads, given.chunks, (uintmax_t)sum, (uintmax_t)written.checksum);
            MPI_Abort(comm, 1);
        }
    }
    cpu_s = rank < size - 1 - given.malleable ? cpu_time() - cpu_s : 0; /* of the workers */
    MPI_Reduce(&cpu_s, &all_s, 1, MPI_DOUBLE, MPI_SUM, 0, comm);
    if (rank == 0)
        printf("{\"processes\":%d,\"chunks\":%d,\"reads\":%ju,\"checksum\":\"%016jx\",\"seconds\":%.6f,"
               "\"cpu_s\":%.6f}\n", size, given.chunks, (uintmax_t)given.reads, (uintmax_t)sum, begun, all_s);
}

int main(int argc, char **argv) {
    tb_dmr d;
    uint64_t next = 0;
    double begun, cpu_s;
    int rank, size, goes_on = 1;
    MPI_Init(&argc, &argv);
    tb_dmr_start(&d, argv);
    MPI_Comm_size(d.joined ? d.handler : d.comm, &size);
    MPI_Comm_rank(d.joined ? d.handler : d.comm, &rank);
    given.malleable = argc == 9 && strcmp(argv[1], "malleable") == 0;
    if (!given.malleable && !(argc == 6 && strcmp(argv[1], "original") == 0)) {
        fprintf(stderr, "usage: aligner original|malleable OUTPUT READS CHUNKS INDEX_MIB [LEAST PREFERRED MOST]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    given.output = argv[2];
    given.reads = strtoull(argv[3], NULL, 10);
    given.size = (size_t)strtoull(argv[5], NULL, 10) * MIB;
    if (given.malleable) {
        given.least = atoi(argv[6]), given.preferred = atoi(argv[7]), given.most = atoi(argv[8]);
        given.chunks = atoi(argv[4]) > 0 ? atoi(argv[4]) : 4 * (given.most - 2);
    } else {
        given.chunks = size - 1;
    }
    if (size < 2 + given.malleable || (given.malleable && given.least < 3) || given.size < PART ||
        given.size > INT32_MAX || given.chunks < 1) {
        fprintf(stderr, "aligner: %d processes, at least %d, or an index of %zu bytes are invalid; the malleable "
                "version needs 3 processes: a worker, the manager and the writer\n", size, given.least, given.size);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    cdata = malloc(given.size);
    if (cdata == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    if (d.joined) {
        redistribute(&d, &next);
        tb_dmr_resume(&d);
    } else {
        make_index();
        barrier(d.comm);
    }
    begun = MPI_Wtime();
    cpu_s = cpu_time();
    if (given.malleable)
        goes_on = run_malleable(&d, next);
    else
        run_original(rank, size - 1, d.comm);
    if (goes_on) finish(d.comm, begun, cpu_s);
    tb_dmr_end(&d);
    free(cdata);
    MPI_Finalize();
    return 0;
}
