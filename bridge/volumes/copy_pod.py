"""The pods of `bridge volume copy`, and the scripts that run in them. Pure.

The image needs sh, awk, find, GNU coreutils, and GNU tar. The directory ``lost+found`` at
the root belongs to the file system: no script copies, deletes or compares it.
"""

from __future__ import annotations

from collections.abc import Iterable

from translators.derived_names import hashed_name
from translators.object_accessors import Object, name_of, namespace_of
from translators.ownership_labels import LABEL_VIRTUAL, LABEL_VOLUME_COPY
from translators.storage.identifiers import volume_handle

CONTAINER = "copy"
#: The file at the root of a target that is incomplete.
MARKER = "INCOMPLETE-VOLUME-COPY.txt"
#: Bytes between two lines of `DIGEST`; bytes of a read or write of tar.
DIGEST_STEP, _RECORD = 64 << 20, 256 << 10
#: Capabilities with which tar reads each file and restores owners, modes, devices and file
#: capabilities. The Pod Security level baseline permits them.
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP")


def copy_pod(
    claim: Object,
    *,
    role: str,
    pair: str,
    volume: Object | None,
    node: str,
    taints: Iterable[Object],
    image: str,
    run: str,
    timeout: float,
) -> Object:
    """The pod that mounts the claim; its name depends on the ``role`` and the ``pair`` of claims.

    The scheduler finds a node that can mount the claim's ``volume`` (None before it is bound);
    ``node`` permits only one. ``taints`` are those of all nodes. ``run`` identifies the command,
    whose pods start within ``timeout`` seconds. The pod ends by itself if its command was killed.
    """
    terms: Object = {}
    if volume is not None:
        operator = "DoesNotExist" if volume_handle(volume) is None else "Exists"
        terms["matchExpressions"] = [{"key": LABEL_VIRTUAL, "operator": operator}]
    if node:
        terms["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [terms]}}
    keys = {taint["key"] for taint in taints if not taint["key"].startswith("node.kubernetes.io/")}
    keys.add("node.kubernetes.io/unschedulable")  # A cordoned node can have data to copy.
    wait = f"""trap exit TERM; touch /tmp/active
while [ $(($(date +%s) - $(stat -c %Y /tmp/active))) -lt {timeout + 120:.0f} ]
do sleep 5 & wait $!; done"""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": hashed_name(f"volume-copy-{role}-{name_of(claim)}", f"{role}/{pair}"),
            "namespace": namespace_of(claim),
            "labels": {LABEL_VOLUME_COPY: run},
        },
        "spec": {
            "affinity": {"nodeAffinity": required},
            "tolerations": [{"key": key, "operator": "Exists"} for key in sorted(keys)],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": name_of(claim)}}],
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "command": ["sh", "-c", wait],
                    "volumeMounts": [
                        {"name": "volume", "mountPath": "/volume", "readOnly": role == "source"}
                    ],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"], "add": list(_CAPABILITIES)},
                    },
                }
            ],
        },
    }


def _script(body: str) -> str:
    """The body, run in the volume. ``$attributes`` are options of tar that the image supports."""
    return f"""(while touch /tmp/active && sleep 20; do :; done) </dev/null >/dev/null 2>&1 &
active=$!
trap 'kill $active' EXIT
set -f
cd "${{VOLUME:-/volume}}" || exit 1
tar --version 2>&1 | grep -q 'GNU tar' || {{ echo 'the image has no GNU tar' >&2; exit 1; }}
attributes=
for option in --acls '--xattrs --xattrs-include=user.* --xattrs-include=security.capability'; do
  [ -n "$(tar $option --no-recursion -cf /dev/null . 2>&1)" ] || attributes="$attributes $option"
done
{body}"""


_TAR = f"tar --numeric-owner --blocking-factor={_RECORD // 512} $attributes"
_CREATE = f"{_TAR} --create --format=posix --exclude=./lost+found --exclude=./{MARKER}"

#: Writes the numbers of files and their bytes, the bytes that `SEND` will write, ``$attributes``,
#: and ten names of sockets. For /dev/null, tar reads no content.
INSPECT = _script(f"""[ ! -e {MARKER} ] || {{
  echo 'the volume is an incomplete copy' >&2; exit 1; }}
find . -path ./lost+found -prune -o -type f -exec stat -c '%s %h' {{}} + | awk '
  {{ files++; bytes += $1 / $2 }}
  END {{ printf "%d %.0f ", files, bytes }}' || exit 1
LC_ALL=C {_CREATE} --sparse --file=/dev/null --totals . 2>&1 | awk '
  /^Total bytes written:/ {{ print $4; found = 1; next }} {{ print >"/dev/stderr" }}
  END {{ exit !found }}' || exit 1
echo "$attributes"
find . -type s | head -n 10""")

#: Writes the volume as a tar stream.
SEND = _script(f"{_CREATE} --sparse --file=- .")

#: Writes a line for each `DIGEST_STEP` bytes, and then the SHA-256 of the volume: of a tar stream
#: with all files in the order of their names, their content and attributes. The stream is the same
#: for any file system: times are whole seconds, and holes are zeros.
DIGEST = _script(f"""{_CREATE} --file=- --sort=name --use-compress-program=sha256sum \\
  --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime,delete=mtime \\
  --checkpoint={DIGEST_STEP // _RECORD} --checkpoint-action='exec=echo >&3' . 3>&1""")


def receive(size: int) -> str:
    """Reads a tar stream of ``size`` bytes into the volume, and syncs it to disk."""
    return _script(f"""dd bs={_RECORD} count={size // _RECORD} iflag=fullblock status=none |
  {_TAR} --extract --file=- --preserve-permissions && sync -f .""")


def empty(source: str, run: str, *, overwrite: bool) -> str:
    """Writes the marker, which names source and run, and deletes all other files: those of an
    incomplete copy, and others if ``overwrite``."""
    files = f"find . -mindepth 1 -maxdepth 1 ! -name lost+found ! -name {MARKER}"
    return _script(f"""if [ ! -e {MARKER} ] && [ {int(overwrite)} = 0 ] && [ -n "$({files})" ]; then
  echo 'the volume has files; delete them, or replace them by --overwrite' >&2; exit 1
fi
echo 'This volume is an incomplete copy of {source} (run {run}). Do not use it.' >{MARKER} || exit 1
sync -f . && {files} -exec rm -rf {{}} +""")


def finish(run: str) -> str:
    """Deletes the marker of the run; fails if a later run has replaced it."""
    return _script(f"grep -q {run} {MARKER} && rm {MARKER} && sync -f .")
