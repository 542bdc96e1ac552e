"""Mutates valid exchanges: their pieces (lines, chunks or frames), bytes and JSON.

Pure functions of a random number generator."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson

from tests.translators.test_remote_shapes import WRONG, places, replaced

#: Bytes of a flood.
FLOOD = 2**19

Extra = Callable[[random.Random], bytes]


def mangled(rng: random.Random, pieces: list[bytes], extra: Extra) -> list[bytes]:
    """The pieces after some changes, or none. ``extra`` makes a hostile piece of the protocol."""
    pieces = [*pieces]
    for _ in range(rng.choices((0, 1, 2, 4), (1, 5, 3, 1))[0]):
        at = rng.randrange(len(pieces)) if pieces else 0
        change = rng.randrange(12)
        if change == 0:
            del pieces[at : at + 1]
        elif change == 1:
            pieces[at:at] = pieces[at : at + 1] * rng.choice((1, 1, 10))
        elif change == 2:
            rng.shuffle(pieces)
        elif change == 3:
            pieces[at : at + 1] = [mutated(rng, piece) for piece in pieces[at : at + 1]]
        elif change == 4:
            pieces[at:] = [piece[: rng.randint(0, len(piece))] for piece in pieces[at : at + 1]]
        elif change == 5:
            piece = extra(rng) if rng.random() < 0.5 else b"".join(pieces[at : at + 1])
            most = FLOOD // max(len(piece), 1)
            pieces.insert(at, piece * min(int(10 ** rng.uniform(1, 5)), most))
        else:
            pieces.insert(rng.randint(at, len(pieces)), extra(rng))
    return pieces


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """These bytes with some changed, inserted or removed."""
    made = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(made) + 1)
        change = rng.randrange(4)
        if change == 0:
            made[at : at + 1] = rng.randbytes(1)
        elif change == 1:
            made[at:at] = rng.choice((b"\x00", b"\xff" * 4, b"\r\n", b"\n", b'"', b"[", b"\x7f"))
        elif change == 2:
            del made[at : at + rng.randint(1, 8)]
        else:
            made[at:at] = made[max(at - 20, 0) : at]
    return bytes(made)


def hostile_json(rng: random.Random, whole: Any) -> bytes:
    """A valid document with parts of the wrong type, or with other text."""
    form = rng.random()
    if form < 0.3:
        return orjson.dumps(whole)
    if form < 0.8:
        for _ in range(rng.randint(1, 3)):
            if paths := [*places(whole)]:
                whole = replaced(whole, rng.choice(paths), rng.choice(WRONG))
        return orjson.dumps(whole)
    text = orjson.dumps(whole)
    depth = int(10 ** rng.uniform(1, 5))
    return rng.choice(
        [
            mutated(rng, text),
            text[: rng.randrange(len(text))],
            text + rng.randbytes(4),
            b"[" * depth,
            b'{"a":' * depth + b"1" + b"}" * depth,
            text.replace(b'"name"', b'"name":"a\\u0000\\u001b[31m\\n","name"'),
            text.replace(b'"', b'"\\ud800', 2),
            text.replace(b"{", b'{"a":' + b"9" * depth + b",", 1),
            text.replace(b"{", b'{"a":[' + b"[]," * depth + b"[]],", 1),
            b"\xef\xbb\xbf" + text,
            rng.choice((b"", b"null", b"[]", b'"x"', b"NaN", b"1e999", b"{}", b"<html>", b"{}{}")),
        ]
    )
