"""Shell scripts that run in transfer pods, for busybox and for GNU tools alike.

The volume is mounted at `VOLUME`. The directory ``lost+found`` belongs to a file system: it is
neither deleted nor compared.

The scan writes a line for each entry. A line starts with its type:

- ``d MODE UID GID PATH`` for a directory,
- ``f MODE UID GID LINKS SIZE MTIME PATH`` for a file, and in a scan of contents ``SHA256  PATH``,
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
_FILE = 'stat -c "f %a %u %g %h %s %Y %n" "$@" || exit 1'
_OTHERS = """-type d -exec stat -c 'd %a %u %g %n' {} + \\
  -o -type l -exec stat -c 'l %u %g %N' {} + \\
  -o -exec stat -c 'o %a %u %g %t:%T %F %n' {} +"""


def scan(*, contents: bool) -> str:
    """Lists all entries, with the SHA-256 of each file if ``contents``."""
    each = f'{_FILE}; sha256sum "$@" || exit 1' if contents else _FILE
    return f"""{_KEEP_ACTIVE}
find . {_WITHOUT_LOST_FOUND} -type f -exec sh -c '{each}' sh {{}} + \\
  -o {_OTHERS}"""


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
