"""A fake home with two claims, whose volumes are directories, and an exec that runs scripts there.

`VolumeWorld.acting` does the work of kubelets: pods start, and end when they are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import WSMsgType, web
from rich.progress import Progress

from bridge.volumes.volume_copy import Content, VolumeCopy
from sync.kube.api_resources import NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from sync.kube.client import KubeClient
from sync.kube.pod_exec import PROTOCOL
from tests.child_process import kill_group, piped_command
from tests.fakeapi import FakeApi
from translators.object_accessors import Object
from translators.storage.identifiers import DRIVER, ClaimKey

SOURCE, TARGET = ClaimKey("shop", "data"), ClaimKey("archive", "copy")
NODE, HOME_NODE = "burst", "worker"
#: The stream of a message.
_STDIN, _STDOUT = 0, 1
_CHUNK = 32768


class VolumeWorld:
    """A home cluster with the claim `SOURCE` on a disk of its own, and `TARGET` in a remote."""

    def __init__(self, home: FakeApi, client: KubeClient, folder: Path) -> None:
        self.home = home
        self.client = client
        self.notified: list[str] = []
        self.scripts: list[tuple[str, str]] = []
        """The pods and scripts of all execs."""
        self.on_script: Callable[[str, str], None] = lambda _pod, _script: None
        """Called before a script of a pod runs."""
        self.starts = True
        """Whether kubelets start pods."""
        self.progress = Progress(disable=True)
        self.source, self.target = folder / "data", folder / "copy"
        for name in (NODE, HOME_NODE):
            taints = [{"key": "cluster-bridge.io/virtual-node", "effect": "NoSchedule"}]
            spec = {"taints": taints if name == NODE else []}
            self.home.put(NODES.manifest({"name": name}, spec=spec))
        self.put_claim(SOURCE, {"hostPath": {"path": "/data"}})
        self.put_claim(TARGET, {"csi": {"driver": DRIVER, "volumeHandle": "r1/archive-h/copy"}})
        home.route("GET", "/api/v1/namespaces/*/pods/*/exec", self._exec)

    def put_claim(
        self, key: ClaimKey, volume: Object | None = None, *, mode: str = "Filesystem"
    ) -> None:
        """A claim; Bound if it has a volume."""
        spec: Object = {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": mode,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        if volume is not None:
            spec["volumeName"] = f"pv-{key.name}"
            reference = {"namespace": key.namespace, "name": key.name}
            self.home.put(
                PERSISTENT_VOLUMES.manifest(
                    {"name": f"pv-{key.name}"}, spec={**volume, "claimRef": reference}
                )
            )
        self.home.put(
            PERSISTENT_VOLUME_CLAIMS.manifest(
                {"name": key.name, "namespace": key.namespace},
                spec=spec,
                status={"phase": "Pending" if volume is None else "Bound"},
            )
        )

    def put_user(self, claim: ClaimKey, *, phase: str = "Running", name: str = "app") -> None:
        """A pod of a user that mounts the claim."""
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim.name}}
        spec: Object = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
        meta = {"name": name, "namespace": claim.namespace}
        self.home.put(PODS.manifest(meta, spec=spec, status={"phase": phase}))

    def pods(self) -> list[Object]:
        return [pod for key in (SOURCE, TARGET) for pod in self.home.objects(PODS, key.namespace)]

    async def copy(
        self,
        source: ClaimKey = SOURCE,
        target: ClaimKey = TARGET,
        *,
        node: str = "",
        overwrite: bool = False,
        timeout: float = 10.0,
    ) -> Content:
        """Runs the command."""
        notify = self.notified.append
        copying = VolumeCopy(
            self.client, source, target, "debian", notify, self.progress, node, timeout
        )
        return await copying.run(overwrite=overwrite)

    @contextlib.asynccontextmanager
    async def acting(self) -> AsyncIterator[None]:
        """Kubelets act whenever something changes while the block runs."""

        def act() -> bool:
            for pod in self.pods():
                self._follow(pod)
            return False

        task = asyncio.create_task(self.home.until(act, timeout=600))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def _follow(self, pod: Object) -> None:
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            self.home.remove(PODS, meta["name"], meta["namespace"])
        elif self.starts and (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            ready = [{"type": "Ready", "status": "True"}]
            status = {"status": {"phase": "Running", "conditions": ready}}
            self.home.update(PODS, meta["name"], status, meta["namespace"])

    async def _exec(self, request: web.BaseRequest) -> web.StreamResponse:
        """Runs the command in this machine's shell, with the directory of the pod's volume."""
        pod, command = request.path.split("/")[-2], request.query.getall("command")
        self.scripts.append((pod, command[-1]))
        self.on_script(pod, command[-1])
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        folder = self.source if "-source-" in pod else self.target
        environment = {**os.environ, "VOLUME": str(folder)}
        async with (
            piped_command(*command, env=environment) as process,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(_feed(socket, process))
            group.create_task(_drain(socket, process))
        return socket


async def _feed(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        async for message in socket:
            assert message.type is WSMsgType.BINARY
            assert message.data[0] == _STDIN
            process.stdin.write(message.data[1:])
            await process.stdin.drain()
    # The client has closed the connection.
    process.stdin.close()
    kill_group(process)


async def _drain(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ConnectionError):
        while data := await process.stdout.read(_CHUNK):
            await socket.send_bytes(bytes([_STDOUT]) + data)
        await socket.close()
