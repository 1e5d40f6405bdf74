/* Fair shares and limits: the same as tests/oracles/slurm_simulation/accounting.py. */
#ifndef TRACEBED_ACCOUNTS_H
#define TRACEBED_ACCOUNTS_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const double OF_PARENT = -1.0;
enum { SUBMITTED = -2, JOBS = -1 }; /* kinds of counters */

struct sibling { double level; int32_t association; uint8_t is_user; };

struct shares {
    int64_t count; /* of associations */
    const int32_t *parent;
    const double *share;
    const uint8_t *is_user;
    const int64_t *resets; int64_t reset_count, next_reset;
    int64_t dampening, since, users;
    double decay;
    int32_t *above, *first_child, *child; /* the children of `a` are child[first_child[a]] to child[first_child[a + 1] - 1] */
    struct sibling *sorted; /* one range for each association, as `child` */
    double *siblings, *usage, *factor;
};

static double level_of(const struct shares *f, int32_t each) {
    if (f->share[each] == OF_PARENT) return INFINITY;
    if (!f->share[each]) return 0.0;
    int32_t above = f->above[each];
    double used = f->usage[each], part = used > 0 ? used / f->usage[above] : 0.0;
    return part > 0 ? f->share[each] / f->siblings[above] / part : INFINITY;
}

static int by_level(const void *a, const void *b) {
    const struct sibling *x = a, *y = b;
    if (x->level != y->level) return x->level > y->level ? -1 : 1;
    if (x->is_user != y->is_user) return x->is_user ? -1 : 1;
    return x->association < y->association ? -1 : x->association > y->association;
}

static void rank_below(struct shares *f, int32_t account, int64_t *rank, int64_t *shared, int tied) {
    int32_t first = f->first_child[account], count = f->first_child[account + 1] - first;
    struct sibling *own = f->sorted + first;
    for (int32_t k = 0; k < count; k++) {
        int32_t each = f->child[first + k];
        own[k] = (struct sibling){level_of(f, each), each, f->is_user[each]};
    }
    qsort(own, (size_t)count, sizeof *own, by_level);
    for (int32_t k = 0; k < count; k++) {
        tied = tied || (k && own[k].level == own[k - 1].level);
        if (own[k].is_user) {
            if (!tied) *shared = *rank;
            f->factor[own[k].association] = (double)*shared / (double)f->users;
            --*rank;
        } else rank_below(f, own[k].association, rank, shared, tied);
        tied = 0;
    }
}

static void classic_below(struct shares *f, int32_t account, double shares, double effective) {
    double total = f->usage[0];
    for (int32_t k = f->first_child[account]; k < f->first_child[account + 1]; k++) {
        int32_t each = f->child[k];
        double own = shares, usage = effective;
        if (f->share[each] != OF_PARENT) {
            double part = f->siblings[account] ? f->share[each] / f->siblings[account] : 0.0;
            own = shares * part;
            usage = total > 0 ? f->usage[each] / total : 0.0;
            if (account) usage += (effective - usage) * part;
        }
        f->factor[each] = own > 0 ? pow(2.0, -(usage / own / (double)f->dampening)) : 0.0;
        if (!f->is_user[each]) classic_below(f, each, own, usage);
    }
}

static void rank_users(struct shares *f) {
    if (f->dampening) {
        classic_below(f, 0, 1.0, 1.0);
        return;
    }
    int64_t rank = f->users, shared = f->users;
    rank_below(f, 0, &rank, &shared, 0);
}

static void skip_resets(struct shares *f, int64_t now) {
    while (f->next_reset < f->reset_count && f->resets[f->next_reset] <= now) f->next_reset++;
}

