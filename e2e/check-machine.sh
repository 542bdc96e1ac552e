#!/bin/sh
# Checks that this machine can build programs and run two clusters, before anything is built: one line for
# what is missing, and what to do about it.
set -eu

fail() {
    echo "this machine cannot run clusters: $1" >&2
    exit 1
}

# Programs, images and the state of six clusters take 5 GB.
needed=8388608 # KiB
for folder in . "$HOME"; do
    free=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$needed" ] ||
        fail "$((free / 1048576)) GB are free in $(cd "$folder" && pwd), 8 GB are needed; free some space"
done

# With a Docker engine, kind runs the clusters.
if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
    exit 0
fi
[ "$(id -u)" = 0 ] ||
    fail 'without a Docker engine, network namespaces and kubelets need root; run it as root, or start Docker'
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null ||
    fail 'the kernel has no overlay file system; run: modprobe overlay'
command -v apt-get >/dev/null && exit 0
# Administrators' programs, and Debian's network plugins, are not on every PATH.
PATH=$PATH:${SYSTEM_PROGRAMS:-/usr/local/sbin:/usr/sbin:/sbin:/usr/lib/cni}
missing=
for program in ip nsenter containerd runc ptp busybox iptables conntrack socat mount; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
[ -z "$missing" ] || fail "these programs are missing:$missing; install the packages that have them"
