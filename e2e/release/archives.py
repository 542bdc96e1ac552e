"""Reproducible archives: members in a fixed order, owned by root, with one time and two modes."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path


def tar_of_folder(folder: Path, *, epoch: int, prefix: str = "") -> bytes:
    """The folder's content as an uncompressed tar archive.

    Symbolic links stay links. The folder ``tmp`` is writable for all, everything else for root
    alone.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in ordered(folder):
            name = prefix + file.relative_to(folder).as_posix()
            info = archive.gettarinfo(file, name)
            _normalize(info, epoch)
            if info.isreg():
                archive.addfile(info, io.BytesIO(file.read_bytes()))
            else:
                archive.addfile(info)
    return buffer.getvalue()


def tar_of_files(
    files: Mapping[str, bytes], *, epoch: int, executables: Collection[str] = ()
) -> bytes:
    """The files, by their names, as an uncompressed tar archive without folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o755 if name in executables else 0o644
            _normalize(info, epoch)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def compressed(content: bytes) -> bytes:
    """The content in gzip's format, without name and time."""
    return gzip.compress(content, compresslevel=6, mtime=0)


def ordered(folder: Path) -> Iterator[Path]:
    """Everything below the folder, a folder before its content; links are not followed."""
    for file in sorted(folder.iterdir()):
        yield file
        if file.is_dir() and not file.is_symlink():
            yield from ordered(file)


def _normalize(info: tarfile.TarInfo, epoch: int) -> None:
    if info.islnk():  # a second name of one file: content of its own is simpler, and rare
        info.type = tarfile.REGTYPE
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = epoch
    info.pax_headers = {}
    if info.issym():
        info.mode = 0o777
    elif info.name == "tmp":
        info.mode = 0o1777
    else:
        info.mode = 0o755 if info.isdir() or info.mode & 0o111 else 0o644
