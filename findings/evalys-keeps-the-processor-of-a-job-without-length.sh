#!/usr/bin/env bash
# Guess: when all jobs of Batsim's jobs.csv have ended, evalys 4.0.7 has all processors free again, also with a job of
# execution time 0. Its `free_intervals` hold the processors of such a job until another job on them ends: of two events
# of one instant, the end comes first. `utilisation` is right. And a rejected job, without times, adds a row at NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install evalys==4.0.7 pandas==3.1.1 numpy==2.4.6
cat >"$folder/jobs.csv" <<'CSV'
job_id,workload_name,profile,submission_time,requested_number_of_resources,requested_time,success,final_state,starting_time,execution_time,finish_time,waiting_time,turnaround_time,stretch,allocated_resources,consumed_energy
1,w,long,0.0,2,100.0,1,COMPLETED_SUCCESSFULLY,0.0,50.0,50.0,0.0,50.0,1.0,0-1,-1
2,w,none,10.0,1,100.0,1,COMPLETED_SUCCESSFULLY,60.0,0.0,60.0,50.0,50.0,inf,3,-1
3,w,long,20.0,2,100.0,1,COMPLETED_SUCCESSFULLY,70.0,50.0,120.0,50.0,100.0,2.0,0-1,-1
4,w,long,30.0,9,100.0,0,REJECTED,,,,,,,,-1
CSV
printed=$("$folder/venv/bin/python" -W ignore - "$folder/jobs.csv" <<'PY'
import sys

from evalys.jobset import JobSet

jobs = JobSet.from_csv(sys.argv[1])
for time, free in jobs.free_intervals().itertuples(index=False):
    print(f"free at {time}: {free}")
print(f"load at the end: {jobs.utilisation.load.iloc[-1]}")
PY
)
echo "$printed"
says() { grep -Eq -- "$2" <<<"$printed" || { echo "changed: $1" >&2; exit 1; }; }
says "the processor of the job without length is not free" '^free at 60\.0: 0-2$'
says "nor is it after the last job" '^free at 120\.0: 0-2$'
says "the utilisation ends at 0" '^load at the end: 0$'
says "a rejected job adds a row without time" '^free at nan: '
