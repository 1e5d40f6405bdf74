#!/usr/bin/env bash
# Guess: backfill starts a job of --time=1 that is to expand another (--dependency=expand:J) before a job of higher
# priority when a minute is free. Slurm 22.05.8: its --time is replaced by the rest of the limit of J, in whole minutes,
# so it waits unless J ends before the job of higher priority can start. `scontrol update TimeLimit=1` makes it start.
# The merge then gives its nodes to J until the end of J, and the job of higher priority is delayed, by 40 minutes here.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
printed=$(in_slurm 8 \
    SchedulerParameters=bf_interval=1,bf_resolution=1,sched_min_interval=0,batch_sched_delay=0,permit_job_expansion \
    SelectType=select/cons_tres SelectTypeParameters=CR_Core <<'SH'
running() { [[ $(squeue -h -j "$1" -o %T) == RUNNING ]]; }
none() { [[ -z $(squeue -h) ]]; }
planned() { scontrol show job "$1" | grep -q 'StartTime=2'; }
submit() { sbatch --parsable -o /dev/null --ntasks-per-node=2 "$@" --wrap "sleep 300"; }
starts() { date -d "$(scontrol show job "$1" | grep -oP '^ *StartTime=\K\S+')" +%s; }
cd /tmp # for the scripts that scontrol writes
for limit in 10 60; do
    job=$(submit -N2 --time=$limit)
    until_true running "$job"
    blocker=$(submit -N2 --time=20)
    until_true running "$blocker"
    head=$(submit -N6 --time=10)
    [[ $limit == 60 ]] || head=$(submit -N8 --time=10)
    until_true planned "$head"
    plan=$(starts "$head")
    # salloc waits for the nodes; without --no-shell, a step would hinder the merge.
    salloc -Q -J brings -N4 --ntasks-per-node=2 --time=1 --dependency="expand:$job" --no-shell &
    until_true eval '[[ -n $(squeue -h -n brings) ]]'
    brings=$(squeue -h -n brings -o %i)
    sleep 5
    echo "limit $limit: --time=1 is $(squeue -h -j "$brings" -o '%l %T')"
    if [[ $limit == 60 ]]; then
        scontrol update jobid="$brings" timelimit=1
        until_true running "$brings"
        sleep 3
        echo "with TimeLimit=1: the plan moves by $(($(starts "$head") - plan)) s"
        scontrol update jobid="$brings" numnodes=0 >/dev/null
        sleep 3
        echo "after the merge: the plan moves by $((($(starts "$head") - plan + 30) / 60)) minutes"
    fi
    scancel -u root
    until_true none
done
SH
)
echo "$printed"
says "the job ends before the plan: the rest of its limit, and it starts" '^limit 10: --time=1 is (9:00|10:00) RUNNING$' "$printed"
says "the job ends after the plan: the rest of its limit, and it waits" '^limit 60: --time=1 is (59:00|1:00:00) PENDING$' "$printed"
says "a limit set later counts" '^with TimeLimit=1: the plan moves by 0 s$' "$printed"
says "the merge delays the job of higher priority" '^after the merge: the plan moves by 40 minutes$' "$printed"
