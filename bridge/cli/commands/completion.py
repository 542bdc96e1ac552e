"""Shell completion of node and context names.

A completion takes `LIMIT_SECONDS` at most, writes nothing but names, and offers none if it fails.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import typer

#: Seconds until a completion gives up.
LIMIT_SECONDS = 2.0


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """The virtual nodes of the home cluster."""
    import asyncio

    async def names() -> list[str]:
        from bridge.clusters.connection import connect
        from bridge.status import status_client
        from sync.kube.kubeconfig_ref import KubeconfigRef
        from translators.object_accessors import name_of

        home = KubeconfigRef(_path(ctx, "home_kubeconfig"), ctx.params.get("home_context"))
        async with connect(home, side="home", notify=lambda _: None) as client:
            return [name_of(it) for it in await status_client.list_nodes(client, None)]

    found: list[str] = []
    with _bounded():
        found = asyncio.run(names())
    return [it for it in found if it.startswith(incomplete)]


def complete_contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """The contexts of ``--kubeconfig``, or else those of home's kubeconfig."""
    return _contexts(_path(ctx, "kubeconfig"), incomplete)


def complete_home_contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """The contexts of the home kubeconfig."""
    return _contexts(_path(ctx, "home_kubeconfig"), incomplete)


def _contexts(path: Path | None, incomplete: str) -> list[str]:
    from sync.kube.kubeconfig_ref import KubeconfigRef

    found: dict[str, None] = {}
    with _bounded():
        import yaml

        for file in KubeconfigRef(path).paths():
            with contextlib.suppress(OSError):
                content = yaml.safe_load(file.read_text(encoding="utf-8"))
                found |= dict.fromkeys(str(it["name"]) for it in content["contexts"])
    return [it for it in found if it.startswith(incomplete)]


def _path(ctx: typer.Context, parameter: str) -> Path | None:
    value = ctx.params.get(parameter)
    return Path(value).expanduser() if value else None


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Runs the block quietly; ends the process when the time is up, whatever hangs."""
    before = signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(Exception, SystemExit):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
