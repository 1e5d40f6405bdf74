/* The table of the CPUs of a node (see node_table.py for the layout), and the rules of DROM on its entries, for C on
   Linux. A header without a library, shared by tracebed_malleable.h (programs) and tracebed_administrator.h
   (schedulers). Each rule does what the function of the same name in ownership.py does. */
#ifndef TRACEBED_TABLE_H
#define TRACEBED_TABLE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifndef CPU_SETSIZE
#error "include tracebed_malleable.h before other headers, or compile with -D_GNU_SOURCE"
#endif

enum { /* results of calls; errors are negative */
    TB_SUCCESS = 0, TB_NOTED = 1, TB_NO_PROCESS = -1, TB_PENDING = -2, TB_PERMISSION = -3, TB_NO_TABLE = -5,
    TB_REGISTERED = -6, TB_FULL = -7
};
enum { TB_STEAL = 1, TB_RETURN_STOLEN = 2, TB_REPLACE = 8 }; /* flags of calls */
enum { TB_HEADER = 32, TB_CURRENT = 16, TB_FIXED = 24, TB_SLOTS = 1024, TB_WIDTH = 1024 };
#define TB_MAGIC "tb-drom1"

typedef struct {
    unsigned char *map; /* NULL: the table is not open */
    size_t size;
    int file;
    uint32_t width; /* bytes of a mask, at most TB_WIDTH */
    dev_t device;
    ino_t inode;
} tb_table;

typedef unsigned char tb_mask[TB_WIDTH];
/* An entry: slot, PID, registered, 0 (4 bytes each), start (8 bytes), then the masks held, target and taken. */
typedef unsigned char *tb_entry;

typedef struct { /* a transaction: the lock, and the bank that becomes current at its end */
    tb_table *table;
    unsigned char *bank;
    uint32_t current, count;
    unsigned char posted[TB_SLOTS];
} tb_change;

