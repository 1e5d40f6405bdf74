#!/bin/sh
# A job of a replay on a batch system: works for LENGTH nanoseconds, and records its start and end.
#
#   job.sh FOLDER NAME LENGTH [GRAIN [PROGRAM APPLICATION STATE_MIB]]
#
# Without GRAIN, the job sleeps until LENGTH after its start. With GRAIN, it is malleable: it runs a step of Slurm (a
# rank) on each node in FOLDER/NAME.size, advances at the rate in this file, and reads the file every GRAIN nanoseconds,
# at its malleability points. The file has the line "REQUEST RATE NODES...", with the rate in millionths. If Slurm chose
# the nodes, there is no file, and the script writes the first one. A PROGRAM does this work in place of the script, and
# records its sizes: it is a command of the shell, and has the file, the beginning of the names of the records, LENGTH
# and GRAIN in the variables TRACEBED_SIZE, _RECORD, _WORK and _GRAIN, and the last arguments in TRACEBED_APPLICATION
# and _STATE_MIB.
#
# FOLDER/NAME.ID.start, .end and .resized are written atomically, readable by their owner only. ID is that of the
# batch system. Needs GNU date and sleep.
umask 077
folder=$1 size=$1/$2.size length=$3 grain=$4 id=${SLURM_JOB_ID:-$OAR_JOB_ID} first=$SLURM_JOB_NODELIST
name=$2.$id
start=$(date +%s%N)
launched=$start

# note KIND FIELDS: writes a record.
note() {
    printf 'job=%s\nhost=%s\nnodes=%s\nrestarts=%s\nstart=%s\nlaunched=%s\n%s' "$id" "$(uname -n)" \
        "$first" "${SLURM_RESTART_COUNT:-0}" "$start" "$launched" "$2" >"$folder/.$name.$1" &&
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

# rest NANOSECONDS: sleeps. A signal ends the sleep.
rest() {
    if [ "$1" -gt 0 ]; then
        sleep "$(($1 / 1000000000)).$(printf %09d "$(($1 % 1000000000))")" &
        wait "$!"
    fi
}

# launch NODE: runs a rank on a node, as the last one of `kept`.
launch() {
    srun --jobid="$id" --overlap --mpi=none --nodes=1 --ntasks=1 --nodelist="$1" \
        sh -c 'echo up; exec sleep 2147483647' </dev/null >&3 2>&1 &
    kept="$kept $1:$!"
}

# relaunch NODE: runs another rank on a node, in the next second.
relaunch() {
    others=''
    for rank in $kept; do case $rank in "$1":*) ;; *) others="$others $rank" ;; esac; done
    kept=$others
    rest 1000000000
    launch "$1"
}

# resize NODES...: ends the ranks on other nodes, and runs ranks on new nodes. `ranks` has NODE:PID of each rank.
resize() {
    kept='' ended='' added='' tries=30
    for rank in $ranks; do
        case " $* " in
            *" ${rank%:*} "*) kept="$kept $rank" ;;
            *) kill -TERM "${rank#*:}" && ended="$ended ${rank#*:}" ;;
        esac
    done
    [ -z "$ended" ] || wait $ended
    for node in "$@"; do
        case "$kept " in *" $node:"*) continue ;; esac
        launch "$node"
        added="$added $node"
    done
    for node in $added; do
        while read -r line <&3 && [ "$line" != up ]; do # messages of ranks that have ended come first
            case $line in
                *'Task launch'*'on node '*'ob credential'*) # revoked, or invalid: it left the node within this second
                    again=${line##*on node } tries=$((tries - 1))
                    [ "$tries" -gt 0 ] || { printf '%s\n' "$line"; finish failed; exit 1; }
                    relaunch "${again%%:*}" ;;
                *'error: Unable'* | *'error: Task launch'*) printf '%s\n' "$line"; finish failed; exit 1 ;; esac
        done
    done
    ranks=$kept
}

# work: works until LENGTH is reached.
work() {
    unset SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_NODELIST SLURM_JOB_NODELIST SLURM_NTASKS SLURM_NPROCS \
        SLURM_TASKS_PER_NODE SLURM_NTASKS_PER_NODE SLURM_JOB_CPUS_PER_NODE # Slurm does not change them at resizes
    # Of the nodes that a job is given, Slurm knows the CPUs of the first one only. Steps of one CPU start on all, but
    # srun of newer versions (26.05) takes the CPUs of a task from these variables, and would wait for ever.
    unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK
    pipe=$(mktemp -u) && mkfifo "$pipe" && exec 3<>"$pipe" && rm -f "$pipe" || exit 1
    ranks='' request=0 rate=0 worked=0 last=$start
    while :; do
        read -r wanted next nodes <"$size" || exit 1
        now=$(date +%s%N)
        worked=$((worked + (now - last) / 1000 * rate / 1000)) last=$now
        if [ "$wanted" != "$request" ]; then
            resize $nodes
            last=$(date +%s%N)
            [ "$request" != 0 ] || launched=$last
            request=$wanted rate=$next
            note resized "request=$request
seen=$now
applied=$last
"
        fi
        left=$((length - worked))
        [ "$left" -gt 0 ] || break
        left=$((left / rate * 1000000 + left % rate * 1000000 / rate))
        rest $((left < grain ? left : grain))
    done
}

# begin: writes the size with which Slurm has started the job.
begin() {
    nodes=$(scontrol show hostnames "$first") &&
        printf '1 1000000 %s\n' "$(printf %s "$nodes" | tr '\n' ' ')" >"$folder/.$name.size" &&
        mv -f "$folder/.$name.size" "$size"
}

# run PROGRAM APPLICATION STATE_MIB: runs the program until it ends.
run() {
    TRACEBED_SIZE=$size TRACEBED_RECORD=$folder/$name TRACEBED_WORK=$length TRACEBED_GRAIN=$grain \
        TRACEBED_APPLICATION=$2 TRACEBED_STATE_MIB=$3 sh -c "exec $1" &
    ranks=program:$!
    wait "$!" || { finish failed; exit 1; }
    ranks=''
    if [ -r "$folder/$name.launched" ]; then read -r launched <"$folder/$name.launched"; fi
}

trap 'finish terminated; for rank in $ranks; do kill -TERM "${rank#*:}"; done; exit 143' TERM
note start '' || exit 1
[ -z "$grain" ] || [ -e "$size" ] || begin || exit 1
if [ -n "$5" ]; then
    run "$5" "$6" "$7"
elif [ -n "$grain" ]; then
    work
else
    now=$(date +%s%N) # a signal also ends this program; the trap then runs before the value is used
    rest $((start + length - now))
fi
finish completed
tries=300 # Slurm 22.05 loses nodes if a job ends while they are given to it
while [ -n "$grain" ] && [ -e "${size%.size}.busy" ] && [ "$tries" -gt 0 ]; do sleep 0.1; tries=$((tries - 1)); done
for rank in $ranks; do kill -TERM "${rank#*:}"; done
wait
