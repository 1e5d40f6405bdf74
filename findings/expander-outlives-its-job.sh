#!/usr/bin/env bash
# Guess: an expander (--dependency=expand:J) that waits when J ends is cancelled, or waits for ever. Slurm 22.05.8: the
# dependency is met at the submission, since J runs. The expander starts later, as any other job. `scancel` returns its
# nodes.
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
until_true is "$brings" RUNNING
echo "job $(state "$job"), expander $(state "$brings")"
scancel "$brings"
until_true none
sleep 5
echo "no job, allocated: $(allocated)"
SH
)
echo "$printed"
says "the expander starts without its job" '^job CANCELLED, expander RUNNING$' "$printed"
says "scancel returns its nodes" '^no job, allocated: $' "$printed"
