#!/usr/bin/env bash
# Guess: --dependency=expand:ARRAY_TASK expands that task, as ARRAY_TASK names it in scontrol, scancel and other
# dependencies. Slurm 22.05.8: the expander is accepted if that task runs, and the merge (NumNodes=0) gives its nodes to
# the last task of the array, whose JobId is that of the array. The JobId of a task (`squeue -o %A`) expands this task.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
printed=$(in_slurm 6 \
    SchedulerParameters=bf_interval=1,bf_resolution=1,sched_min_interval=0,batch_sched_delay=0,permit_job_expansion \
    SelectType=select/cons_tres SelectTypeParameters=CR_Core <<'SH'
running() { [[ $(squeue -h -t R -j "$1" | wc -l) == 3 ]]; }
none() { [[ -z $(squeue -h) ]]; }
try() { # how the dependency names task 1
    array=$(sbatch --parsable -o /dev/null -N1 -c2 --time=10 --array=1-3 --wrap "sleep 300")
    until_true running "$array"
    case $1 in
    task) named=${array}_1 ;;
    JobId) named=$(squeue -h -j "${array}_1" -o %A) ;;
    esac
    salloc -Q -J brings -N1 -c2 --dependency="expand:$named" --no-shell
    scontrol update jobid="$(squeue -h -n brings -o %i)" numnodes=0 >/dev/null
    echo "by $1: $(squeue -h -j "$array" -o 'task %K has %D' | sort | xargs)"
    scancel "$array"
    until_true none
}
try task
try JobId
SH
)
echo "$printed"
says "expand:ARRAY_1 expands the last task" '^by task: task 1 has 1 task 2 has 1 task 3 has 2$' "$printed"
says "the JobId of task 1 expands task 1" '^by JobId: task 1 has 2 task 2 has 1 task 3 has 1$' "$printed"
