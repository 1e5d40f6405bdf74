#!/usr/bin/env bash
# Guess: `salloc -N 1-4 --ntasks-per-node=2` receives 4 of 5 idle nodes. Slurm 22.05.8: 2, and 1 with
# --ntasks-per-node=1, with and without --dependency=expand:J. Without -n, the job has the tasks of its least number of
# nodes, and never more nodes than tasks. With -n8, it waits for 4 nodes. `-N 1-4 -c 2` does what was meant: 4 nodes of
# 2 CPUs, or 2 nodes if 2 are idle.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
printed=$(in_slurm 6 \
    SchedulerParameters=bf_interval=1,bf_resolution=1,sched_min_interval=0,batch_sched_delay=0,permit_job_expansion \
    SelectType=select/cons_tres SelectTypeParameters=CR_Core <<'SH'
running() { [[ $(squeue -h -j "$1" -o %T) == RUNNING ]]; }
none() { [[ -z $(squeue -h) ]]; }
submit() { sbatch --parsable -o /dev/null "$@" --wrap "sleep 300"; }
try() { # idle nodes, dependency or '', options of the expander
    local idle=$1 job other dependency=()
    job=$(submit -N1 -n2)
    until_true running "$job"
    if [[ $idle != 5 ]]; then
        other=$(submit -N$((5 - idle)) -c2)
        until_true running "$other"
    fi
    [[ -z $2 ]] || dependency=("--dependency=expand:$job")
    salloc -Q -J brings "${dependency[@]}" "${@:3}" --no-shell 2>/dev/null & # scancel of a waiting one is an error
    sleep 3
    echo "$idle idle, $2 ${*:3}: $(squeue -h -n brings -o '%T nodes %D CPUs %C')"
    scancel -u root
    until_true none
}
try 5 expand -N1-4 --ntasks-per-node=2
try 5 expand -N1-4 --ntasks-per-node=1
try 5 '' -N1-4 --ntasks-per-node=2
try 2 expand -N1-4 -n8 --ntasks-per-node=2
try 5 expand -N1-4 -c2
try 2 expand -N1-4 -c2
SH
)
echo "$printed"
says "2 tasks a node: 2 nodes" '^5 idle, expand -N1-4 --ntasks-per-node=2: RUNNING nodes 2 CPUs 4$' "$printed"
says "1 task a node: 1 node" '^5 idle, expand -N1-4 --ntasks-per-node=1: RUNNING nodes 1 CPUs 1$' "$printed"
says "without the dependency: the same" '^5 idle,  -N1-4 --ntasks-per-node=2: RUNNING nodes 2 CPUs 4$' "$printed"
says "8 tasks: all 4 nodes or none" '^2 idle, expand -N1-4 -n8 --ntasks-per-node=2: PENDING ' "$printed"
says "2 CPUs for a task: up to 4 nodes" '^5 idle, expand -N1-4 -c2: RUNNING nodes 4 CPUs 8$' "$printed"
says "2 CPUs for a task: the 2 that are idle" '^2 idle, expand -N1-4 -c2: RUNNING nodes 2 CPUs 4$' "$printed"
