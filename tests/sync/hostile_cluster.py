"""An API server that does its worst: ``python -m tests.sync.hostile_cluster SEED`` prints its port
and serves until its input ends. Each response is one of `LISTS` or `WATCHES`, at random.

It is a process of its own: what it uses is not measured with the bridge.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import AsyncIterator, Callable

import orjson

from tests.fakeapi.hostile_server import BLOCK, gzip_bomb
from translators.object_accessors import Object

MIB = 2**20
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
_NUMBERS = itertools.count(1)
Attack = Callable[[str], AsyncIterator[bytes]]


def _object(path: str, size: int) -> Object:
    """A valid object of any kind, with annotations of ``size`` bytes."""
    number = next(_NUMBERS)
    names = path.partition("?")[0].split("/")
    meta = {
        "name": f"o{number}",
        "uid": f"u{number}",
        "resourceVersion": str(number),
        "annotations": {f"example.com/{n}": f"{number}-" + "x" * 500 for n in range(size // 512)},
        "labels": {"cluster-bridge.io/node": "virtual"},
    }
    if "namespaces" in names[:-1]:
        meta["namespace"] = names[names.index("namespaces") + 1]
    elif names[-1] not in ("nodes", "namespaces", "priorityclasses"):
        meta["namespace"] = "default-h"
    return {"metadata": meta, "spec": {}, "status": {}}


async def bomb(_: str) -> AsyncIterator[bytes]:
    """Gzip that becomes 256 MiB."""
    yield _OK + b"Content-Encoding: gzip\r\n\r\n" + gzip_bomb(256 * MIB)


async def endless(_: str) -> AsyncIterator[bytes]:
    """Text without an end, and without a line."""
    yield _OK + b'\r\n{"items":["'
    while True:
        yield b"x" * BLOCK


async def dense(_: str) -> AsyncIterator[bytes]:
    """JSON that takes a hundred times its size in memory, just below the limit of memory."""
    yield _OK + b'\r\n{"items":['
    yield b'{"a":0},' * (760_000) + b"{}]}"


async def large(_: str) -> AsyncIterator[bytes]:
    """A value that takes as long as one may."""
    yield _OK + b'\r\n{"items":[],"a":"' + b"\\u00e4" * (2 * MIB) + b'"}'


async def pages(path: str) -> AsyncIterator[bytes]:
    """A list that never ends, of large objects."""
    items = [_object(path, 30_000) for _ in range(250)]
    meta = {"resourceVersion": "1", "continue": f"t{next(_NUMBERS)}"}
    yield _OK + b"\r\n" + orjson.dumps({"metadata": meta, "items": items})


async def synced(path: str) -> AsyncIterator[bytes]:
    """A list of one page, so that the watch begins."""
    items = [_object(path, 30_000) for _ in range(100)]
    yield _OK + b"\r\n" + orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": items})


async def drip(_: str) -> AsyncIterator[bytes]:
    """A byte at a time."""
    yield _OK + b'\r\n{"items":["' + b"x" * 2**19
    while True:
        yield b"x"
        await asyncio.sleep(0.01)


async def flood(path: str) -> AsyncIterator[bytes]:
    """Events of new objects, as fast as they are read."""
    yield _OK + b"\r\n"
    while True:
        lines = [{"type": "ADDED", "object": _object(path, 20_000)} for _ in range(20)]
        yield b"".join(orjson.dumps(line) + b"\n" for line in lines)


async def malformed(path: str) -> AsyncIterator[bytes]:
    """Events of objects with wrong types."""
    yield _OK + b"\r\n"
    while True:
        made = _object(path, 0) | {"status": "x", "spec": 5}
        yield (orjson.dumps({"type": "MODIFIED", "object": made}) + b"\n") * 50


async def empty(_: str) -> AsyncIterator[bytes]:
    """Lines without an event."""
    yield _OK + b"\r\n"
    while True:
        yield b"\n" * BLOCK


LISTS: tuple[Attack, ...] = (bomb, endless, dense, large, pages, drip, synced, synced, synced)
WATCHES: tuple[Attack, ...] = (endless, drip, flood, flood, malformed, empty, bomb)


async def main(seed: int) -> None:
    """Serves until the input ends."""
    rng = random.Random(seed)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode()
            respond = rng.choice(WATCHES if "watch=1" in path else LISTS)
            async for piece in respond(path):
                for start in range(0, len(piece), BLOCK):
                    writer.write(piece[start : start + BLOCK])
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
