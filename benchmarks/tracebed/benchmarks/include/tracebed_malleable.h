/* Malleability for C and C++ programs on Linux, in three calls:

       tb_malleable m;
       tb_attach(&m);
       for (...) {
           if (tb_poll(&m))                       // a malleability point: no other thread may be computing
               omp_set_num_threads(tb_cpus(&m));  // m.cpus has the CPUs
           ...
       }
       tb_detach(&m);

   The program follows the table of CPUs in TRACEBED_DROM_TABLE, in which an administrator has prepared its CPUs, or
   those of its parent. Without this table the program is rigid: tb_poll returns 0, and m.cpus is its mask. */
#ifndef TRACEBED_MALLEABLE_H
#define TRACEBED_MALLEABLE_H
#include "tracebed_table.h"
#include "tracebed_dmr.h"

typedef struct {
    cpu_set_t cpus; /* the CPUs that the program holds */
    tb_table table; /* not open: the program is rigid */
    uint32_t slot;
    uint64_t seen;  /* number of posted changes that were polled */
    /* Called with new CPUs before other processes can take the released ones; may be NULL. If it returns a value other
       than 0, nothing changes, and the next poll tries again. */
    int (*adopt)(const cpu_set_t *cpus);
} tb_malleable;

static inline int tb_cpus(const tb_malleable *m) { return CPU_COUNT(&m->cpus); }

/* Takes the CPUs `requested` (NULL: all) out of those prepared for a parent. Returns the new entry, or NULL. */
static inline tb_entry tb_inherit(tb_change *c, int parent, const cpu_set_t *requested) {
    tb_entry source = parent > 0 ? tb_alive_entry(c, parent) : NULL, e;
    uint32_t b, width = c->table->width;
    int left = 0, lacking = 0;
    tb_mask mask;
    if (source == NULL || tb_is_registered(source)) return NULL;
    if (requested == NULL)
        memcpy(mask, tb_target(c, source), width);
    else if (tb_from_cpus(c->table, requested, mask) != TB_SUCCESS)
        return NULL;
    for (b = 0; b < width; b++) lacking |= mask[b] & ~tb_target(c, source)[b];
    if (lacking || (e = tb_add(c, (int)getpid(), 1)) == NULL) return NULL;
    for (b = 0; b < width; b++) {
        tb_held(source)[b] &= (unsigned char)~mask[b];
        left |= tb_target(c, source)[b] &= (unsigned char)~mask[b];
        tb_target(c, e)[b] = mask[b];
    }
    if (!left) tb_delete(c, source);
    return tb_find(c, (int)getpid());
}

/* Carries out the transaction of a poll. Returns 1 if the CPUs have changed, 0 if not, -1 on an error. */
static inline int tb_take(tb_malleable *m, const cpu_set_t *requested) {
    const char *parent = getenv("TRACEBED_DROM_PREPARED");
    cpu_set_t cpus;
    tb_change c;
    tb_entry own;
    int changed;
    if (tb_begin(&c, &m->table) != TB_SUCCESS) return -1;
    own = tb_find(&c, (int)getpid());
    if (own == NULL) own = tb_inherit(&c, parent == NULL ? 0 : atoi(parent), requested);
    if (own == NULL) {
        tb_commit(&c); /* without a parent that has died */
        return -1;
    }
    tb_put(own + 8, 1); /* registered */
    tb_take_cpus(&c, own);
    tb_to_cpus(&m->table, tb_held(own), &cpus);
    changed = !CPU_EQUAL(&cpus, &m->cpus);
    if (changed && m->adopt != NULL && m->adopt(&cpus) != 0) {
        tb_abort(&c);
        return -1;
    }
    m->cpus = cpus;
    m->slot = tb_u32(own);
    m->seen = tb_posts(&m->table, m->slot);
    tb_commit(&c);
    return changed;
}

/* Registers the program with the CPUs `requested` of those prepared for its parent. NULL: all of them. Returns 1 if the
   program is malleable, 0 if it is rigid. `adopt` must be set before; a program that tb_attach registers has none. */
static inline int tb_attach_cpus(tb_malleable *m, const cpu_set_t *requested) {
    sched_getaffinity(0, sizeof m->cpus, &m->cpus);
    m->slot = 0;
    m->seen = 0;
    if (tb_open(&m->table, getenv("TRACEBED_DROM_TABLE")) != TB_SUCCESS) return 0;
    if (tb_take(m, requested) >= 0) return 1;
    tb_close(&m->table);
    return 0;
}

static inline int tb_attach(tb_malleable *m) {
    m->adopt = NULL;
    return tb_attach_cpus(m, NULL);
}

/* Whether a change was posted to the program since its last poll. */
static inline int tb_posted(const tb_malleable *m) {
    return m->table.map != NULL && tb_posts(&m->table, m->slot) != m->seen;
}

/* Releases and takes the CPUs of a pending change. Returns 1 if the CPUs have changed, otherwise 0. */
static inline int tb_poll(tb_malleable *m) { return tb_posted(m) && tb_take(m, NULL) == 1; }

/* Requests a change of the CPUs from the resource manager of the node, as dmr_check_status of DMR, and then polls. The
   program can use `least` to `most` CPUs, and prefers `preferred`. Returns 1 if the CPUs have changed, otherwise 0. */
static inline int tb_check(tb_malleable *m, int least, int most, int preferred) {
    int after;
    if (m->table.map != NULL) tb_dmr_request(tb_cpus(m), least, most, preferred, &after);
    return tb_poll(m);
}

/* Stops following changes. The administrator removes the program from the table when the program has ended. */
static inline void tb_detach(tb_malleable *m) { tb_close(&m->table); }
#endif
