/* Malleability for C and C++ programs on Linux, in three calls:

       tb_malleable m;
       tb_attach(&m);
       for (...) {
           if (tb_poll(&m))                       // a malleability point: no other thread may be computing
               omp_set_num_threads(tb_cpus(&m));  // m.cpus has the CPUs
           ...
       }
       tb_detach(&m);

   The program follows the table of CPUs in TRACEBED_DROM_TABLE, in which an administrator has prepared its CPUs (see
   node_table.py for the format). Without this table the program is rigid: tb_poll returns 0, and m.cpus is its mask. */
#ifndef TRACEBED_MALLEABLE_H
#define TRACEBED_MALLEABLE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    cpu_set_t cpus;       /* the CPUs that the program holds */
    unsigned char *table; /* the mapped table; NULL: the program is rigid */
    size_t size;
    int file;
    uint32_t width, slots, slot;
    uint64_t seen;        /* number of posted changes that were polled */
} tb_malleable;

enum { TB_HEADER = 32, TB_CURRENT = 16, TB_FIXED = 24 };

static inline uint32_t tb_u32(const unsigned char *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static inline void tb_put(unsigned char *at, uint32_t v) { memcpy(at, &v, 4); }
static inline int tb_cpus(const tb_malleable *m) { return CPU_COUNT(&m->cpus); }

static inline int tb_lock(tb_malleable *m, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    int result;
    do result = fcntl(m->file, F_SETLKW, &lock); while (result != 0 && type == F_WRLCK);
    return result;
}

static inline uint32_t tb_adler32(const unsigned char *data, size_t size) {
    uint32_t a = 1, b = 0;
    while (size--) { a = (a + *data++) % 65521; b = (b + a) % 65521; }
    return b << 16 | a;
}

static inline uint64_t tb_posts(const tb_malleable *m) {
    uint64_t posts;
    off_t at = (off_t)(TB_HEADER + 8 * (size_t)m->slot); /* if the file was truncated, the map would raise SIGBUS */
    return pread(m->file, &posts, sizeof posts, at) == sizeof posts ? posts : UINT64_MAX;
}

/* Carries out the transaction of a poll. Returns 1 if the CPUs have changed, 0 if not, -1 on an error. */
static inline int tb_take(tb_malleable *m) {
    size_t entry = TB_FIXED + 3 * (size_t)m->width, bank = 8 + m->width + m->slots * entry;
    unsigned char *banks = m->table + TB_HEADER + 8 * (size_t)m->slots, *from, *to, *own = NULL, *e;
    struct stat found;
    cpu_set_t before = m->cpus;
    uint32_t current, count, i, b, released = 0;
    int result = -1;
    tb_lock(m, F_WRLCK);
    if (fstat(m->file, &found) != 0 || found.st_nlink == 0 || found.st_size != (off_t)m->size) goto unlock;
    current = tb_u32(m->table + TB_CURRENT);
    from = banks + (current & 1) * bank;
    to = banks + (1 - (current & 1)) * bank;
    count = tb_u32(from + 4);
    if (current > 1 || count > m->slots ||
        tb_adler32(from + 8, m->width + count * entry) != tb_u32(from))
        goto unlock;
    memcpy(to, from, 8 + m->width + count * entry);
    for (i = 0; i < count; i++)
        if (tb_u32(to + 8 + m->width + i * entry + 4) == (uint32_t)getpid()) own = to + 8 + m->width + i * entry;
    if (own == NULL) goto unlock;
    m->slot = tb_u32(own);
    m->seen = tb_posts(m);
    tb_put(own + 8, 1); /* registered */
    CPU_ZERO(&m->cpus);
    for (b = 0; b < m->width; b++) {
        unsigned char *held = own + TB_FIXED + b, others = 0, was = *held;
        for (i = 0; i < count; i++) {
            e = to + 8 + m->width + i * entry;
            if (e != own) others |= e[TB_FIXED + b];
        }
        *held = held[m->width] & ~others; /* the target, without what others hold */
        for (i = 0; i < 8; i++)
            if (*held >> i & 1 && 8 * b + i < CPU_SETSIZE) CPU_SET(8 * b + i, &m->cpus);
        released |= was & ~*held;
        for (i = 0; i < count; i++) { /* a process that has not started takes what was released */
            e = to + 8 + m->width + i * entry;
            if (e != own && tb_u32(e + 8) == 0) e[TB_FIXED + b] |= e[TB_FIXED + m->width + b] & was & ~*held;
        }
    }
    tb_put(to, tb_adler32(to + 8, m->width + count * entry));
    __atomic_store_n((uint32_t *)(m->table + TB_CURRENT), 1 - current, __ATOMIC_RELEASE);
    for (i = 0; released && i < count; i++) { /* the others poll, whether they waited for these CPUs or not */
        uint64_t *posts = (uint64_t *)(m->table + TB_HEADER) + tb_u32(to + 8 + m->width + i * entry);
        if (to + 8 + m->width + i * entry != own) __atomic_add_fetch(posts, 1, __ATOMIC_RELEASE);
    }
    result = !CPU_EQUAL(&before, &m->cpus);
unlock:
    tb_lock(m, F_UNLCK);
    return result;
}

/* Registers the program. Returns 1 if it is malleable, 0 if it is rigid. */
static inline int tb_attach(tb_malleable *m) {
    const char *path = getenv("TRACEBED_DROM_TABLE");
    struct stat found;
    memset(m, 0, sizeof *m);
    sched_getaffinity(0, sizeof m->cpus, &m->cpus);
    m->file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (m->file < 0) return 0;
    if (fstat(m->file, &found) == 0 && found.st_size > TB_HEADER && found.st_uid == geteuid()) {
        m->size = (size_t)found.st_size;
        m->table = (unsigned char *)mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, m->file, 0);
        if (m->table == MAP_FAILED) m->table = NULL;
    }
    if (m->table != NULL && memcmp(m->table, "tb-drom1", 8) == 0) {
        m->width = tb_u32(m->table + 8);
        m->slots = tb_u32(m->table + 12);
        if (m->size == TB_HEADER + 8 * (size_t)m->slots +
                           2 * (8 + m->width + m->slots * (TB_FIXED + 3 * (size_t)m->width)) && tb_take(m) >= 0)
            return 1;
    }
    if (m->table != NULL) munmap(m->table, m->size);
    m->table = NULL;
    close(m->file);
    return 0;
}

/* Releases and takes the CPUs of a pending change. Returns 1 if the CPUs have changed, otherwise 0. */
static inline int tb_poll(tb_malleable *m) {
    if (m->table == NULL || tb_posts(m) == m->seen) return 0;
    return tb_take(m) == 1;
}

/* Stops following changes. The administrator removes the program from the table when the program has ended. */
static inline void tb_detach(tb_malleable *m) {
    if (m->table == NULL) return;
    munmap(m->table, m->size);
    close(m->file);
    m->table = NULL;
}
#endif
