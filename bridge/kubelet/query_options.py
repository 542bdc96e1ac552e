"""Translates the queries of logs, exec, attach, port-forward and run for the remote. Pure.

A kubelet and an API server spell the same options differently: kubelet options are parsed strictly
and written as API server options. Raises HttpError: 400 for a malformed option, 422 for a
well-formed but invalid one.
"""

from __future__ import annotations

import re

from bridge.kubelet.error_responses import HttpError
from bridge.kubelet.routing import percent_decode
from translators.timestamps import parse_time

#: Maximum number of query parameters: a command has fewer arguments.
MAX_PARAMETERS = 4096

Pairs = list[tuple[str, str]]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_INT64_MAX = 2**63 - 1
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def parse_query(raw: str) -> Pairs:
    """Parses the parameters in order; bytes that are not UTF-8 become surrogate escapes."""
    if not raw:
        return []
    if ";" in raw:
        raise HttpError(400, "the query has a semicolon; encode it as %3B")
    fields = [field for field in raw.split("&") if field]
    if len(fields) > MAX_PARAMETERS:
        raise HttpError(400, f"the query has more than {MAX_PARAMETERS} parameters")
    pairs: Pairs = []
    for field in fields:
        key, _, value = field.replace("+", " ").partition("=")
        pairs.append((percent_decode(key), percent_decode(value)))
    return pairs


def _first(pairs: Pairs, key: str) -> str | None:
    return next((value for name, value in pairs if name == key), None)


# -- logs ----------------------------------------------------------------------------------------


def log_query(pairs: Pairs, *, container: str) -> Pairs:
    """Translates a query of ``/containerLogs`` into one of ``pods/log``."""
    query: Pairs = [("container", container)]
    query += [(key, "true") for key in ("follow", "previous", "timestamps") if _flag(pairs, key)]
    since = _integer(pairs, "sinceSeconds", least=1)
    since_time = _time(pairs, "sinceTime")
    if since is not None and since_time is not None:
        raise HttpError(422, "sinceSeconds and sinceTime are mutually exclusive")
    lines = _tail(pairs)
    limit = _integer(pairs, "limitBytes", least=1)
    numbers = {"sinceSeconds": since, "tailLines": lines, "limitBytes": limit}
    query += [(key, str(number)) for key, number in numbers.items() if number is not None]
    if since_time is not None:
        query.append(("sinceTime", since_time))
    if (stream := _first(pairs, "stream")) not in (None, "All"):
        raise HttpError(400, f"stream {stream!r} is not supported; omit stream to get both")
    return query


def _flag(pairs: Pairs, key: str) -> bool:
    """Parses a boolean as API servers do: present and neither ``false`` nor ``0``."""
    value = _first(pairs, key)
    return value is not None and value.lower() not in ("false", "0")


def _tail(pairs: Pairs) -> int | None:
    """``tailLines``, or its old name ``tail``, whose value ``all`` means no limit."""
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


def _time(pairs: Pairs, key: str) -> str | None:
    value = _first(pairs, key)
    if not value:
        return None
    try:
        parse_time(value)
    except ValueError:
        valid = False
    else:
        # The standard library accepts more than RFC 3339, which is all that API servers accept.
        valid = _RFC3339.fullmatch(value) is not None
    if not valid:
        raise HttpError(400, f"{key} is not a time such as 2026-01-31T12:00:00Z: {value[:64]!r}")
    return value


# -- exec, attach, port-forward ------------------------------------------------------------------

#: The streams' names in a kubelet's query, and in an API server's.
_STREAMS = (("input", "stdin"), ("output", "stdout"), ("error", "stderr"))


def exec_query(pairs: Pairs, *, container: str) -> Pairs:
    """Translates a query of ``/exec`` or ``/attach`` into one of ``pods/exec`` or ``pods/attach``.

    Only ``1`` enables a stream. A terminal has one output, so ``tty`` disables the error stream.
    """
    tty = _first(pairs, "tty") == "1"
    streams = [ours for theirs, ours in _STREAMS if _first(pairs, theirs) == "1"]
    flags = [(name, "true") for name in streams if not (tty and name == "stderr")]
    if not flags:
        raise HttpError(400, "no stream is requested; set input=1, output=1 or error=1")
    flags += [("tty", "true")] if tty else []
    commands = [("command", value) for name, value in pairs if name == "command"]
    return [("container", container), *flags, *commands]


def run_command_line(pairs: Pairs) -> list[str]:
    """The command of ``/run``: one parameter, split at spaces."""
    line = _first(pairs, "cmd")
    if not line:
        raise HttpError(400, "no command is requested; set cmd=PROGRAM%20ARGUMENT")
    if any("\ud800" <= character <= "\udfff" for character in line):
        raise HttpError(400, "the command is not UTF-8; use exec, which accepts such arguments")
    return line.split(" ")


def port_forward_query(pairs: Pairs, *, websocket: bool) -> Pairs:
    """Translates a query of ``/portForward`` into one of ``pods/portforward``.

    A WebSocket needs the ports in the query, in the order of its channels; SPDY names each port in
    a stream's headers.
    """
    ports = [value for name, value in pairs if name == "port"]
    if websocket and not ports:
        raise HttpError(400, "no port is requested; set port=NUMBER")
    for port in ports:
        if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
            raise HttpError(400, f"port is not a number from 1 to 65535: {port[:32]!r}")
    return [("ports", str(int(port))) for port in ports]