static inline uint32_t tb_u32(const unsigned char *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static inline void tb_put(unsigned char *at, uint32_t v) { memcpy(at, &v, 4); }

/* The table. */

static inline size_t tb_entry_size(const tb_table *t) { return TB_FIXED + 3 * (size_t)t->width; }
static inline size_t tb_bank_size(const tb_table *t) { return 8 + t->width + TB_SLOTS * tb_entry_size(t); }
static inline size_t tb_size(const tb_table *t) { return TB_HEADER + 8 * (size_t)TB_SLOTS + 2 * tb_bank_size(t); }

static inline unsigned char *tb_bank(const tb_table *t, uint32_t number) {
    return t->map + TB_HEADER + 8 * (size_t)TB_SLOTS + number * tb_bank_size(t);
}

static inline uint32_t tb_adler32(const unsigned char *data, size_t size) {
    uint32_t a = 1, b = 0;
    while (size--) { a = (a + *data++) % 65521; b = (b + a) % 65521; }
    return b << 16 | a;
}

static inline void tb_close(tb_table *t) {
    if (t->map == NULL) return;
    munmap(t->map, t->size);
    close(t->file);
    t->map = NULL;
}

/* Opens a table of this user. Returns TB_SUCCESS or TB_NO_TABLE. */
static inline int tb_open(tb_table *t, const char *path) {
    struct stat found;
    void *map = MAP_FAILED;
    memset(t, 0, sizeof *t);
    t->file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (t->file < 0) return TB_NO_TABLE;
    if (fstat(t->file, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > TB_HEADER &&
        found.st_uid == geteuid()) {
        t->size = (size_t)found.st_size;
        t->device = found.st_dev;
        t->inode = found.st_ino;
        map = mmap(NULL, t->size, PROT_READ | PROT_WRITE, MAP_SHARED, t->file, 0);
    }
    if (map == MAP_FAILED) {
        close(t->file);
        return TB_NO_TABLE;
    }
    t->map = (unsigned char *)map;
    t->width = tb_u32(t->map + 8);
    if (memcmp(t->map, TB_MAGIC, 8) == 0 && tb_u32(t->map + 12) == TB_SLOTS && t->width > 0 &&
        t->width <= TB_WIDTH && t->size == tb_size(t))
        return TB_SUCCESS;
    tb_close(t);
    return TB_NO_TABLE;
}

/* Returns the number of changes that were posted to a slot, without the lock; UINT64_MAX: the file was truncated. */
static inline uint64_t tb_posts(const tb_table *t, uint32_t slot) {
    uint64_t posts;
    off_t at = (off_t)(TB_HEADER + 8 * (size_t)slot); /* a read of the map could raise SIGBUS */
    return pread(t->file, &posts, sizeof posts, at) == sizeof posts ? posts : UINT64_MAX;
}

static inline int tb_lock(tb_table *t, short type) {
    struct flock lock;
    int result;
    memset(&lock, 0, sizeof lock);
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    do result = fcntl(t->file, F_SETLKW, &lock); while (result != 0 && errno == EINTR);
    return result;
}

/* Ends a transaction without a change. */
static inline void tb_abort(tb_change *c) { tb_lock(c->table, F_UNLCK); }

/* Begins a transaction. Returns TB_SUCCESS or TB_NO_TABLE. The threads of a process must exclude each other: the lock
   belongs to the process. */
static inline int tb_begin(tb_change *c, tb_table *t) {
    struct stat found;
    const unsigned char *from;
    size_t used;
    if (t->map == NULL || tb_lock(t, F_WRLCK) != 0) return TB_NO_TABLE;
    c->table = t;
    if (fstat(t->file, &found) == 0 && found.st_nlink > 0 && found.st_size == (off_t)t->size &&
        found.st_dev == t->device && found.st_ino == t->inode) {
        c->current = tb_u32(t->map + TB_CURRENT);
        from = tb_bank(t, c->current & 1);
        c->bank = tb_bank(t, 1 - (c->current & 1));
        c->count = tb_u32(from + 4);
        if (c->current <= 1 && c->count <= TB_SLOTS) {
            used = t->width + c->count * tb_entry_size(t);
            memcpy(c->bank + 8, from + 8, used);
            if (tb_adler32(c->bank + 8, used) == tb_u32(from)) {
                memset(c->posted, 0, sizeof c->posted);
                return TB_SUCCESS;
            }
        }
    }
    tb_abort(c);
    return TB_NO_TABLE;
}

/* Ends a transaction: its bank becomes current, then its posts are visible. */
static inline void tb_commit(tb_change *c) {
    tb_table *t = c->table;
    uint32_t slot;
    tb_put(c->bank + 4, c->count);
    tb_put(c->bank, tb_adler32(c->bank + 8, t->width + c->count * tb_entry_size(t)));
    __atomic_store_n((uint32_t *)(void *)(t->map + TB_CURRENT), 1 - c->current, __ATOMIC_RELEASE);
    for (slot = 0; slot < TB_SLOTS; slot++)
        if (c->posted[slot])
            __atomic_add_fetch((uint64_t *)(void *)(t->map + TB_HEADER) + slot, 1, __ATOMIC_RELEASE);
    tb_lock(t, F_UNLCK);
}

/* The entries. */

static inline tb_entry tb_at(const tb_change *c, uint32_t i) {
    return c->bank + 8 + c->table->width + i * tb_entry_size(c->table);
}
static inline unsigned char *tb_node(const tb_change *c) { return c->bank + 8; }
static inline int tb_pid(const unsigned char *e) { return (int)tb_u32(e + 4); }
static inline int tb_is_registered(const unsigned char *e) { return tb_u32(e + 8) != 0; }
static inline unsigned char *tb_held(tb_entry e) { return e + TB_FIXED; }
static inline unsigned char *tb_target(const tb_change *c, tb_entry e) { return e + TB_FIXED + c->table->width; }
static inline unsigned char *tb_taken(const tb_change *c, tb_entry e) { return e + TB_FIXED + 2 * c->table->width; }

static inline int tb_is_pending(const tb_change *c, tb_entry e) {
    return memcmp(tb_held(e), tb_target(c, e), c->table->width) != 0;
}

/* Returns the start of a process, in clock ticks since boot; 0: it has ended. */
static inline uint64_t tb_started(int pid) {
    char path[32], text[1024], *at;
    unsigned long long started = 0;
    ssize_t size;
    int file, field;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0) return 0;
    size = read(file, text, sizeof text - 1);
    close(file);
    text[size > 0 ? size : 0] = '\0';
    at = strrchr(text, ')'); /* the name of the program may contain anything */
    if (at == NULL || strlen(at) < 3 || at[2] == 'Z' || at[2] == 'X') return 0;
    for (field = 2; field < 22 && at != NULL; field++) at = strchr(at + 1, ' ');
    if (at != NULL) started = strtoull(at, NULL, 10);
    return started;
}

static inline int tb_is_alive(const unsigned char *e) {
    uint64_t started;
    memcpy(&started, e + 16, 8);
    return tb_started(tb_pid(e)) == started;
}

static inline tb_entry tb_find(const tb_change *c, int pid) {
    uint32_t i;
    for (i = 0; i < c->count; i++)
        if (tb_pid(tb_at(c, i)) == pid) return tb_at(c, i);
    return NULL;
}

/* Adds an entry without CPUs. Returns NULL if the process has ended, or the table is full. */
static inline tb_entry tb_add(tb_change *c, int pid, int registered) {
    unsigned char used[TB_SLOTS] = {0};
    uint64_t started = tb_started(pid);
    uint32_t i, slot = 0;
    tb_entry e = tb_at(c, c->count);
    for (i = 0; i < c->count; i++) used[tb_u32(tb_at(c, i)) % TB_SLOTS] = 1;
    while (slot < TB_SLOTS && used[slot]) slot++;
    if (started == 0 || slot == TB_SLOTS) return NULL;
    memset(e, 0, tb_entry_size(c->table));
    tb_put(e, slot);
    tb_put(e + 4, (uint32_t)pid);
    tb_put(e + 8, registered != 0);
    memcpy(e + 16, &started, 8);
    c->count++;
    return e;
}

/* Removes an entry. Entries behind it move. */
static inline void tb_delete(tb_change *c, tb_entry e) {
    size_t size = tb_entry_size(c->table);
    memmove(e, e + size, (size_t)(tb_at(c, c->count) - e) - size);
    c->count--;
}

/* Masks of the table and of the kernel. */

static inline void tb_to_cpus(const tb_table *t, const unsigned char *mask, cpu_set_t *cpus) {
    uint32_t cpu;
    CPU_ZERO(cpus);
    for (cpu = 0; cpu < 8 * t->width && cpu < CPU_SETSIZE; cpu++)
        if (mask[cpu / 8] >> cpu % 8 & 1) CPU_SET(cpu, cpus);
}

/* Returns TB_PERMISSION if a CPU is beyond the masks of the table and left out, otherwise TB_SUCCESS. */
static inline int tb_from_cpus(const tb_table *t, const cpu_set_t *cpus, tb_mask mask) {
    int result = TB_SUCCESS;
    uint32_t cpu;
    memset(mask, 0, sizeof(tb_mask));
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, cpus)) continue;
        if (cpu / 8 >= t->width)
            result = TB_PERMISSION;
        else
            mask[cpu / 8] |= (unsigned char)(1 << cpu % 8);
    }
    return result;
}

