/* Lets programs follow the table of CPUs of their node without a change of their code (see __init__.py). The library is
   loaded by LD_PRELOAD, or as a tool of OpenMP by OMP_TOOL_LIBRARIES. It polls

   - when a parallel region of OpenMP begins: as a tool of LLVM's libomp (OMPT), and by the entry points of GNU's
     libgomp, which knows no tools;
   - when a blocking call of MPI begins;
   - from a thread of its own, if TRACEBED_DROM_THREAD is set: the pause between two polls, ms.

   A poll binds all threads of the process to its CPUs before other processes can take the released CPUs. Without a
   table, and with TRACEBED_DROM_AFFINITY, the library only gives each parallel region as many threads as the process
   has CPUs: others bind its threads. The library depends on no header of OpenMP or MPI: it passes the arguments on as
   they are, see decision 044. */
#include "../include/tracebed_malleable.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <time.h>

enum { ROUNDS = 10 };            /* as in affinity.py */
enum { PAUSE_NS = 1000 * 1000 }; /* pause between two polls of a process without CPUs */
enum { LOOK_NS = 100 * 1000 };   /* least time between two looks at the table: some calls take 10 ns, a look 1 us */
enum { UNKNOWN, RIGID, MALLEABLE, BOUND /* by others */ };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a lock of the table belongs to the whole process */
static tb_malleable follower;
static int state = UNKNOWN;
static int threads;      /* number of threads of a parallel region */
static int most_threads; /* OMP_NUM_THREADS: programs may have sized their arrays by it; 0: not set */
static int may_wait;     /* whether the process waits if it loses its last CPU; otherwise it keeps its CPUs */

/* The table. */

static void pause_ns(long ns) {
    struct timespec length = {ns / 1000000000, ns % 1000000000};
    nanosleep(&length, NULL);
}

/* Binds all threads of this process. A thread that starts meanwhile inherits the CPUs of the thread that starts it, so
   the threads are listed again until all are bound. */
static int bind_threads(const cpu_set_t *cpus) {
    cpu_set_t found;
    int round, changed = 1, failed = 0;
    if (CPU_COUNT(cpus) == 0) return may_wait ? 0 : -1;
    for (round = 0; changed && !failed && round < ROUNDS; round++) {
        DIR *tasks = opendir("/proc/self/task");
        struct dirent *task;
        if (tasks == NULL) return -1;
        changed = 0;
        while (!failed && (task = readdir(tasks)) != NULL) {
            int id = atoi(task->d_name);
            if (id <= 0 || sched_getaffinity(id, sizeof found, &found) != 0 || CPU_EQUAL(&found, cpus)) continue;
            if (sched_setaffinity(id, sizeof *cpus, cpus) == 0)
                changed = 1;
            else
                failed = errno != ESRCH; /* the thread has ended */
        }
        closedir(tasks);
    }
    return failed ? -1 : 0;
}

/* Ends a poll under the lock: a process that may wait has a CPU afterwards, unless the table is lost. */
static void adopted(int result) {
    while (result >= 0 && tb_cpus(&follower) == 0) {
        pause_ns(PAUSE_NS);
        result = tb_posted(&follower) ? tb_take(&follower, NULL) : 0;
    }
    threads = tb_cpus(&follower);
    if (most_threads > 0 && threads > most_threads) threads = most_threads;
    if (threads == 0) threads = 1;
}

/* Registers this process, once, with the CPUs `requested` of those prepared for its parent (NULL: all). */
static int attach(const cpu_set_t *requested) {
    int found = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    const char *most = getenv("OMP_NUM_THREADS");
    if (found != UNKNOWN) return found != RIGID;
    pthread_mutex_lock(&lock);
    if (state == UNKNOWN) {
        most_threads = most == NULL ? 0 : atoi(most);
        may_wait = 1;
        follower.adopt = bind_threads;
        found = tb_attach_cpus(&follower, requested) ? MALLEABLE : RIGID;
        if (found == MALLEABLE) adopted(0);
        if (found == RIGID && getenv("TRACEBED_DROM_AFFINITY") != NULL) found = BOUND;
        __atomic_store_n(&state, found, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return state != RIGID;
}

/* Releases and takes CPUs. If another thread does so already, this one goes on. */
static void follow(int waits) {
    if ((state == MALLEABLE && !tb_posted(&follower)) || pthread_mutex_trylock(&lock) != 0) return;
    may_wait = waits;
    if (state == MALLEABLE)
        adopted(tb_take(&follower, NULL));
    else if (sched_getaffinity(0, sizeof follower.cpus, &follower.cpus) == 0)
        adopted(-1);
    pthread_mutex_unlock(&lock);
}

/* Follows in a call of the program. */
static void follow_in_call(void) {
    static int64_t due;
    struct timespec now;
    int64_t ns;
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) < MALLEABLE) return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    ns = now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
    if (ns < __atomic_load_n(&due, __ATOMIC_RELAXED)) return;
    __atomic_store_n(&due, ns + LOOK_NS, __ATOMIC_RELAXED);
    follow(1);
}

