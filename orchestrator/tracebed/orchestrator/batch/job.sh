#!/bin/sh
# A job of a replay on a batch system: waits until LENGTH nanoseconds after its own start, and records start and end.
#
#   job.sh FOLDER NAME LENGTH
#
# FOLDER/NAME.ID.start and FOLDER/NAME.ID.end are written atomically, readable by their owner only. ID is that of the
# batch system. Needs GNU date and sleep.
umask 077
folder=$1 length=$3 id=${SLURM_JOB_ID:-$OAR_JOB_ID}
name=$2.$id
start=$(date +%s%N)

# note KIND FIELDS: writes a record.
note() {
    printf 'job=%s\nhost=%s\nnodes=%s\nrestarts=%s\nstart=%s\n%s' "$id" "$(uname -n)" \
        "$SLURM_JOB_NODELIST" "${SLURM_RESTART_COUNT:-0}" "$start" "$2" >"$folder/.$name.$1" &&
        mv -f "$folder/.$name.$1" "$folder/$name.$1"
}

# finish STATUS: writes the record of the end.
finish() {
    trap '' TERM
    end=$(date +%s%N)
    note end "end=$end
status=$1
"
}

trap 'finish terminated; exit 143' TERM
note start '' || exit 1
now=$(date +%s%N) # a signal also ends this program; the trap then runs before the value is used
left=$((start + length - now))
if [ "$left" -gt 0 ]; then
    sleep "$((left / 1000000000)).$(printf %09d "$((left % 1000000000))")" &
    wait "$!"
fi
finish completed
