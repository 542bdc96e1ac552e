"""What the queries of logs, exec, attach, port-forward and run mean, and what the remote is asked.

A kubelet and an API server spell the same options differently. Here the one is read strictly and
the other is written. Pure; every fault is a HttpError: 400 for what cannot be read, 422 for what
can be read but may not be.
"""

from __future__ import annotations

import re
from itertools import chain

from bridge.kubelet.path_names import decoded
from bridge.net.error_responses import HttpError
from translators.timestamps import parse_time

#: An argument of a program is 128 KiB at most on Linux and there can be many; thousands are abuse.
MAX_PARAMETERS = 4096

Pairs = list[tuple[str, str]]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_INT64_MAX = 2**63 - 1
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def parse_query(raw: str) -> Pairs:
    """The parameters in their order; bytes that are no UTF-8 as surrogate escapes."""
    if not raw:
        return []
    if ";" in raw:
        raise HttpError(400, "the query has a semicolon; write %3B where a value has one")
    fields = [field for field in raw.split("&") if field]
    if len(fields) > MAX_PARAMETERS:
        raise HttpError(400, f"the query has more than {MAX_PARAMETERS} parameters")
    pairs: Pairs = []
    for field in fields:
        key, _, value = field.replace("+", " ").partition("=")
        pairs.append((decoded(key), decoded(value)))
    return pairs


def _first(pairs: Pairs, key: str) -> str | None:
    return next((value for name, value in pairs if name == key), None)


# -- logs ----------------------------------------------------------------------------------------


def log_query(pairs: Pairs, *, container: str) -> Pairs:
    """The query of the remote's ``pods/log`` for that of a kubelet's ``/containerLogs``."""
    asked: Pairs = [("container", container)]
    asked += [(key, "true") for key in ("follow", "previous", "timestamps") if _flag(pairs, key)]
    since = _integer(pairs, "sinceSeconds", least=1)
    moment = _moment(pairs, "sinceTime")
    if since is not None and moment is not None:
        raise HttpError(422, "sinceSeconds and sinceTime exclude each other; give one of them")
    lines = _tail(pairs)
    limit = _integer(pairs, "limitBytes", least=1)
    numbers = {"sinceSeconds": since, "tailLines": lines, "limitBytes": limit}
    asked += [(key, str(number)) for key, number in numbers.items() if number is not None]
    if moment is not None:
        asked.append(("sinceTime", moment))
    if (stream := _first(pairs, "stream")) not in (None, "All"):
        raise HttpError(400, f"the log of {stream!r} alone is not offered; leave out stream")
    return asked


def _flag(pairs: Pairs, key: str) -> bool:
    """As API servers read booleans: there and neither ``false`` nor ``0``."""
    value = _first(pairs, key)
    return value is not None and value.lower() not in ("false", "0")


def _tail(pairs: Pairs) -> int | None:
    """``tailLines``, or its old name ``tail``, where ``all`` is no limit."""
    old = _first(pairs, "tail")
    if old == "all":
        return None
    return _integer(pairs, "tail" if old else "tailLines", least=0)


def _integer(pairs: Pairs, key: str, *, least: int) -> int | None:
    value = _first(pairs, key)
    if value is None:
        return None
    if not _INTEGER.fullmatch(value) or abs(int(value)) > _INT64_MAX:
        raise HttpError(400, f"{key} is not a number: {value[:32]!r}")
    if int(value) < least:
        raise HttpError(422, f"{key} must be {least} or more, not {int(value)}")
    return int(value)


def _moment(pairs: Pairs, key: str) -> str | None:
    value = _first(pairs, key)
    if not value:
        return None
    if not _is_moment(value):
        raise HttpError(400, f"{key} is not a time such as 2026-01-31T12:00:00Z: {value[:64]!r}")
    return value


def _is_moment(text: str) -> bool:
    try:
        parse_time(text)
    except ValueError:
        return False
    # The standard library takes more than RFC 3339 has, and API servers do not.
    return _RFC3339.fullmatch(text) is not None


# -- exec, attach, port-forward ------------------------------------------------------------------

#: A kubelet's names of the streams, and an API server's.
_STREAMS = (("input", "stdin"), ("output", "stdout"), ("error", "stderr"))


def exec_query(pairs: Pairs, *, container: str) -> Pairs:
    """The query of the remote's ``pods/exec`` and ``pods/attach`` for that of a kubelet's.

    Only ``1`` turns a stream on. A terminal has one output, so it has no error stream.
    """
    tty = _first(pairs, "tty") == "1"
    streams = [ours for theirs, ours in _STREAMS if _first(pairs, theirs) == "1"]
    if tty and "stderr" in streams:
        streams.remove("stderr")
    if not streams:
        raise HttpError(400, "no stream is asked for; give one of input=1, output=1 and error=1")
    commands = [("command", value) for name, value in pairs if name == "command"]
    flags = [(name, "true") for name in chain(streams, ["tty"] if tty else [])]
    return [("container", container), *flags, *commands]


def run_command_line(pairs: Pairs) -> list[str]:
    """The command of ``/run``: one parameter, split on spaces."""
    line = _first(pairs, "cmd")
    if not line:
        raise HttpError(400, "no command is asked for; give cmd=PROGRAM%20ARGUMENT")
    if any("\ud800" <= character <= "\udfff" for character in line):
        raise HttpError(400, "the command is not UTF-8; exec takes such arguments")
    return line.split(" ")


def forward_query(pairs: Pairs, *, websocket: bool) -> Pairs:
    """The query of the remote's ``pods/portforward`` for that of a kubelet's.

    SPDY names the ports in its streams; a WebSocket has them in the query, in the order of its
    channels.
    """
    ports = [value for name, value in pairs if name == "port"]
    if websocket and not ports:
        raise HttpError(400, "no port is asked for; give port=NUMBER")
    for port in ports:
        if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
            raise HttpError(400, f"port is not a number from 1 to 65535: {port[:32]!r}")
    return [("ports", str(int(port))) for port in ports]
