"""Runs the credential plugins (``users[].user.exec``) of kubeconfigs, as client-go does.

- A plugin gets an ExecCredential in ``KUBERNETES_EXEC_INFO``, with the cluster where the kubeconfig
  asks for that, and answers with another on its standard output: a token, a client certificate with
  its key, or both.
- What it writes to standard error is read to its end and dropped: it can hold a secret, and a pipe
  that nobody reads would stop the plugin at 64 KiB.
- Whatever of a plugin still runs at the end of a block of `ended` is killed, with all that it has
  started. A plugin that may ask a person stays in the terminal's group of processes, where Ctrl-C
  reaches it as well; it is then killed alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from translators.objects import Object

#: Seconds for a process that was killed to be gone.
REAPED = 0.5
#: Bytes of an answer that are read: a token and a chain of certificates take a few kB.
ANSWER_LIMIT = 2**20
#: Bytes that are read at once.
_CHUNK = 2**16

#: Processes that are not in the terminal's group.
_OWN_GROUP: WeakSet[asyncio.subprocess.Process] = WeakSet()
_started: ContextVar[list[asyncio.subprocess.Process] | None] = ContextVar(
    "started_plugins", default=None
)


class CredentialPluginError(Exception):
    """A plugin gave no credential; the text continues "the credential plugin …"."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin as a kubeconfig's user has it."""

    program: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    api_version: str
    interactive: str
    """Never, IfAvailable or Always."""
    cluster: Object | None
    """What the plugin is given of the cluster; None where it does not ask."""


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """What a plugin gave. It has no repr: all of it is secret."""

    token: str
    certificate: str
    key: str


async def run(plugin: Plugin) -> Credential:
    """Runs the plugin to its end. Raises PluginFailed, whose text holds nothing of its output."""
    terminal = bool(sys.stdin and sys.stdin.isatty())
    if plugin.interactive == "Always" and not terminal:
        raise CredentialPluginError("needs a terminal (interactiveMode: Always), and there is none")
    interactive = terminal and plugin.interactive != "Never"
    try:
        process = await _start(
            plugin.program,
            *plugin.arguments,
            env={
                **os.environ,
                **plugin.variables,
                "KUBERNETES_EXEC_INFO": _info(plugin, interactive),
            },
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its command is malformed"
        raise CredentialPluginError(f"cannot be started: {why}: {plugin.program}") from None
    answer, _ = await asyncio.gather(_read(process.stdout, ANSWER_LIMIT), _read(process.stderr, 0))
    if code := await process.wait():
        raise CredentialPluginError(f"failed with exit code {code}; run it by hand to see why")
    return _credential(answer, plugin.api_version)


def _info(plugin: Plugin, interactive: bool) -> str:  # as the field of the spec
    spec: Object = {"interactive": interactive}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return json.dumps(info)


async def _read(stream: asyncio.StreamReader | None, limit: int) -> bytes:
    """Reads to the end; gives the first ``limit`` bytes and one more where there are more."""
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        kept += chunk[: max(limit + 1 - len(kept), 0)]
    return bytes(kept)


def _credential(answer: bytes, api_version: str) -> Credential:
    if len(answer) > ANSWER_LIMIT:
        raise CredentialPluginError(f"answered with more than {ANSWER_LIMIT} bytes")
    try:
        said = json.loads(answer)
    except ValueError:
        said = None
    status = said.get("status") if isinstance(said, dict) else None
    if not isinstance(status, dict):
        raise CredentialPluginError(
            "answered with something that is not an ExecCredential with a status"
        )
    if said.get("apiVersion") != api_version:
        raise CredentialPluginError(
            f"answered in another apiVersion than {api_version}, which the kubeconfig names"
        )
    token, certificate, key = (
        str(status.get(name) or "") for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if bool(certificate) != bool(key):
        raise CredentialPluginError(
            "gave one of clientCertificateData and clientKeyData without the other"
        )
    if not (token or certificate):
        raise CredentialPluginError("gave neither a token nor a client certificate")
    return Credential(token.strip(), certificate, key)


# -- processes -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def kill_on_exit() -> AsyncIterator[None]:
    """Kills what plugins of this task still run when the block ends, however it does."""
    processes: list[asyncio.subprocess.Process] = []
    token = _started.set(processes)
    try:
        yield
    finally:
        _started.reset(token)
        for process in processes:
            await _end(process)


async def _start(*command: str, **options: Any) -> asyncio.subprocess.Process:
    own_group = not (sys.stdin and sys.stdin.isatty())
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*command, **options, start_new_session=own_group)
    )
    try:
        return await asyncio.shield(starting)
    finally:
        # Cancelled just now it has begun all the same, and may have started others.
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            _note(starting.result(), own_group=own_group)


def _note(process: asyncio.subprocess.Process, *, own_group: bool) -> None:
    if own_group:
        _OWN_GROUP.add(process)
    processes = _started.get()
    if processes is not None:
        processes.append(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    outputs = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    # One that has ended can have left others behind, which hold what it was to write to.
    if process.returncode is None or not all(stream.at_eof() for stream in outputs):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process in _OWN_GROUP:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAPED):
                await process.wait()
    # Its pipes stay open where something that it has started still holds them.
    process._transport.close()  # type: ignore[attr-defined]  # there is no other way
