"""Runs the controller of the admission check `cluster-bridge.io/fits` where home has Kueue.

`bridge placement run` calls `serve` while it is the elected process. With ``auto`` the controller
follows the CustomResourceDefinition of Workloads: it starts when Kueue is installed, and stops when
Kueue is removed. With ``on`` it starts at once, and retries until home serves Kueue's resources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Literal

from bridge.clusters.connection import Notify
from sync.cache.informer import Informer
from sync.kube.api_resources import CUSTOM_RESOURCE_DEFINITIONS, KUEUE_WORKLOADS
from sync.kube.client import KubeClient
from sync.kueue.fits_controller import FitsController
from translators.kueue.workload import CONTROLLER_NAME
from translators.object_accessors import Object, is_deleting
from translators.timestamps import format_time

#: Whether the process decides Kueue's admission check: with ``auto`` where Kueue is installed.
KueueChoice = Literal["auto", "on", "off"]

#: The CustomResourceDefinition that shows whether Kueue is installed.
DEFINITION = str(KUEUE_WORKLOADS)


#: Gets the controller that runs from now on; None: none does.
OnController = Callable[[FitsController | None], None]


async def serve(
    home: KubeClient,
    choice: KueueChoice,
    *,
    notify: Notify,
    on_controller: OnController = lambda _: None,
) -> None:
    """Decides the check until cancelled; with ``off`` returns at once."""
    if choice == "on":
        notify(f"home: deciding the admission check {CONTROLLER_NAME} of Kueue")
        on_controller(controller := FitsController(home, now=_now))
        await controller.run()
    elif choice == "auto":
        await _follow_definition(home, notify, on_controller)


async def _follow_definition(home: KubeClient, notify: Notify, on_controller: OnController) -> None:
    changed = asyncio.Event()
    definitions = Informer(home, CUSTOM_RESOURCE_DEFINITIONS, fields=f"metadata.name={DEFINITION}")
    definitions.on_change(lambda *_: changed.set())
    running: asyncio.Task[None] | None = None
    async with asyncio.TaskGroup() as group:
        group.create_task(definitions.run(), name="definition of Workloads")
        await definitions.synced.wait()
        while True:
            changed.clear()
            is_served = _is_served(definitions.store)
            if is_served and running is None:
                notify(f"home: Kueue is installed; deciding its admission check {CONTROLLER_NAME}")
                on_controller(controller := FitsController(home, now=_now))
                running = group.create_task(controller.run(), name="kueue")
            elif not is_served and running is not None:
                notify("home: Kueue was removed; its admission check is not decided any more")
                running.cancel()
                running = None
                on_controller(None)
            await changed.wait()


def _is_served(definitions: Iterable[Object]) -> bool:
    """Whether home serves Workloads in the version that the controller reads."""
    return any(
        version.get("name") == KUEUE_WORKLOADS.version and version.get("served")
        for definition in definitions
        if not is_deleting(definition)
        for version in (definition.get("spec") or {}).get("versions") or ()
    )


def _now() -> str:
    return format_time(datetime.now(UTC))