/* Prepare the tree, whose constant fields are set. Return whether the memory suffices. */
static int begin_shares(struct shares *f, double half_life_s, int64_t now) {
    size_t count = (size_t)f->count;
    f->since = now;
    f->decay = half_life_s ? 1.0 - 0.693 / half_life_s : 1.0;
    f->above = calloc(count, sizeof(int32_t)), f->first_child = calloc(count + 1, sizeof(int32_t));
    f->child = calloc(count, sizeof(int32_t)), f->sorted = calloc(count, sizeof *f->sorted);
    f->siblings = calloc(count, sizeof(double)), f->usage = calloc(count, sizeof(double));
    f->factor = calloc(count, sizeof(double));
    if (!(f->above && f->first_child && f->child && f->sorted && f->siblings && f->usage && f->factor)) return 0;
    skip_resets(f, now);
    for (int32_t each = 0; each < f->count; each++) f->users += f->is_user[each];
    for (int32_t each = 1; each < f->count; each++) {
        int32_t above = f->parent[each];
        while (above && f->share[above] == OF_PARENT) above = f->parent[above];
        f->above[each] = above;
        f->first_child[above + 1]++;
        if (f->share[each] != OF_PARENT) f->siblings[above] += f->share[each];
    }
    for (int64_t each = 0; each < f->count; each++) f->first_child[each + 1] += f->first_child[each];
    int32_t *filled = calloc(count, sizeof(int32_t));
    if (!filled) return 0;
    for (int32_t each = 1; each < f->count; each++)
        f->child[f->first_child[f->above[each]] + filled[f->above[each]]++] = each;
    free(filled);
    rank_users(f);
    return 1;
}

static void end_shares(struct shares *f) {
    free(f->above), free(f->first_child), free(f->child), free(f->sorted), free(f->siblings), free(f->usage), free(f->factor);
}

/* Record the use of a job of `user` since `start` or the last update, until `now`. */
static void use(struct shares *f, int32_t user, double billing, int64_t start, int64_t now) {
    if (user < 0) return;
    int64_t seconds = now - (start > f->since ? start : f->since);
    double used = billing * ((double)seconds * pow(f->decay, (double)seconds));
    for (;;) {
        f->usage[user] += used;
        if (!user) return;
        user = f->parent[user];
    }
}

static void decay_usage(struct shares *f, int64_t now) {
    double decay = pow(f->decay, (double)(now - f->since));
    if (f->next_reset < f->reset_count && f->resets[f->next_reset] <= now) {
        decay = 0.0;
        skip_resets(f, now);
    }
    for (int64_t each = 0; each < f->count; each++) f->usage[each] *= decay;
}

/* The limits. Those of group g are the ones from first_limit[g] to first_limit[g + 1] - 1, and so are its counters. */
struct limits {
    int64_t counters;
    const int32_t *group, *first_limit, *limit_counter, *limit_kind, *first_counted, *counted, *counted_kind;
    const int64_t *most;
    int64_t *used;
};

/* Count a job that begins (1) or ends (-1) to run with `amounts`; null: to be in the system. */
static void count_job(struct limits *l, int32_t job, const int64_t *amounts, int sign) {
    if (!l->counters) return;
    for (int32_t g = l->group[job], k = l->first_counted[g]; k < l->first_counted[g + 1]; k++) {
        int32_t kind = l->counted_kind[k];
        int64_t *used = &l->used[l->counted[k]];
        if (kind == SUBMITTED) *used += amounts ? 0 : sign;
        else if (amounts) *used += kind == JOBS ? sign : sign * amounts[kind];
    }
}

/* Count jobs of a kind alone. */
static void count_kind(struct limits *l, int32_t job, int32_t kind, int64_t number) {
    if (!l->counters) return;
    for (int32_t g = l->group[job], k = l->first_counted[g]; k < l->first_counted[g + 1]; k++)
        if (l->counted_kind[k] == kind) l->used[l->counted[k]] += number;
}

/* Which limit of a kind a job has reached; -1: none. */
static int32_t reached(const struct limits *l, int32_t job, int32_t kind) {
    if (!l->counters) return -1;
    for (int32_t g = l->group[job], k = l->first_limit[g]; k < l->first_limit[g + 1]; k++)
        if (l->limit_kind[k] == kind && l->used[l->limit_counter[k]] >= l->most[k]) return k - l->first_limit[g];
    return -1;
}

/* Whether a job with `amounts` would exceed a limit of resources. */
static int exceeded(const struct limits *l, int32_t job, const int64_t *amounts) {
    for (int32_t g = l->group[job], k = l->first_limit[g]; k < l->first_limit[g + 1]; k++)
        if (l->limit_kind[k] >= 0 && l->used[l->limit_counter[k]] + amounts[l->limit_kind[k]] > l->most[k]) return 1;
    return 0;
}
#endif
