"""A fake home with claims, whose volumes are directories, and an exec that runs scripts in them.

`VolumeWorld.act` does the work of home's controllers, of kubelets and of the bridge: it binds
claims to PersistentVolumes, provisions, and starts and ends pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import WSMsgType, web

from bridge.volumes.progress_meter import Meter
from bridge.volumes.transfer_procedure import Transfer
from bridge.volumes.transfer_summary import TransferResult, TransferSettings
from sync.kube.api_resources import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    Object,
)
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi
from translators.storage.identifiers import ANNOTATION_SELECTED_NODE, DRIVER

NAMESPACE, CLAIM, NODE, HOME_NODE = "shop", "data", "burst", "worker"
PROTECTION = "kubernetes.io/pv-protection"
_CHUNK = 65536


@dataclass
class VolumeWorld:
    """Home, with the claim `CLAIM` on `HOME_NODE` and the virtual node `NODE`."""

    home: FakeApi
    client: KubeClient
    folder: Path
    notified: list[str] = field(default_factory=list)
    broken_pods: str = ""
    """A part of the path of the next exec whose connection breaks."""
    scripts: list[str] = field(default_factory=list)
    reports_start: bool = True
    """Whether kubelets report that a container runs; otherwise only that they create it."""
    refused_commands: int = 0
    """The number of next commands that kubelets refuse, as before the container runs."""

    def __post_init__(self) -> None:
        self._node(HOME_NODE, {})
        self._node(NODE, {"cluster-bridge.io/remote": "r1"})
        for name, provisioner, default in (("near", "example", True), ("far", DRIVER, False)):
            meta = {
                "name": name,
                "annotations": {
                    "storageclass.kubernetes.io/is-default-class": str(default).lower()
                },
            }
            self.home.put(STORAGE_CLASSES.manifest(meta, provisioner=provisioner))
        self.put_claim(CLAIM)
        self.act()
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/*/exec"
        self.home.route("GET", path, self._exec)

    def _node(self, name: str, labels: dict[str, str]) -> None:
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.home.put(NODES.manifest(meta, status=status))

    def put_claim(self, name: str, **spec: object) -> None:
        """A claim whose volume the next `act` provisions on home's node."""
        meta = {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": {ANNOTATION_SELECTED_NODE: HOME_NODE},
        }
        self.home.put(
            PERSISTENT_VOLUME_CLAIMS.manifest(
                meta,
                spec={
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "near",
                    "resources": {"requests": {"storage": "1Gi"}},
                    **spec,
                },
            )
        )

    def put_user(self, name: str = "app", *, phase: str = "Running", node: str = NODE) -> None:
        """A pod of a user that mounts the claim."""
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": CLAIM}}
        spec: Object = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
        if node:
            spec["nodeName"] = node
        meta = {"name": name, "namespace": NAMESPACE}
        self.home.put(PODS.manifest(meta, spec=spec, status={"phase": phase}))

    # -- what tests look at ------------------------------------------------------------------

    def claim(self, name: str = CLAIM) -> Object:
        return self.home.get(PERSISTENT_VOLUME_CLAIMS, name, NAMESPACE)

    def claims(self) -> set[str]:
        found = self.home.objects(PERSISTENT_VOLUME_CLAIMS, NAMESPACE)
        return {it["metadata"]["name"] for it in found}

    def volume(self, claim: str = CLAIM) -> Object:
        """The PersistentVolume of a claim."""
        return self.home.get(PERSISTENT_VOLUMES, self.claim(claim)["spec"]["volumeName"])

    def data(self, claim: str = CLAIM) -> Path:
        """The directory of a claim's volume."""
        return self._folder(self.volume(claim))

    def is_remote(self, claim: str = CLAIM) -> bool:
        return "csi" in self.volume(claim)["spec"]

    def _folder(self, volume: Object) -> Path:
        spec = volume["spec"]
        name = spec["csi"]["volumeHandle"] if "csi" in spec else spec["hostPath"]["path"]
        return self.folder / str(name).replace("/", "_")

    # -- the command -------------------------------------------------------------------------

    def settings(self, **changes: object) -> TransferSettings:
        wanted: dict[str, object] = {
            "namespace": NAMESPACE,
            "claim": CLAIM,
            "to": NODE,
            "image": "busybox",
            "timeout": 10.0,
        }
        return TransferSettings(**{**wanted, **changes})  # type: ignore[arg-type]

    async def transfer(self, *, dry_run: bool = False, **changes: object) -> TransferResult | None:
        """Runs the command."""
        notify = self.notified.append
        transfer = Transfer(
            self.client, self.settings(**changes), notify=notify, meter=Meter(notify)
        )
        return await transfer.run(dry_run=dry_run, confirm=lambda _: True)

    # -- the controllers ---------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def acting(self) -> AsyncIterator[None]:
        """Controllers act whenever something changes while the block runs."""

        def condition() -> bool:
            self.act()
            return False

        task = asyncio.create_task(self.home.until(condition, timeout=60))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def act(self) -> None:
        """The work that is due."""
        for claim in self.home.objects(PERSISTENT_VOLUME_CLAIMS, NAMESPACE):
            self._bind(claim)
        for pod in self.home.objects(PODS, NAMESPACE):
            self._follow(pod)

    def _bind(self, claim: Object) -> None:
        meta, spec = claim["metadata"], claim["spec"]
        node = (meta.get("annotations") or {}).get(ANNOTATION_SELECTED_NODE)
        if not spec.get("volumeName") and node:
            self._provision(claim, node)
            return
        volume = self.home.find(PERSISTENT_VOLUMES, spec.get("volumeName") or "none")
        matches = volume is not None and volume["spec"]["claimRef"]["uid"] == meta["uid"]
        status = {"phase": "Bound" if matches else "Lost", "capacity": {"storage": "1Gi"}}
        if claim.get("status") != status:
            change: Object = {"status": status}
            self.home.update(PERSISTENT_VOLUME_CLAIMS, meta["name"], change, NAMESPACE)

    def _provision(self, claim: Object, node: str) -> None:
        meta = claim["metadata"]
        name = f"pvc-{meta['uid']}"
        source: Object = {"hostPath": {"path": name, "type": ""}}
        key, values = "kubernetes.io/hostname", [node]
        if node == NODE:
            source = {"csi": {"driver": DRIVER, "volumeHandle": f"r1/{NAMESPACE}/{meta['name']}"}}
            key, values = "cluster-bridge.io/remote", ["r1"]
        expression = {"key": key, "operator": "In", "values": values}
        spec: Object = {
            **source,
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": claim["spec"]["storageClassName"],
            "claimRef": {"namespace": NAMESPACE, "name": meta["name"], "uid": meta["uid"]},
            "nodeAffinity": {
                "required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
            },
        }
        metadata: Object = {"name": name, "finalizers": [PROTECTION, "cluster-bridge.io/volume"]}
        made = self.home.put(PERSISTENT_VOLUMES.manifest(metadata, spec=spec))
        self._folder(made).mkdir(exist_ok=True)
        self.home.update(
            PERSISTENT_VOLUME_CLAIMS, meta["name"], {"spec": {"volumeName": name}}, NAMESPACE
        )

    def _follow(self, pod: Object) -> None:
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            self.home.remove(PODS, meta["name"], NAMESPACE)
            return
        status: Object = pod.get("status") or {}
        if status.get("phase") != "Pending" or "containerStatuses" in status:
            return
        change: Object = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        if not self.reports_start:
            waiting = {"waiting": {"reason": "ContainerCreating"}}
            change = {"containerStatuses": [{"name": "transfer", "state": waiting}]}
        self.home.update(PODS, meta["name"], {"status": change}, NAMESPACE)

    # -- exec --------------------------------------------------------------------------------

    async def _exec(self, request: web.BaseRequest) -> web.StreamResponse:
        """Runs the command in this machine's shell, with the directory of the pod's volume."""
        pod = self.home.get(PODS, request.path.split("/")[-2], NAMESPACE)
        claim = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
        command = request.query.getall("command")
        if self.refused_commands:
            self.refused_commands -= 1
            return web.Response(status=500, text="container not found")
        self.scripts.append(command[-1])
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        if self.broken_pods and self.broken_pods in request.path:
            self.broken_pods = ""
            await socket.close()
            return socket
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "VOLUME": str(self.data(claim))},
            start_new_session=True,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_feed(socket, process))
                group.create_task(_drain(socket, process.stdout, 1))
                group.create_task(_drain(socket, process.stderr, 2))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # Also closes the pipes.
            with contextlib.suppress(ConnectionError):
                await process.communicate()
        return socket


async def _feed(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
    process.stdin.close()


async def _drain(
    socket: web.WebSocketResponse, stream: asyncio.StreamReader | None, channel: int
) -> None:
    assert stream is not None
    with contextlib.suppress(ConnectionError):
        while data := await stream.read(_CHUNK):
            await socket.send_bytes(bytes([channel]) + data)
