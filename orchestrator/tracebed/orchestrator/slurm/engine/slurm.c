/* Slurm's scheduling of jobs that share nodes: the main loop, the backfill pass and the priorities of priority/multifactor.
 *
 * Equal to `slurm/simulator.py`, whose modules have the rules and their sources, to the bit. One call simulates a
 * workload. Sets of nodes are bit masks of `words` words. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if __FLT_EVAL_METHOD__ != 0
#error "double arithmetic is not IEEE double on this platform: use the Python simulator"
#endif

#define SETUP(_) \
    _(int64_t, jobs) _(int64_t, nodes) _(int64_t, gres) /* kinds of generic resources */ _(int64_t, partitions) \
    _(int64_t, accounts) _(int64_t, users) \
    _(const double *, submit) _(const double *, run_time) /* infinite: until the limit */ \
    _(const double *, launch_s) _(const double *, overrun_s) _(const double *, end_s) \
    _(const int64_t *, limit) _(const int32_t *, tasks) _(const int32_t *, per_node) /* 0: any number */ \
    _(const int32_t *, fewest) _(const int32_t *, most) /* nodes */ _(const uint8_t *, whole) /* nodes */ \
    _(const int64_t *, memory) _(const uint8_t *, by_core) /* memory for each core, else for each node */ \
    _(const int32_t *, wanted) /* gres of each job on each node */ _(const uint64_t *, eligible) /* mask of each job */ \
    _(const int32_t *, partition) _(const int32_t *, user) _(const double *, fixed) /* part of the priority */ \
    _(const int32_t *, cores) _(const int64_t *, memory_of) _(const int32_t *, gres_of) _(const int32_t *, weight) \
    _(const int32_t *, group) /* switch of each node; null: blocks of consecutive nodes */ \
    _(const int32_t *, tier) /* of each partition */ \
    _(const int32_t *, account) /* of each user */ _(const double *, user_share) _(const double *, account_share) \
    _(double, age) _(double, max_age_s) _(double, fairshare) _(double, half_life_s) _(double, period_s) \
    _(double, first_period_s) _(int64_t, shared_memory) \
    _(double, sched_loop_s) _(double, sched_phase_s) _(double, bf_loop_s) _(double, bf_phase_s) _(double, epoch_s) \
    _(int64_t, sched_interval) _(int64_t, batch_sched_delay) _(int64_t, default_queue_depth) _(int64_t, sched_max_job_start) \
    _(int64_t, bf_interval) _(int64_t, bf_resolution) _(int64_t, bf_window_s) _(int64_t, bf_max_job_test) \
    _(int64_t, bf_max_job_start) _(int64_t, bf_max_job_user) _(int64_t, bf_node_space_size) \
    _(int64_t, bf_min_age_reserve) _(int64_t, bf_job_part_count_reserve) _(int64_t, defer) \
    _(double *, start) _(double *, launched) _(double *, end) /* of each job */
#define DECLARED(type, name) type name;
#define DESCRIBED(type, name) " " #type " " #name ";"
