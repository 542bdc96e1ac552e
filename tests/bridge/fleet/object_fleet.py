"""Objects of a fake home that describe joins: joins and leaves are simulated, options and
kubeconfigs are real."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import Part
from bridge.cli import remote_object_options
from bridge.fleet.fleet_report import FleetMember, NodeUse
from bridge.fleet.joined_kind import JoinedKind
from bridge.fleet.object_source import Answer, ObjectSource, Request
from bridge.fleet.supervisor import Supervisor
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.running_join import SOON
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.fakeapi.server import FakeApi
from translators.object_accessors import Object

NAMESPACE = "fleet"
KUBECONFIG = yaml.safe_dump(kubeconfig("https://192.0.2.1:6443", user={"token": "t1"}))


def secret(name: str, content: str = KUBECONFIG, key: str = "kubeconfig", **more: Any) -> Object:
    """A Secret; ``more`` is its metadata."""
    data = {key: base64.b64encode(content.encode()).decode()}
    meta = {"name": name, "namespace": NAMESPACE, **more}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}


class Fleet:
    """A home with objects of a kind, a supervisor, and what it was asked to do."""

    def __init__(self, home: FakeApi, folder: Path, kind: JoinedKind) -> None:
        self.home = home
        self.kind = kind
        self.directory = folder / "state"
        self.events: list[str] = []
        self.served: dict[str, Part] = {}
        self.left: list[Part] = []
        self.leave_error = ""
        self.use: NodeUse | None = None
        self.reads = 0
        kubeconfig_file = write(folder / "home.yaml", kubeconfig(home.url))
        self.source = ObjectSource(
            KubeconfigRef(kubeconfig_file),
            NAMESPACE,
            kind,
            read=self.read,
            directory=self.directory,
        )
        self.supervisor = Supervisor(self.serve, self.leave, notify=self.events.append)

    async def read(self, requests: list[Request]) -> list[Answer]:
        self.reads += len(requests)
        return [remote_object_options.read(it) for it in requests]

    async def serve(self, part: Part, member: FleetMember) -> None:
        name = part.label
        self.events.append(f"+{name}")
        self.served[name] = part
        try:
            member.set_running(lambda: "serving", lambda: self.use)
            await asyncio.get_running_loop().create_future()
        finally:
            self.events.append(f"-{name}")
            del self.served[name]

    async def leave(self, part: Part) -> None:
        if self.leave_error and not part.abandons:
            raise PreflightError(self.leave_error)
        self.left.append(part)

    def find(self, name: str) -> Object | None:
        return self.home.find(self.kind.resource, name, NAMESPACE)

    def condition(self, name: str, kind: str) -> Mapping[str, Any]:
        status = (self.find(name) or {}).get("status") or {}
        found = [it for it in status.get("conditions") or () if it["type"] == kind]
        return found[0] if found else {}

    def reason(self, name: str, kind: str = "Ready") -> str:
        return str(self.condition(name, kind).get("reason"))

    def kubeconfig(self, name: str) -> Object:
        path = self.directory / name / "kubeconfig"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        return dict(yaml.safe_load(path.read_text()))

    async def until(self, condition: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(SOON):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        except TimeoutError:
            found = json.dumps(self.home.objects(self.kind.resource, NAMESPACE))
            raise AssertionError(f"events {self.events}, objects {found}") from None

    async def until_ready(self, *names: str) -> None:
        await self.until(lambda: all(self.reason(it) == "Joined" for it in names))


@contextlib.asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    task = asyncio.create_task(fleet.supervisor.run(fleet.source))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
