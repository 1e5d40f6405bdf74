# Functions for findings about Slurm, to be sourced. They need root, debootstrap, and Debian's packages.
#
#     slurm_is SUITE VERSION [accounting]    make a Debian in a temporary folder, with this version of Slurm
#     in_slurm NODES [KEY=VALUE...] <<SH     start a cluster in it, run a script on it, end it; print what the script prints
#     says WHAT PATTERN TEXT                 fail unless a line of TEXT matches the pattern
#     denies WHAT PATTERN TEXT               fail if one does
#
# A cluster has nodes n1 to nNODES of 2 CPUs, `main` as partition, time zone UTC, and namespaces of its own for network,
# processes and mounts: nothing listens on the machine, and nothing outlives the script.
set -euo pipefail
[[ $EUID == 0 ]] || { echo "a Slurm of one's own needs root" >&2; exit 2; }

slurm_is() {
    root=$(mktemp -d) accounting=${3:-}
    chmod 755 "$root" # the users of the servers read it
    trap 'rm -rf --one-file-system "$root"' EXIT
    local packages=slurmctld,slurmd,slurm-client,munge,iproute2
    [[ -z $accounting ]] || packages+=,slurmdbd,mariadb-server
    debootstrap --variant=minbase --include="$packages" "$1" "$root" >"$root.log" 2>&1 || { tail "$root.log"; exit 1; }
    rm -f "$root.log"
    local version
    version=$(chroot "$root" dpkg-query -W -f '${Version}' slurmctld)
    [[ $version == "$2" ]] || { echo "Slurm is $version in $1, not $2: look again" >&2; exit 1; }
    echo "Slurm $version of Debian's $1"
}

in_slurm() {
    local nodes=$1 script
    shift
    script=$(cat)
    {
        cat <<CONF
ClusterName=finding
SlurmctldHost=localhost
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
StateSaveLocation=/cluster/state
SlurmdSpoolDir=/cluster/spool-%n
SlurmctldPidFile=/cluster/slurmctld.pid
SlurmdPidFile=/cluster/slurmd-%n.pid
SlurmctldLogFile=/cluster/slurmctld.log
SlurmdLogFile=/cluster/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/backfill
ReturnToService=2
MinJobAge=3600
CONF
        [[ $* == *SelectType=* ]] || echo SelectType=select/linear
        [[ $* == *SchedulerParameters=* ]] ||
            echo SchedulerParameters=bf_interval=1,bf_resolution=1,sched_min_interval=0,batch_sched_delay=0
        [[ -z $accounting ]] || printf '%s\n' AccountingStorageType=accounting_storage/slurmdbd \
            AccountingStorageHost=localhost JobAcctGatherType=jobacct_gather/none
        # A NodeName or PartitionName among the settings replaces the lines below.
        printf '%s\n' "$@"
        [[ $* == *NodeName=* ]] ||
            echo "NodeName=n[1-$nodes] NodeHostname=localhost Port=[17001-$((17000 + nodes))] CPUs=2 RealMemory=1000"
        [[ $* == *PartitionName=* ]] ||
            echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 State=UP"
    } >"$root/slurm.conf"
    cat >"$root/slurmdbd.conf" <<CONF
DbdHost=localhost
DbdAddr=127.0.0.1
SlurmUser=root
StorageType=accounting_storage/mysql
StorageLoc=slurm_accounting
StorageUser=root
LogFile=/cluster/slurmdbd.log
PidFile=/cluster/slurmdbd.pid
CONF
    chmod 600 "$root/slurmdbd.conf"
    printf '%s\n' "$script" >"$root/script"
    ACCOUNTING=$accounting NODES=$nodes timeout -k 5 900 unshare --mount --net --uts --pid --fork --kill-child \
        bash -c 'mount --rbind /sys "$0/sys"; exec chroot "$0" "$@"' "$root" bash -euo pipefail -c '
        export LC_ALL=C TZ=UTC PATH=/usr/sbin:/usr/bin:/sbin:/bin
        mount -t proc proc /proc
        ip link set lo up
        ip link add own type veth peer name other # with no address but the loopback, servers find none to listen on
        ip address add 192.0.2.1/24 dev own
        ip link set own up
        hostname localhost
        echo 127.0.0.1 localhost >/etc/hosts
        confs=/etc/slurm
        rm -rf /cluster && mkdir -p "$confs" /cluster/state /run/munge
        mv /slurm.conf /slurmdbd.conf "$confs"
        until_true() { for _ in $(seq 300); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.2; done
            echo "not within a minute: $*" >&2; tail -n 5 /cluster/*.log >&2; return 1; }
        chown munge: /run/munge && runuser -u munge -- munged
        if [[ -n $ACCOUNTING ]]; then
            mkdir -p /run/mysqld && chown mysql: /run/mysqld && mariadbd --user=root --skip-networking >/dev/null 2>&1 &
            until_true mariadb-admin ping
            slurmdbd
            until_true sacctmgr -n list cluster
            sacctmgr -n list cluster | grep -q finding || sacctmgr -i add cluster finding >/dev/null
        fi
        slurmctld
        for node in $(seq "$NODES"); do mkdir -p "/cluster/spool-n$node"; slurmd -N "n$node"; done
        idle() { [[ $(sinfo -h -t idle -o %D) == "$NODES" ]]; }
        until_true idle
        export -f until_true
        bash -euo pipefail /script' </dev/null
}

says() { grep -Eq -- "$2" <<<"$3" || { echo "changed: $1" >&2; exit 1; }; }
denies() { ! grep -Eq -- "$2" <<<"$3" || { echo "changed: $1" >&2; exit 1; }; }
