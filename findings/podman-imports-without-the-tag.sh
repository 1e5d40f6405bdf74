#!/usr/bin/env bash
# Guess: POST /images/create?fromSrc=-&repo=NAME&tag=TAG of Docker's API imports an image as NAME:TAG, also when Podman
# serves it. Podman 4.3.1 ignores `tag`, and the image is `latest`; Podman 5.4.2 does not. `repo=NAME:TAG` works with
# both. Second guess: a service keeps the limits of the shell that starts it (ulimit -Hu). Podman 4.3.1 lowers its limit
# of processes to the largest process ID, and a container may not exceed it; Podman 5.4.2 does not.
set -euo pipefail
[[ $EUID == 0 ]] || { echo "debootstrap needs root" >&2; exit 2; }

# Print the names of two imported images, and the hard limit of processes of the service, for Podman of a Debian.
podman_says() {
    local suite=$1 root
    root=$(mktemp -d)
    chmod 755 "$root"
    debootstrap --variant=minbase --include=podman,netavark,runc,curl,iproute2 "$suite" "$root" >"$root.log" 2>&1 ||
        { tail "$root.log"; exit 1; }
    rm -f "$root.log"
    # The root of the namespace is a mount, not a chroot: Podman 5 imports no image in a chroot.
    unshare --mount --net --propagation private bash -euo pipefail -c '
        mount --bind "$1" "$1"
        cd "$1"
        mount --rbind /proc proc
        mount --rbind /sys sys
        mount --rbind /dev dev
        mount -t tmpfs tmpfs run
        mkdir -p old
        pivot_root . old
        cd /
        umount -l /old
        ip link set lo up
        dpkg-query -W podman
        (($(ulimit -Hu) > $(cat /proc/sys/kernel/pid_max))) || { echo "ulimit -Hu is too low here" >&2; exit 2; }
        mkdir -p /etc/containers
        echo "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}" >/etc/containers/policy.json
        podman system service --time 0 unix:///run/podman.sock 2>/dev/null &
        service=$!
        trap "kill $service; wait $service || true" EXIT
        until [[ -S /run/podman.sock ]]; do sleep 0.1; done
        import() {
            tar -c /etc/debian_version 2>/dev/null | curl -sf --unix-socket /run/podman.sock -X POST --data-binary @- \
                -H "Content-Type: application/x-tar" "http://podman/v1.41/images/create?fromSrc=-&$1" >/dev/null
        }
        import "repo=apart&tag=t"
        import "repo=joined:t"
        podman images --format "image {{.Repository}}:{{.Tag}}"
        limit=$(grep "^Max processes" /proc/$service/limits | tr -s " " | cut -d " " -f 4)
        echo "the service may have $((limit - $(cat /proc/sys/kernel/pid_max))) processes more than there are IDs"
    ' bash "$root"
    rm -rf --one-file-system "$root"
}

expect() {
    grep -q -E "$2" <<<"$3" && echo "$1" || { echo "$1: not so" >&2; exit 1; }
}

old=$(podman_says bookworm)
new=$(podman_says trixie)
printf '%s\n' "$old" "$new"
expect "Debian 12 has Podman 4.3.1" '^podman.4\.3\.1' "$old"
expect "Debian 13 has Podman 5.4.2" '^podman.5\.4\.2' "$new"
expect "Podman 4.3.1 ignores the tag" '^image docker.io/library/apart:latest$' "$old"
expect "Podman 4.3.1 takes the tag as part of the name" '^image docker.io/library/joined:t$' "$old"
expect "Podman 5.4.2 takes the tag" '^image docker.io/library/apart:t$' "$new"
expect "Podman 4.3.1 lowers the limit of processes of its service" '^the service may have 0 ' "$old"
expect "Podman 5.4.2 does not" '^the service may have [1-9]' "$new"
