"""Writes a bug report as a compressed archive that only its owner may read."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

from bridge.base.command_error import PreflightError
from bridge.bug_report.collector import BugReport
from translators.object_accessors import Object

#: The beginning of the archive's table of contents.
_CONTENTS_HEADER = """A bug report of a cluster bridge. It does not contain: data of Secrets and
ConfigMaps, values of environment variables, commands, arguments, labels and annotations, logs,
credentials.

"""


def default_name(now: time.struct_time) -> Path:
    """The default file name."""
    return Path(time.strftime("bridge-bugreport-%Y%m%d-%H%M%S.tar.gz", now))


def write(path: Path, report: BugReport) -> list[Object]:
    """Writes the archive, and returns its files with size and description. Raises PreflightError,
    also if the file exists."""
    files = report.files()
    folder = path.name.removesuffix(".gz").removesuffix(".tar")
    listed = [
        {"file": name, "bytes": len(content), "what": report.descriptions[name]}
        for name, content in files.items()
    ]
    lines = [f"{it['file']}: {it['what']}\n" for it in listed]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            _add(tar, f"{folder}/CONTENTS.txt", (_CONTENTS_HEADER + "".join(lines)).encode())
            for name, content in files.items():
                _add(tar, f"{folder}/{name}", content)
    except FileExistsError:
        raise PreflightError(f"{path} exists; name another file with -f") from None
    except OSError as error:
        raise PreflightError(f"{path} cannot be written: {error.strerror}") from error
    return listed


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
    tar.addfile(entry, io.BytesIO(content))