/* The rules. */

/* Posts a pending change of a process. A process that polls, that has not started, or that is this one, makes the
   change: it releases the CPUs that it must give up, takes the available CPUs of its target, and posts the changes of
   those that wait for the released CPUs. */
static inline void tb_post_or_take(tb_change *c, tb_entry e, int polls) {
    uint32_t i, b, width = c->table->width;
    tb_mask released;
    if (!polls) {
        if (!tb_is_pending(c, e)) return;
        c->posted[tb_u32(e) % TB_SLOTS] = 1;
        if (tb_is_registered(e) && tb_pid(e) != (int)getpid()) return;
    }
    for (b = 0; b < width; b++) {
        unsigned char blocked = 0, before = tb_held(e)[b];
        for (i = 0; i < c->count; i++)
            if (tb_at(c, i) != e) blocked |= tb_held(tb_at(c, i))[b];
        tb_held(e)[b] = (unsigned char)(tb_target(c, e)[b] & ~blocked);
        released[b] = (unsigned char)(before & ~tb_held(e)[b]);
    }
    for (i = 0; i < c->count; i++) {
        tb_entry other = tb_at(c, i);
        unsigned char waits = 0;
        for (b = 0; b < width; b++) waits |= (unsigned char)(tb_target(c, other)[b] & ~tb_held(other)[b] & released[b]);
        if (other != e && waits) tb_post_or_take(c, other, 0);
    }
}

static inline void tb_post(tb_change *c, tb_entry e) { tb_post_or_take(c, e, 0); }

static inline void tb_take_cpus(tb_change *c, tb_entry e) { tb_post_or_take(c, e, 1); }

