#!/usr/bin/env bash
# Guess: sacct -X prints one row of a resized job, and with -D a row for each size, each from the resize before it to
# its own. Slurm 22.05.8: a row for each size without -D. A row after a growth starts at the growth, but a row after a
# shrink starts at the start of the job, also if the job grew before: the rows overlap, and their node-seconds are too
# many. The job that brought the nodes leaves a row COMPLETED of 0 nodes whose end is Unknown and whose Elapsed grows
# for ever. For scontrol, its RunTime is its TimeLimit.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
printed=$(in_slurm 6 SchedulerParameters=bf_interval=1,bf_resolution=1,sched_min_interval=0,permit_job_expansion <<'SH'
running() { [[ $(squeue -h -j "$1" -o %T) == RUNNING ]]; }
submit() {
    sbatch -Q -J "$2" -N "$3" -o /dev/null --wrap "sleep 300"
    until_true running "$1"
    sleep 3
}
resize() {
    scontrol update jobid="$1" numnodes="$2" >/dev/null
    sleep 3
}
cd /tmp # for the scripts that scontrol writes
submit 1 shrunk 3
resize 1 2
resize 1 1
submit 2 grown 1
salloc -Q -J brings -N2 --dependency=expand:2 --no-shell
until_true running 3
sleep 3 # so that its start is recorded before its end
scontrol update jobid=3 numnodes=0 >/dev/null
resize 2 ALL
resize 2 2
scancel 1 2
recorded() { [[ $(sacct -anX -j 1,2 -o state | grep -c CANCELLED) == 2 ]]; }
until_true recorded
sacct -anXP -o jobid,jobname,nnodes,start,end,elapsedraw,state | sort -s -t '|' -k1,1 -k5,5
sleep 2
sacct -anXP -j 3 -o jobname,elapsedraw | sed 's/^/later: /'
scontrol show job 3 | grep -oE 'JobState=\S+|RunTime=.*' | xargs
SH
)
echo "$printed"
column() { awk -F '|' -v name="$1" -v column="$2" '$2 == name { print $column }' <<<"$printed" | xargs; }
summed() { awk -F '|' -v name="$1" '$2 == name { sum += $3 * $6 } END { print sum }' <<<"$printed"; }
# The node-seconds of sizes that follow each other.
true_sum() {
    awk -F '|' -v name="$1" '$2 == name { gsub(/[-T:]/, " ", $5); gsub(/[-T:]/, " ", $4); end = mktime($5, 1)
        sum += $3 * (end - (last ? last : mktime($4, 1))); last = end } END { print sum }' <<<"$printed"
}
for name in shrunk grown; do echo "$name: $(summed $name) node-seconds, $(true_sum $name) held"; done
read -r -a starts <<<"$(column shrunk 4)"
says "rows of the shrunk job without -D" '^3 2 1$' "$(column shrunk 3)"
says "each row of it starts at its start" "^${starts[0]} ${starts[0]} ${starts[0]}\$" "${starts[*]}"
read -r -a starts <<<"$(column grown 4)"
read -r -a ends <<<"$(column grown 5)"
says "rows of the grown job without -D" '^1 3 2$' "$(column grown 3)"
says "its rows start at the start, the growth, the start" "^${starts[0]} ${ends[0]} ${starts[0]}\$" "${starts[*]}"
for name in shrunk grown; do denies "node-seconds are too many" "^$(true_sum $name)\$" "$(summed $name)"; done
says "the job that brought nodes held them until the growth" '^3\|brings\|2\|.*\|RESIZING$' "$printed"
says "and completed without end" '^3\|brings\|0\|.*\|Unknown\|[0-9]+\|COMPLETED$' "$printed"
elapsed=$(grep -oP '^3\|brings\|0\|.*Unknown\|\K[0-9]+' <<<"$printed")
denies "its elapsed time grows" "^later: brings\|$elapsed\$" "$printed"
says "and ran for its whole limit" '^JobState=COMPLETED RunTime=(\S+) TimeLimit=\1 ' "$printed"
