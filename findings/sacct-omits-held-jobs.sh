#!/usr/bin/env bash
# Guess: `sacct -a -S -E` lists each job that ran in the span. Slurm 22.05.8: it omits a job that was held while it ran
# (scontrol hold sets its eligible time to 0), and one that was cancelled while held. With all states named (-s), both
# are listed.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
printed=$(in_slurm 2 <<'SH'
begin=$(date +%FT%T)
sbatch -Q -J ordinary -o /dev/null --wrap "sleep 1"
sbatch -Q -J held-while-running -o /dev/null --wrap "sleep 6"
sbatch -Q -J cancelled-while-held --hold -o /dev/null --wrap "sleep 1"
running() { [[ $(squeue -h -t R -n held-while-running -o %i) == 2 ]]; }
until_true running
scontrol hold 2
scancel 3
none() { [[ -z $(squeue -h) ]]; }
until_true none
recorded() { [[ $(sacct -aXn -j 1,2,3 -o state%30 | grep -c -E 'COMPLETED|CANCELLED') == 3 ]]; }
until_true recorded
sleep 1
span=(-aXP -S "$begin" -E "$(date -d '+1 minute' +%FT%T)" -o jobname,state,eligible)
echo "without -s:"
sacct "${span[@]}"
echo "with -s:"
sacct "${span[@]}" -s BF,CA,CD,DL,F,NF,OOM,PD,PR,R,RQ,RS,RV,S,TO | sed 's/^/all states: /'
SH
)
echo "$printed"
says "an ordinary job is listed" '^ordinary\|COMPLETED' "$printed"
denies "a job held while it ran is omitted" '^held-while-running' "$printed"
denies "a job cancelled while held is omitted" '^cancelled-while-held' "$printed"
says "naming all states lists the held one" '^all states: held-while-running\|COMPLETED\|Unknown' "$printed"
says "naming all states lists the cancelled one" '^all states: cancelled-while-held\|CANCELLED' "$printed"