/* A forked process holds no CPUs of its own: those of its parent are bound to it until it starts a program. */
static void forked(void) {
    pthread_mutex_init(&lock, NULL);
    state = RIGID;
}

static void *follow_for_ever(void *pause_ms) {
    for (;;) {
        pause_ns(*(long *)pause_ms * 1000000);
        follow(0);
    }
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    static long pause_ms;
    const char *pause = getenv("TRACEBED_DROM_THREAD");
    pthread_t thread;
    pthread_atfork(NULL, NULL, forked);
    if (pause == NULL || (pause_ms = atol(pause)) <= 0 || !attach(NULL) || state != MALLEABLE) return;
    if (pthread_create(&thread, NULL, follow_for_ever, &pause_ms) == 0) pthread_detach(thread);
}

/* Returns the function `name` of the library behind this one, `own`. It may be in a library that a module has loaded
   for itself. */
static void *next_function(const char *name, void *own) {
    void *found = dlsym(RTLD_NEXT, name), *handle = dlopen(NULL, RTLD_LAZY);
    struct link_map *map = NULL;
    if (found == NULL && handle != NULL && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0)
        for (; map != NULL && found == NULL; map = map->l_next) {
            void *library = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
            if (library != NULL) found = dlsym(library, name);
            if (found == own) found = NULL;
        }
    if (found == NULL) {
        fprintf(stderr, "tracebed: the program has called %s, which no library has\n", name);
        abort();
    }
    return found;
}

/* OpenMP. A nested region keeps the threads that the program gives it. */

/* Polls at the beginning of a parallel region. Returns its number of threads; 0: as the program chooses. */
static int threads_of_region(void) {
    static int (*level)(void);
    if (!attach(NULL)) return 0;
    if (level == NULL) level = (int (*)(void))next_function("omp_get_level", NULL);
    if (level() > 0) return 0;
    follow_in_call();
    return threads;
}

static void parallel_begins(void *task, const void *frame, void *parallel, unsigned requested, int flags,
                            const void *code) {
    static void (*set_threads)(int);
    int number = threads_of_region();
    (void)task, (void)frame, (void)parallel, (void)requested, (void)flags, (void)code;
    if (number == 0) return;
    if (set_threads == NULL) set_threads = (void (*)(int))next_function("omp_set_num_threads", NULL);
    set_threads(number);
}

enum { PARALLEL_BEGIN = 3 }; /* ompt_callback_parallel_begin */

static int initialize_tool(void *(*lookup)(const char *), int device, void *data) {
    int (*set_callback)(int, void (*)(void)) = (int (*)(int, void (*)(void)))lookup("ompt_set_callback");
    (void)device, (void)data;
    return set_callback != NULL && set_callback(PARALLEL_BEGIN, (void (*)(void))parallel_begins) > 0;
}

static void finalize_tool(void *data) { (void)data; }

/* Called by libomp (OpenMP 5.0, section 4.2.1). */
void *ompt_start_tool(unsigned version, const char *runtime) {
    static struct {
        int (*initialize)(void *(*)(const char *), int, void *);
        void (*finalize)(void *);
        uint64_t data;
    } tool = {initialize_tool, finalize_tool, 0};
    (void)version, (void)runtime;
    return attach(NULL) ? &tool : NULL;
}

/* Arguments are passed on as words: integers and pointers of C have a register or a word of the stack each. */
typedef uintptr_t word;

/* The entry points of parallel regions in libgomp (also in libomp): function, data, number of threads (0: no clause). A
   region with a clause polls, too, and keeps its number. */
