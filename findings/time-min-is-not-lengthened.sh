#!/usr/bin/env bash
# Guess: a job with --time-min that backfill starts before a job of higher priority gets the longest limit that does
# not delay this job, its whole --time where that fits. Slurm 22.05.8: its limit is cut to --time-min, also where 2
# hours are free for --time=60. `scontrol show job` then has the short TimeLimit, and the limit submitted is lost.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3
printed=$(in_slurm 2 <<'SH'
running() { [[ $(squeue -h -j "$1" -o %T) == RUNNING ]]; }
planned() { scontrol show job "$1" | grep -q 'StartTime=2'; }
none() { [[ -z $(squeue -h) ]]; }
try() {
    id=$(sbatch --parsable -N1 --time=60 --time-min=10 -o /dev/null --wrap "sleep 300")
    until_true running "$id"
    echo "$1: $(scontrol show job "$id" | grep -oE 'TimeLimit=\S+|TimeMin=\S+' | xargs)"
    scancel -u root
    until_true none
}
for free in 30 120; do
    blocker=$(sbatch --parsable -N1 --time=$free -o /dev/null --wrap "sleep 300")
    until_true running "$blocker"
    wide=$(sbatch --parsable -N2 --time=60 -o /dev/null --wrap "sleep 300")
    until_true planned "$wide"
    try "$free minutes are free"
done
SH
)
echo "$printed"
says "30 minutes are free, 10 allowed" '^30 minutes are free: TimeLimit=00:10:00 TimeMin=00:10:00' "$printed"
says "120 minutes are free, 10 allowed" '^120 minutes are free: TimeLimit=00:10:00 TimeMin=00:10:00' "$printed"
