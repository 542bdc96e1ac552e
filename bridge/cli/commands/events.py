"""`bridge events`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from bridge.base.command_output import (
    ListOutputOption,
    Output,
    format_document,
    format_table,
    print_result,
)
from bridge.base.printable_text import escape_line
from bridge.cli.options.common_options import HomeContext, HomeKubeconfig, OptionalNode
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object


def events(
    node: OptionalNode = None,
    *,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Only Events of pods in this home namespace."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print new Events as they come, until Ctrl-C.")
    ] = False,
    output: ListOutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """List the Events of virtual nodes and their pods, including those from the remote cluster.

    Sorted by the time of the last occurrence. Needs only home's kubeconfig: the bridge mirrors the
    Events of remote pods.
    """
    from bridge.cli.run_until_signal import run

    home = KubeconfigRef(home_kubeconfig, home_context)

    async def command(stop: asyncio.Event) -> None:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.status import event_list

        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                if watch:
                    await event_list.follow(
                        client,
                        node=node,
                        namespace=namespace,
                        stop=stop,
                        show=_Printer(output).show,
                    )
                else:
                    found = await event_list.list_events(client, node=node, namespace=namespace)
                    print_result(
                        {"events": found},
                        output,
                        lambda: _table(found),
                        names=lambda: _names(found),
                        as_wide=lambda: _table(found, wide=True),
                    )

    run(command, stops=watch)


def _names(found: list[Object]) -> list[str]:
    """``kind/name`` of the object that each Event is about."""
    return [f"{str(it['kind']).lower()}/{it['name']}" for it in found]


def _table(found: list[Object], *, wide: bool = False) -> str:
    from datetime import UTC, datetime

    from bridge.status import event_list

    if not found:
        return "no events"
    now = datetime.now(UTC)
    headers, rows = [*event_list.TABLE_HEAD], [event_list.table_row(it, now) for it in found]
    if wide:
        headers += ["first", "last"]
        rows = [[*row, it["first"], it["last"]] for row, it in zip(rows, found, strict=True)]
    return format_table(headers, rows)


class _Printer:
    """Prints new Events: a line each, a document each for programs."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def show(self, found: list[Object]) -> None:
        """Prints Events, in order."""
        from bridge.status import event_list

        if self._output is Output.NAME:
            lines = _names(found)
        elif not self._output.is_for_people:
            lines = [format_document(it, self._output) for it in found]
        else:
            lines = [escape_line(event_list.one_line(it)) for it in found]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