/* Removes a process. Its CPUs return to the processes from which they were taken, or become free. Entries move. */
static inline void tb_release(tb_change *c, tb_entry e, int flags) {
    uint32_t i, b, width = c->table->width;
    tb_mask target;
    memcpy(target, tb_target(c, e), width);
    tb_delete(c, e);
    for (i = 0; i < c->count; i++)
        for (b = 0; b < width; b++) {
            unsigned char *taken = tb_taken(c, tb_at(c, i)) + b;
            if (flags & TB_RETURN_STOLEN) tb_target(c, tb_at(c, i))[b] |= *taken & target[b];
            *taken &= (unsigned char)~target[b];
        }
    for (i = 0; i < c->count; i++) tb_post(c, tb_at(c, i));
}

/* Returns the entry of a process that still runs, or NULL. Entries move. */
static inline tb_entry tb_alive_entry(tb_change *c, int pid) {
    tb_entry e = tb_find(c, pid);
    if (e != NULL && !tb_is_alive(e)) tb_release(c, e, TB_RETURN_STOLEN);
    return tb_find(c, pid);
}

/* Removes the processes that have died among all of them, or among the other holders of CPUs of a mask. */
static inline void tb_reclaim(tb_change *c, int pid, const unsigned char *requested) {
    unsigned char chosen[TB_SLOTS] = {0};
    uint32_t i = 0, b;
    for (i = 0; i < c->count; i++) { /* chosen first: CPUs that return do not choose their holders */
        tb_entry e = tb_at(c, i);
        for (b = 0; b < c->table->width; b++)
            if (requested == NULL || (tb_pid(e) != pid && (tb_held(e)[b] | tb_target(c, e)[b]) & requested[b]))
                chosen[tb_u32(e) % TB_SLOTS] = 1;
    }
    for (i = 0; i < c->count;)
        if (chosen[tb_u32(tb_at(c, i)) % TB_SLOTS] && !tb_is_alive(tb_at(c, i)))
            tb_release(c, tb_at(c, i), TB_RETURN_STOLEN);
        else
            i++;
}

/* Assigns `cpus` to the process `pid`, which has an entry, or changes nothing. */
static inline int tb_assign(tb_change *c, int pid, const cpu_set_t *cpus, int flags) {
    uint32_t i, b, width = c->table->width, holders = 0;
    unsigned char holds[TB_SLOTS] = {0};
    tb_mask owned, requested;
    int pending = 0, lacking = tb_from_cpus(c->table, cpus, requested) != TB_SUCCESS;
    tb_entry e = tb_find(c, pid);
    if (tb_is_pending(c, e) && !(flags & TB_REPLACE)) return TB_PENDING;
    tb_reclaim(c, pid, requested);
    e = tb_find(c, pid);
    memset(owned, 0, sizeof owned);
    for (i = 0; i < c->count; i++) {
        tb_entry other = tb_at(c, i);
        for (b = 0; b < width; b++) {
            owned[b] |= tb_taken(c, other)[b];
            if (other != e && (tb_held(other)[b] | tb_target(c, other)[b]) & requested[b]) holds[i] = 1;
        }
        holders += holds[i];
        if (holds[i] && tb_is_pending(c, other)) pending = 1;
    }
    for (b = 0; b < width; b++) lacking |= requested[b] & ~tb_node(c)[b];
    if (lacking || (holders && !(flags & TB_STEAL)) || (pending && !(flags & TB_REPLACE))) return TB_PERMISSION;
    for (b = 0; b < width; b++) {
        for (i = 0; i < c->count; i++) {
            unsigned char *target = tb_target(c, tb_at(c, i)) + b;
            if (!holds[i]) continue;
            tb_taken(c, tb_at(c, i))[b] |= (unsigned char)(*target & requested[b] & ~owned[b]);
            *target &= (unsigned char)~requested[b];
        }
        tb_taken(c, e)[b] &= (unsigned char)(flags & TB_REPLACE ? 0 : ~requested[b]);
        tb_target(c, e)[b] = requested[b];
    }
    for (i = 0; i < c->count; i++)
        if (holds[i]) tb_post(c, tb_at(c, i));
    tb_post(c, e);
    pending = tb_is_pending(c, e);
    for (i = 0; i < c->count; i++) pending |= holds[i] && tb_is_pending(c, tb_at(c, i));
    return pending ? TB_NOTED : TB_SUCCESS;
}

#endif
