#!/usr/bin/env bash
# Guess: sacctmgr and scontrol refuse names with `|`, the delimiter of `sacct -P`, or sacct quotes the fields. Slurm
# 22.05.8: accounts, QOS, wckeys, reservations and jobs may be named so, and sacct prints the names as they are: a row
# has more fields than the head. With --delimiter=';' the same row has as many.
. "$(dirname "$0")/lib/slurm.sh"
slurm_is bookworm 22.05.8-4+deb12u3 accounting
printed=$(in_slurm 1 AccountingStorageEnforce=associations,qos,wckeys TrackWCKey=yes <<'SH'
sacctmgr -iQ add account 'a|a' >/dev/null
sacctmgr -iQ add qos 'q|q' >/dev/null
sacctmgr -iQ add user root account='a|a' wckey='w|w' >/dev/null
sacctmgr -iQ modify user root where account='a|a' set qos+='q|q' >/dev/null
scontrol create reservation reservationname='r|r' starttime=now duration=60 users=root nodes=n1 >/dev/null
known() { sacctmgr -n list reservation format=name | grep -q 'r|r'; }
until_true known
sleep 2 # the reservation begins before the job
submitted() { sbatch -A 'a|a' --qos='q|q' --wckey='w|w' --reservation='r|r' -J 'j|j' -o /dev/null --wrap true; }
until_true submitted # the controller learns of the names a moment later
recorded() { [[ $(sacct -anX -o state) == *COMPLETED* ]]; }
until_true recorded
columns=jobname,account,qos,wckey,reservation,state
sacct -aXP -o $columns
sacct -aXP --delimiter=';' -o $columns
SH
)
echo "$printed"
says "the head has 6 fields" '^JobName\|Account\|QOS\|WCKey\|Reservation\|State$' "$printed"
says "the row has 11" '^j\|j\|a\|a\|q\|q\|w\|w\|r\|r\|COMPLETED$' "$printed"
says "with another delimiter it has 6" '^j\|j;a\|a;q\|q;w\|w;r\|r;COMPLETED$' "$printed"
