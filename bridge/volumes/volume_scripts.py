"""Shell scripts that run in transfer pods, for busybox and for GNU tools alike.

The volume is mounted at `VOLUME`. The directory ``lost+found`` belongs to a file system: it is
neither deleted nor compared.

The scan writes a line for each entry. A line starts with its type:

- ``d MODE UID GID PATH`` for a directory,
- ``f MODE UID GID LINKS SIZE MTIME PATH`` for a file; in a scan without contents the time of change
  (ctime) is before the path. A scan of contents also has its digest, in a line ``HEX  PATH``, or
  for a file above `PART` one of each part, ``p OFFSET HEX PATH``, of which two are read at once,
- ``l UID GID 'PATH' -> 'TARGET'`` for a symbolic link,
- ``o MODE UID GID MAJOR:MINOR TYPE PATH`` for others: named pipes, devices, sockets.
"""

from __future__ import annotations

from bridge.volumes.framed_input import FRAME

VOLUME = "/volume"
#: Bytes that dd reads at once: those of a pipe.
_BLOCK = 64 * 1024
#: Bytes of a part of a large file.
PART = 64 * 1024 * 1024
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


def _stat(of_files: str) -> str:
    return f'stat -c "f %a %u %g %h %s %Y {of_files}%n" "$@" || exit 1'


def _scan(files: str) -> str:
    return f"""{_KEEP_ACTIVE}
find . {_WITHOUT_LOST_FOUND} {files} \\
  -o {_OTHERS}"""


#: Lists all entries, and when each file was changed.
ENTRIES = _scan(f"-type f -exec sh -c '{_stat('%z ')}' sh {{}} +")


def contents(digest: str) -> str:
    """Lists all entries with the digest of each file, by this one of `DIGESTS`."""
    small = f'{_stat("")}; {digest} "$@" || exit 1'
    large = f"""{_stat("")}
size=$(stat -c %s "$1") || exit 1
part() {{ dd if="$1" bs={_BLOCK} skip=$(($2 / {_BLOCK})) count={PART // _BLOCK} 2>/dev/null |
  {digest}; }}
line() {{ [ $1 -ge $size ] || printf "p %s %s %s\\n" $1 "${{2%% *}}" "$3"; }}
at=0
while [ $at -lt $size ]; do
  part "$1" $((at + {PART})) >/tmp/part.$$ &
  first=$(part "$1" $at) && wait $! && second=$(cat /tmp/part.$$) || exit 1
  line $at "$first" "$1"; line $((at + {PART})) "$second" "$1"
  at=$((at + 2 * {PART}))
done
rm -f /tmp/part.$$"""
    return _scan(
        f"-type f -size +{PART // 1024}k -exec sh -c '{large}' sh {{}} \\; \\\n"
        f"  -o -type f -exec sh -c '{small}' sh {{}} +"
    )


#: Programs that compute digests. Either can be the faster one: some processors have instructions
#: for SHA-256, which not every program uses; without them SHA-512 is faster.
DIGESTS = ("sha256sum", "sha512sum")
#: Bytes that each of `DIGESTS` reads to be measured: enough for several ticks of the clock of CPU
#: time, also with the processor's instructions.
_PROBE = 32 * 1024 * 1024
#: Writes the one of `DIGESTS` that takes the least CPU time here: the time until its end would
#: depend on the load of the node. Fields 16 and 17 of /proc/self/stat are the CPU time of children,
#: in ticks (proc_pid_stat(5)). The input is dd's, since busybox's head copies byte by byte, which
#: takes more time than the digest.
FASTEST_DIGEST = f"""spent() {{
  read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ user system _ </proc/self/stat && echo $((user + system))
}}
best={DIGESTS[0]} least=
for it in {" ".join(DIGESTS)}; do
  took=$(dd if=/dev/zero bs={_BLOCK} count={_PROBE // _BLOCK} 2>/dev/null | $it >/dev/null 2>&1 &&
    spent) || continue
  if [ -z "$least" ] || [ $took -lt $least ]; then best=$it least=$took; fi
done
echo $best"""

#: Writes ``busybox`` if tar is busybox's, which cannot store each user ID.
TAR_KIND = "tar --help 2>&1 | grep -qi busybox && echo busybox; true"

#: Writes the volume as a tar stream.
SEND = f"""{_KEEP_ACTIVE}
tar -c -f - . </dev/null"""

#: The first line of an input that has no frames, and ends with the connection's input.
RAW = "="
#: Replaces the content of the volume by the tar stream in standard input: after a line `RAW`, or in
#: frames (`framed_input`).
RECEIVE = f"""{_KEEP_ACTIVE}
find . -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {{}} + </dev/null || exit 1
read -r more || exit 1
if [ "$more" = {RAW} ]; then
  tar -x -p -f -
  exit
fi
while [ "$more" = + ]; do
  dd bs={_BLOCK} count={FRAME // _BLOCK} iflag=fullblock 2>/dev/null && read -r more || break
done | tar -x -p -f -"""
