/* The administrator's half of DROM for C and C++ programs on Linux, such as schedulers:

       tb_table node;
       tb_open(&node, path);                                // DROM_Attach; tb_create makes the table of a node
       count = tb_pids(&node, pids, most);                  // DROM_GetPidList
       tb_mask_of(&node, pids[0], &cpus);                   // DROM_GetProcessMask
       CPU_CLR(3, &cpus);
       tb_set_mask(&node, pids[0], &cpus, 0);               // DROM_SetProcessMask; TB_NOTED: once the process polls
       tb_close(&node);                                     // DROM_Detach

   Results and flags are those of drom.py (tracebed_table.h lists them). No call waits for a process: TB_NOTED says that
   processes must poll first, and tb_mask_of returns TB_SUCCESS once they have. The threads of a scheduler must exclude
   each other: the lock of the table belongs to a process. */
#ifndef TRACEBED_ADMINISTRATOR_H
#define TRACEBED_ADMINISTRATOR_H
#include "tracebed_table.h"

/* Ends a transaction with the result of a call. */
static inline int tb_ended(tb_change *c, int result) {
    tb_commit(c); /* also after an error: processes that have died are removed */
    return result;
}

/* Stores the registered processes in the order of their registration, at most `most`. Returns their number. */
static inline int tb_pids(tb_table *t, int *pids, int most) {
    int found = 0;
    uint32_t i;
    tb_change c;
    if (tb_begin(&c, t) != TB_SUCCESS) return TB_NO_TABLE;
    tb_reclaim(&c, 0, NULL);
    for (i = 0; i < c.count; i++) {
        if (!tb_is_registered(tb_at(&c, i))) continue;
        if (found < most) pids[found] = tb_pid(tb_at(&c, i));
        found++;
    }
    return tb_ended(&c, found);
}

/* Stores the CPUs that a process holds. Returns TB_SUCCESS, TB_NOTED (a change is pending), or an error. */
static inline int tb_mask_of(tb_table *t, int pid, cpu_set_t *cpus) {
    tb_change c;
    tb_entry e;
    if (tb_begin(&c, t) != TB_SUCCESS) return TB_NO_TABLE;
    if ((e = tb_alive_entry(&c, pid)) == NULL) return tb_ended(&c, TB_NO_PROCESS);
    tb_to_cpus(t, tb_held(e), cpus);
    return tb_ended(&c, tb_is_pending(&c, e) ? TB_NOTED : TB_SUCCESS);
}

/* Sets the CPUs of a process, with the flags TB_STEAL and TB_REPLACE. */
static inline int tb_set_mask(tb_table *t, int pid, const cpu_set_t *cpus, int flags) {
    tb_change c;
    if (tb_begin(&c, t) != TB_SUCCESS) return TB_NO_TABLE;
    if (tb_alive_entry(&c, pid) == NULL) return tb_ended(&c, TB_NO_PROCESS);
    return tb_ended(&c, tb_assign(&c, pid, cpus, flags));
}

/* Reserves CPUs for a process that is about to start, or for its children (DROM_PreInit). The program finds the table
   by TRACEBED_DROM_TABLE (its path), and children find the CPUs by TRACEBED_DROM_PREPARED (this PID). */
static inline int tb_prepare(tb_table *t, int pid, const cpu_set_t *cpus, int flags) {
    tb_change c;
    int result;
    if (tb_begin(&c, t) != TB_SUCCESS) return TB_NO_TABLE;
    if (tb_alive_entry(&c, pid) != NULL) return tb_ended(&c, TB_REGISTERED);
    if (tb_add(&c, pid, 0) == NULL) return tb_ended(&c, tb_started(pid) == 0 ? TB_NO_PROCESS : TB_FULL);
    result = tb_assign(&c, pid, cpus, flags);
    if (result < 0) tb_delete(&c, tb_find(&c, pid));
    return tb_ended(&c, result);
}

/* Removes a process that has ended (DROM_PostFinalize), with the flag TB_RETURN_STOLEN. */
static inline int tb_finalize(tb_table *t, int pid, int flags) {
    tb_change c;
    tb_entry e;
    if (tb_begin(&c, t) != TB_SUCCESS) return TB_NO_TABLE;
    if ((e = tb_find(&c, pid)) == NULL) return tb_ended(&c, TB_NO_PROCESS);
    tb_release(&c, e, flags);
    return tb_ended(&c, TB_SUCCESS);
}

/* Creates the table of a node with `cpus`, unless it exists, and opens it. Returns TB_SUCCESS or TB_NO_TABLE. */
static inline int tb_create(tb_table *t, const char *path, const cpu_set_t *cpus) {
    static const uint32_t slots = TB_SLOTS;
    char part[4096];
    tb_table made;
    tb_mask node;
    int file, cpu, done = 0;
    memset(&made, 0, sizeof made);
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, cpus)) made.width = (uint32_t)cpu / 8 + 1;
    if (made.width == 0) made.width = 1;
    tb_from_cpus(&made, cpus, node);
    made.size = tb_size(&made);
    if (snprintf(part, sizeof part, "%s.%d", path, (int)getpid()) >= (int)sizeof part) return TB_NO_TABLE;
    if ((file = open(part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) return TB_NO_TABLE;
    if (ftruncate(file, (off_t)made.size) == 0) {
        void *map = mmap(NULL, made.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (map != MAP_FAILED) {
            made.map = (unsigned char *)map;
            memcpy(made.map, TB_MAGIC, 8);
            memcpy(made.map + 8, &made.width, 4);
            memcpy(made.map + 12, &slots, 4);
            memcpy(tb_bank(&made, 0) + 8, node, made.width);
            tb_put(tb_bank(&made, 0), tb_adler32(node, made.width));
            munmap(map, made.size);
            done = link(part, path) == 0 || errno == EEXIST; /* complete, or not at all */
        }
    }
    close(file);
    unlink(part);
    return done ? tb_open(t, path) : TB_NO_TABLE;
}
#endif
