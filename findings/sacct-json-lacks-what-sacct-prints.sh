#!/usr/bin/env bash
# Guess: `sacct --json` has at least what `sacct -P` prints, in the same terms. Slurm 22.05.8: it has no submit line,
# a number without meaning where -P prints the name of the reservation, and for the tasks of a pending array a
# hexadecimal mask (bit 0 is task 0). The start of a pending job is 0; that of a job cancelled before it started is
# null. In -P, the tasks of a long array are cut in the middle of a number (`60,6...%5]`), unless SLURM_BITSTR_LEN=0.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
printed=$(in_slurm 2 <<'SH'
scontrol create reservation reservationname=course starttime=now duration=60 users=root nodes=n1 >/dev/null
known() { sacctmgr -n list reservation format=name | grep -q course; }
until_true known
sleep 2 # the reservation begins before the job
sbatch -Q -J reserved --reservation=course -o /dev/null --wrap "sleep 300"
sbatch -Q -J blocks -o /dev/null --wrap "sleep 300"
running() { [[ $(squeue -h -t R -o %i | wc -l) == 2 ]]; }
until_true running
sbatch -Q -J short-array --array=0,2,5,9 -o /dev/null --wrap true
sbatch -Q -J long-array --array=1,3,6-200:3%5 -o /dev/null --wrap true
sbatch -Q -J cancelled -o /dev/null --wrap true
recorded() { [[ $(sacct -anX -j 5 -o state) == *$1* ]]; }
until_true recorded PENDING
scancel 5
until_true recorded CANCELLED
sacct -aXP -o jobid,jobname,state,start,reservation,submitline
SLURM_BITSTR_LEN=0 sacct -aXPn -j 4 -o jobid | sed 's/^/whole: /'
sacct -aX --json | tr -d ' \n' >/cluster/json
sed 's/{"account":"[^"]*","comment"/\n&/g' /cluster/json |
    sed -nE 's/.*("task":[^,]*),.*("start":[^,]*),.*"name":"([a-z-]+)","mcs".*("reservation":[^}]*\}).*/\3 \1 \2 \4/p' |
    sed 's/^/json: /'
echo
echo "json: $(grep -o sbatch /cluster/json | wc -l) submit lines"
SH
)
echo "$printed"
says "-P has the reservation and the submit line" '^1\|reserved\|RUNNING\|.*\|course\|sbatch .*reserved' "$printed"
says "-P lists a short array" '^3_\[0,2,5,9\]\|short-array\|PENDING\|Unknown' "$printed"
says "-P cuts a long array within a number" '^4_\[1,3,6,.*,57,60,6\.\.\.%5\]\|long-array' "$printed"
says "the whole of it" '^whole: 4_\[1,3,6,.*,57,60,63,66,.*,198%5\]$' "$printed"
says "JSON has a number as reservation" '^json: reserved .*"reservation":\{"id":1,"name":[1-9][0-9]+\}$' "$printed"
says "JSON has a mask of the tasks" '^json: short-array "task":"0x225" "start":0 ' "$printed"
says "JSON has null as start" '^json: cancelled .*"start":null ' "$printed"
says "JSON has no submit line" '^json: 0 submit lines$' "$printed"