#define REGION(name, PARAMETERS, ARGUMENTS)                                                 \
    word name PARAMETERS {                                                                  \
        static word(*next) PARAMETERS;                                                      \
        int number;                                                                         \
        if (next == NULL) next = (word(*) PARAMETERS)next_function(#name, (void *)name);    \
        number = threads_of_region();                                                       \
        if (n == 0) n = (word)number;                                                       \
        return next ARGUMENTS;                                                              \
    }
#define PLAIN_REGION(name) REGION(name, (word f, word d, word n, word flags), (f, d, n, flags))
#define LOOP(name) REGION(name, (word f, word d, word n, word b, word e, word i, word flags), (f, d, n, b, e, i, flags))
#define CHUNKED_LOOP(name) \
    REGION(name, (word f, word d, word n, word b, word e, word i, word c, word flags), (f, d, n, b, e, i, c, flags))
PLAIN_REGION(GOMP_parallel)
PLAIN_REGION(GOMP_parallel_reductions)
REGION(GOMP_parallel_sections, (word f, word d, word n, word count, word flags), (f, d, n, count, flags))
CHUNKED_LOOP(GOMP_parallel_loop_static)
CHUNKED_LOOP(GOMP_parallel_loop_dynamic)
CHUNKED_LOOP(GOMP_parallel_loop_guided)
CHUNKED_LOOP(GOMP_parallel_loop_nonmonotonic_dynamic)
CHUNKED_LOOP(GOMP_parallel_loop_nonmonotonic_guided)
LOOP(GOMP_parallel_loop_runtime)
LOOP(GOMP_parallel_loop_nonmonotonic_runtime)
LOOP(GOMP_parallel_loop_maybe_nonmonotonic_runtime)

/* MPI: calls that may wait for other processes. */

/* Registers a rank with its share of the CPUs that the launcher left to all ranks of the node. */
static void attach_rank(void) {
    const char *index = getenv("MPI_LOCALRANKID"), *count = getenv("MPI_LOCALNRANKS"); /* MPICH, Intel MPI */
    cpu_set_t own, share;
    int cpu, i, n, seen = 0, cpus;
    if (index == NULL || count == NULL)
        index = getenv("OMPI_COMM_WORLD_LOCAL_RANK"), count = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    i = index == NULL ? 0 : atoi(index);
    n = index == NULL || count == NULL ? 1 : atoi(count);
    if (n <= 1) {
        attach(NULL);
        return;
    }
    sched_getaffinity(0, sizeof own, &own);
    cpus = CPU_COUNT(&own);
    CPU_ZERO(&share);
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &own)) continue;
        if (seen >= cpus * i / n && seen < cpus * (i + 1) / n) CPU_SET(cpu, &share);
        seen++;
    }
    attach(CPU_COUNT(&share) ? &share : &own); /* the launcher has bound the ranks */
}

#define MPI(name, PARAMETERS, ARGUMENTS, BEFORE, AFTER)                                       \
    int MPI_##name PARAMETERS {                                                               \
        static int(*next) PARAMETERS;                                                         \
        int result;                                                                           \
        if (next == NULL) next = (int(*) PARAMETERS)next_function("PMPI_" #name, NULL);       \
        BEFORE;                                                                               \
        result = next ARGUMENTS;                                                              \
        AFTER;                                                                                \
        return result;                                                                        \
    }
#define CALL(name, PARAMETERS, ARGUMENTS) MPI(name, PARAMETERS, ARGUMENTS, follow_in_call(), (void)0)
#define CALL_1(name) CALL(name, (word a), (a))
#define CALL_2(name) CALL(name, (word a, word b), (a, b))
#define CALL_3(name) CALL(name, (word a, word b, word c), (a, b, c))
#define CALL_4(name) CALL(name, (word a, word b, word c, word d), (a, b, c, d))
#define CALL_5(name) CALL(name, (word a, word b, word c, word d, word e), (a, b, c, d, e))
#define CALL_6(name) CALL(name, (word a, word b, word c, word d, word e, word f), (a, b, c, d, e, f))
#define CALL_7(name) CALL(name, (word a, word b, word c, word d, word e, word f, word g), (a, b, c, d, e, f, g))
#define CALL_8(name) \
    CALL(name, (word a, word b, word c, word d, word e, word f, word g, word h), (a, b, c, d, e, f, g, h))
#define CALL_9(name) \
    CALL(name, (word a, word b, word c, word d, word e, word f, word g, word h, word i), (a, b, c, d, e, f, g, h, i))
#define CALL_12(name)                                                                                             \
    CALL(name, (word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l), \
         (a, b, c, d, e, f, g, h, i, j, k, l))
MPI(Init, (word a, word b), (a, b), (void)0, attach_rank())
MPI(Init_thread, (word a, word b, word c, word d), (a, b, c, d), (void)0, attach_rank())
CALL_1(Barrier)
CALL_2(Wait)
CALL_3(Waitall)
CALL_4(Waitany)
CALL_5(Waitsome)
CALL_4(Probe)
CALL_6(Send)
CALL_6(Ssend)
CALL_7(Recv)
CALL_9(Sendrecv_replace)
CALL_12(Sendrecv)
CALL_5(Bcast)
CALL_7(Reduce)
CALL_6(Allreduce)
CALL_6(Reduce_scatter)
CALL_6(Reduce_scatter_block)
CALL_6(Scan)
CALL_6(Exscan)
CALL_8(Gather)
CALL_9(Gatherv)
CALL_8(Scatter)
CALL_9(Scatterv)
CALL_7(Allgather)
CALL_8(Allgatherv)
CALL_7(Alltoall)
CALL_9(Alltoallv)
CALL_9(Alltoallw)
