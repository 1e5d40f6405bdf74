#!/usr/bin/env bash
# Guess: an expander (--dependency=expand:J) that waits when J ends is cancelled, or waits for ever, and when J has
# ended, its merge (NumNodes=0) is refused. Slurm 22.05.8: the dependency is met at the submission, since J runs. The
# expander starts later, as any other job. Its merge is accepted: it completes, and its nodes stay allocated without a
# job. `scancel` of the expander instead returns them.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
printed=$(in_slurm 6 \
    SchedulerParameters=bf_interval=1,bf_resolution=1,sched_min_interval=0,batch_sched_delay=0,permit_job_expansion \
    SelectType=select/cons_tres SelectTypeParameters=CR_Core <<'SH'
state() { squeue -h -t all -j "$1" -o %T; }
is() { [[ $(state "$1") == "$2" ]]; }
none() { [[ -z $(squeue -h) ]]; }
allocated() { sinfo -h -t alloc,mix,comp -o %N | xargs; }
submit() { sbatch --parsable -o /dev/null -c2 --time=10 "$@" --wrap "sleep 300"; }
try() {
    job=$(submit -N2)
    until_true is "$job" RUNNING
    other=$(submit -N4)
    until_true is "$other" RUNNING
    salloc -Q -J brings -N1-2 -c2 --dependency="expand:$job" --no-shell &
    until_true eval '[[ -n $(squeue -h -n brings) ]]'
    brings=$(squeue -h -n brings -o %i)
    scancel "$job"
    until_true is "$job" CANCELLED
    scancel "$other"
    sleep 5
    echo "$1: $(state "$job"), expander $(state "$brings")"
    "${@:2}" "$brings"
    until_true none
    sleep 5
    echo "$1: no job, allocated: $(allocated)"
}
merge() { scontrol update jobid="$1" numnodes=0 && echo "accepted"; }
try scancel scancel
try merge merge
SH
)
echo "$printed"
says "the expander starts without its job" '^scancel: CANCELLED, expander RUNNING$' "$printed"
says "scancel returns its nodes" '^scancel: no job, allocated: $' "$printed"
says "the merge is accepted" '^accepted$' "$printed"
says "its nodes are lost" '^merge: no job, allocated: n\[[0-9]' "$printed"
