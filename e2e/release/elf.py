"""Reads the header and the dependencies of ELF files, for a check of another architecture's image.

Source of the layout: the ELF-64 object file format, little endian; `DT_NEEDED` names a library.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5


@dataclass(frozen=True, slots=True)
class Elf:
    """An object file: its ``e_machine``, and the names of the libraries that it needs."""

    machine: int
    needed: tuple[str, ...]


def read(content: bytes) -> Elf | None:
    """The object file, or None if the content is none."""
    if content[:6] != b"\x7fELF\x02\x01":
        return None
    (machine,) = struct.unpack_from("<H", content, 18)
    (offset,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    segments = [
        # p_type, p_offset, p_vaddr, p_filesz
        (kind, start, address, length)
        for kind, _, start, address, _, length in (
            struct.unpack_from("<IIQQQQ", content, offset + index * size) for index in range(count)
        )
    ]
    dynamic = [it for it in segments if it[0] == _PT_DYNAMIC]
    entries = list(_entries(content, dynamic[0][1], dynamic[0][3])) if dynamic else []
    tables = [value for tag, value in entries if tag == _DT_STRTAB]
    names = [value for tag, value in entries if tag == _DT_NEEDED]
    if not names or not tables:
        return Elf(machine, ())
    strings = next(
        tables[0] - address + start
        for kind, start, address, length in segments
        if kind == _PT_LOAD and address <= tables[0] < address + length
    )
    return Elf(machine, tuple(_string(content, strings + name) for name in names))


def problems(roots: Sequence[Path], machine: int) -> list[str]:
    """Object files below the roots of another machine, or that need a library no root has."""
    files = [it for root in roots for it in sorted(root.rglob("*")) if not it.is_dir()]
    names = {file.name for file in files}
    found = []
    for file in files:
        if file.is_symlink() or (elf := read(file.read_bytes())) is None:
            continue
        if elf.machine != machine:
            found.append(f"{file}: is for machine {elf.machine}, not {machine}")
        found += [f"{file}: needs {name}" for name in elf.needed if name not in names]
    return found


def _entries(content: bytes, start: int, length: int) -> Iterator[tuple[int, int]]:
    for offset in range(start, start + length, 16):
        tag, value = struct.unpack_from("<QQ", content, offset)
        if tag == _DT_NULL:
            return
        yield tag, value


def _string(content: bytes, offset: int) -> str:
    return content[offset : content.index(b"\0", offset)].decode()
