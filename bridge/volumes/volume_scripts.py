"""Shell scripts that run in transfer pods, for busybox and for GNU tools alike.

The volume is mounted at `VOLUME`. The directory ``lost+found`` belongs to a file system: it is
neither deleted nor compared.

The scan writes a line for each entry. A line starts with its type:

- ``d MODE UID GID PATH`` for a directory,
- ``f MODE UID GID LINKS SIZE MTIME PATH`` for a file, followed in a scan of contents by its digest
  in a line ``HEX  PATH``; without contents, the time of change (ctime) is before the path,
- ``l UID GID 'PATH' -> 'TARGET'`` for a symbolic link,
- ``o MODE UID GID MAJOR:MINOR TYPE PATH`` for others: named pipes, devices, sockets.
"""

from __future__ import annotations

from bridge.volumes.framed_input import FRAME

VOLUME = "/volume"
#: Bytes that dd reads at once: those of a pipe.
_BLOCK = 64 * 1024
#: Exists in a transfer pod, and is touched while a script runs.
_ACTIVE = "/tmp/active"  # noqa: S108  # in the pod
#: Seconds without a script after which a transfer pod ends by itself: its command was killed.
IDLE_SECONDS = 600
#: Largest user and group ID that busybox's tar can store (seven octal digits).
OCTAL_ID_MAX = 0o7777777

#: The command of a transfer pod's container.
WAIT = f"""trap exit TERM
touch {_ACTIVE}
while [ $(($(date +%s) - $(stat -c %Y {_ACTIVE}))) -lt {IDLE_SECONDS} ]
do sleep 5 & wait $!; done"""

_KEEP_ACTIVE = f"""(while touch {_ACTIVE} && sleep 20; do :; done) </dev/null >/dev/null 2>&1 &
active=$!
trap 'kill $active 2>/dev/null' EXIT
cd "${{VOLUME:-{VOLUME}}}" || exit 1"""

_WITHOUT_LOST_FOUND = "-path ./lost+found -prune -o"
_OTHERS = """-type d -exec stat -c 'd %a %u %g %n' {} + \\
  -o -type l -exec stat -c 'l %u %g %N' {} + \\
  -o -exec stat -c 'o %a %u %g %t:%T %F %n' {} +"""


def _scan(file_format: str, then: str) -> str:
    each = f'stat -c "f %a %u %g %h %s %Y {file_format}%n" "$@" || exit 1{then}'
    return f"""{_KEEP_ACTIVE}
find . {_WITHOUT_LOST_FOUND} -type f -exec sh -c '{each}' sh {{}} + \\
  -o {_OTHERS}"""


#: Lists all entries, and when each file was changed.
ENTRIES = _scan("%z ", "")


def contents(digest: str) -> str:
    """Lists all entries with the digest of each file, by this one of `DIGESTS`."""
    return _scan("", f'; {digest} "$@" || exit 1')


#: Programs that compute digests. Either can be the faster one: some processors have instructions
#: for SHA-256, which not every program uses; without them SHA-512 is faster.
DIGESTS = ("sha256sum", "sha512sum")
#: Writes the one of `DIGESTS` that is the fastest here, by a read of 32 MiB.
FASTEST_DIGEST = f"""best={DIGESTS[0]} least=
for it in {" ".join(DIGESTS)}; do
  read -r began _ </proc/uptime
  head -c 33554432 /dev/zero | $it >/dev/null 2>&1 || continue
  read -r ended _ </proc/uptime
  took=$((${{ended%.*}}${{ended#*.}} - ${{began%.*}}${{began#*.}}))
  if [ -z "$least" ] || [ $took -lt $least ]; then best=$it least=$took; fi
done
echo $best"""

#: Writes ``busybox`` if tar is busybox's, which cannot store each user ID.
TAR_KIND = "tar --help 2>&1 | grep -qi busybox && echo busybox; true"

#: Writes the volume as a tar stream.
SEND = f"""{_KEEP_ACTIVE}
tar -c -f - . </dev/null"""

#: Replaces the content of the volume by the tar stream in standard input (`framed_input`).
RECEIVE = f"""{_KEEP_ACTIVE}
find . -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {{}} + </dev/null || exit 1
while read -r more && [ "$more" = + ]; do
  dd bs={_BLOCK} count={FRAME // _BLOCK} iflag=fullblock 2>/dev/null || break
done | tar -x -p -f -"""
