#!/bin/sh
# Installs Debian packages that are missing: e2e/apt-install.sh PACKAGE...
#
# Safe to run any number of times at once: one process installs, the others wait for it and then find
# the packages there. The lock is the machine's, since several checkouts can share one. Locks of other
# programs are waited for too; DPkg::Lock::Timeout does not cover that of the package lists.
# No service is started by what is installed: Docker's would bring rules for all packets of this machine.
set -eu

lock=${APT_INSTALL_LOCK:-/run/cluster-bridge-apt.lock}
policy=${APT_INSTALL_POLICY:-/usr/sbin/policy-rc.d}
patience=300 # seconds, for locks of other programs
wait='--option=DPkg::Lock::Timeout=300'
mark='# e2e/apt-install.sh'

exec 9>"$lock"
if command -v flock >/dev/null; then
    flock 9
fi

missing=
for package in "$@"; do
    # The virtual and the absent have no state.
    state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

said=$(mktemp)
finish() {
    rm -f "$said"
    # One that another run left when it was killed goes too.
    if grep -qsF "$mark" "$policy"; then rm -f "$policy"; fi
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs apt-get, which does not inherit the lock, again while another program holds a lock that apt does not wait for.
patiently() {
    until=$(($(date +%s) + patience))
    while ! DEBIAN_FRONTEND=noninteractive apt-get "$@" "$wait" >"$said" 2>&1 9>&-; do
        if ! grep -q 'Could not get lock' "$said" || [ "$(date +%s)" -ge "$until" ]; then
            cat "$said" >&2
            return 100
        fi
        sleep 1
    done
}

patiently update --quiet
if [ ! -e "$policy" ]; then
    # Debian's packages start their services unless this program says no (101).
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
    chmod 755 "$policy"
fi
# shellcheck disable=SC2086 # one word for each package
patiently install --yes --quiet --no-install-recommends $missing
