#!/bin/sh
# Makes the Python environment for this checkout: e2e/setup.sh PYTHON VENV
# Debian ships Python without venv; as root it is installed, otherwise the command is named.
# Of several runs at once for one checkout, one installs, and the others find everything there.
set -eu
python=$1
venv=$2

exec 8<.
if command -v flock >/dev/null; then
    flock 8
fi

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing python$version-venv"
        sh "$(dirname "$0")/apt-install.sh" "python$version-venv"
    else
        echo "this Python cannot make environments; run: apt-get install python$version-venv" >&2
        exit 1
    fi
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "installing the project and its development tools into $venv"
# Every package by its hash, those of the build too; `make release-lock` updates them.
"$venv/bin/python" -m pip install --quiet --require-hashes --requirement e2e/release/locks/development.txt
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
