"""Runs the credential plugins (``users[].user.exec``) of kubeconfigs, as client-go does.

- A plugin receives an ExecCredential in ``KUBERNETES_EXEC_INFO``, and writes one to stdout. Its
  stderr is discarded: it can contain a secret, and a full pipe would block the plugin at 64 KiB.
- Processes that still run at the end of a `kill_on_exit` block are killed with their process group.
  A plugin that may prompt stays in the terminal's process group, so that Ctrl-C reaches it; then it
  is killed alone.
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

from sync.kube.endpoint import Credential
from sync.kube.kubeconfig import is_text
from translators.object_accessors import Object
from translators.timestamps import parse_time

#: Seconds to wait for a killed process to exit.
REAP_TIMEOUT = 0.5
#: Bytes of stdout to read: a token and a certificate chain take a few kB.
OUTPUT_LIMIT = 2**20
#: Bytes per read.
_CHUNK = 2**16

#: Processes with a process group of their own.
_OWN_GROUP: WeakSet[asyncio.subprocess.Process] = WeakSet()
_started: ContextVar[list[asyncio.subprocess.Process] | None] = ContextVar(
    "started_plugins", default=None
)


class CredentialPluginError(Exception):
    """Raised when a plugin returns no credential; the message is a predicate of "the plugin"."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """The ``exec`` of a kubeconfig's user."""

    program: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    api_version: str
    interactive: str
    """Never, IfAvailable or Always."""
    cluster: Object | None
    """The cluster for ``KUBERNETES_EXEC_INFO``; None without provideClusterInfo."""


async def run(plugin: Plugin) -> Credential:
    """Runs the plugin to its end; returns the credential. Raises CredentialPluginError, without
    the plugin's output."""
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
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "its command, env or cluster is malformed"
        raise CredentialPluginError(f"cannot be started: {reason}: {plugin.program}") from None
    answer, _ = await asyncio.gather(_read(process.stdout, OUTPUT_LIMIT), _read(process.stderr, 0))
    if code := await process.wait():
        raise CredentialPluginError(f"failed with exit code {code}; run it by hand to see why")
    return _credential(answer, plugin.api_version)


def _info(plugin: Plugin, interactive: bool) -> str:
    spec: Object = {"interactive": interactive}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return json.dumps(info)


async def _read(stream: asyncio.StreamReader | None, limit: int) -> bytes:
    """Reads to the end; returns the first ``limit`` bytes, and one more if there are more."""
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        kept += chunk[: max(limit + 1 - len(kept), 0)]
    return bytes(kept)


def _credential(answer: bytes, api_version: str) -> Credential:
    if len(answer) > OUTPUT_LIMIT:
        raise CredentialPluginError(f"wrote more than {OUTPUT_LIMIT} bytes")
    try:
        parsed = json.loads(answer)
    except (ValueError, RecursionError):
        parsed = None
    status = parsed.get("status") if isinstance(parsed, dict) else None
    if not isinstance(status, dict):
        raise CredentialPluginError("did not write an ExecCredential with a status")
    if (parsed.get("apiVersion"), parsed.get("kind")) != (api_version, "ExecCredential"):
        raise CredentialPluginError(
            f"did not write an ExecCredential with this kind and the apiVersion {api_version}, "
            "which the kubeconfig names"
        )
    names = ("token", "clientCertificateData", "clientKeyData")
    values = ["" if status.get(name) is None else status[name] for name in names]
    for name, value in zip(names, values, strict=True):
        if not is_text(value) or (name == "token" and value != value.strip()):
            raise CredentialPluginError(f"returned a malformed {name}")
    token, certificate, key = values
    expiry = status.get("expirationTimestamp")
    try:
        parse_time("1970-01-01T00:00:00Z" if expiry is None else expiry)
    except (ValueError, TypeError):
        raise CredentialPluginError("returned a malformed expirationTimestamp") from None
    if bool(certificate) != bool(key):
        raise CredentialPluginError(
            "returned one of clientCertificateData and clientKeyData without the other"
        )
    if not (token or certificate):
        raise CredentialPluginError("returned neither a token nor a client certificate")
    return Credential(
        authorization=f"Bearer {token}" if token else "",
        certificate=certificate.encode(),
        key=key.encode(),
    )


@contextlib.asynccontextmanager
async def kill_on_exit() -> AsyncIterator[None]:
    """Kills the plugins of this task that still run when the block ends or raises."""
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
        # A cancelled start completes all the same, and the process may have started others.
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            _register(starting.result(), own_group=own_group)


def _register(process: asyncio.subprocess.Process, *, own_group: bool) -> None:
    if own_group:
        _OWN_GROUP.add(process)
    processes = _started.get()
    if processes is not None:
        processes.append(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    outputs = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    # An exited plugin may have left children that hold its pipes.
    if process.returncode is None or not all(stream.at_eof() for stream in outputs):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process in _OWN_GROUP:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAP_TIMEOUT):
                await process.wait()
    # The pipes stay open while a child of the plugin holds them.
    process._transport.close()  # type: ignore[attr-defined]  # no public API closes the pipes
