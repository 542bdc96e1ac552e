"""`bridge volume copy`: copies the files of one PersistentVolumeClaim to another one.

1. Both claims exist, no pod mounts either, and their namespaces admit the two pods of the copy.
2. A pod starts for each claim. The target gets a marker file, which states that it is incomplete,
   and the files of an earlier incomplete copy are deleted.
3. The files go as a tar stream from one pod to this process and on to the other, through exec
   streams of the home API server, which reach pods in remotes through their bridges.
4. The target is synced to disk. Then both volumes are read, and their checksums compared.
5. The marker is deleted, and so are the pods.

A pod that mounts one of the claims before the checksums are equal ends the copy, and the marker
stays, as after any other failure or interruption. The command can be run again, and begins from the
start. It creates and deletes its own pods, and writes nothing else in a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple

from rich.progress import Progress, TaskID

from bridge.base.command_error import PreflightError
from bridge.base.printable_text import summarize_names
from bridge.base.progress_lines import Caveat
from bridge.clusters.connection import Notify
from bridge.volumes import copy_pod
from sync.base.exception_summary import first_leaf
from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.kube import api_resources
from sync.kube.api_errors import AlreadyExists, Forbidden, Invalid, KubeError
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.kube.pod_exec import ShellStream, open_shell
from translators.object_accessors import Object, is_deleting, is_ready, name_of, uid_of
from translators.ownership_labels import LABEL_VOLUME_COPY
from translators.pods.pod_status import is_terminal, phase
from translators.storage.identifiers import ClaimKey, bound_volume, claims_of_pod, is_bound

#: Bytes of a message (every message costs each hop the same time), and of a script's whole output.
_MESSAGE, _OUTPUT_MAX = 128 << 10, 1 << 20
POLL_SECONDS = 0.1
#: Seconds that the command waits at its end for that of its pods.
CLEANUP_SECONDS = 8.0


class Content(NamedTuple):
    """The number of files, their bytes, and the bytes of the stream that has them."""

    files: int
    size: int
    sent: int


@dataclass
class VolumeCopy:
    """One run of the command."""

    home: KubeClient
    source: ClaimKey
    target: ClaimKey
    image: str
    notify: Notify
    progress: Progress
    node: str = ""
    """The node of the target's pod; "" for any that can mount the target's volume."""
    timeout: float = 300.0
    """Seconds for the pods to start."""

    def __post_init__(self) -> None:
        self._run_id = secrets.token_hex(8)
        self._pods: dict[Key, Object] = {}
        """The pods of the copy as they are created: the source's, then the target's."""
        self._informers = {
            namespace: Informer(self.home, PODS, namespace=namespace)
            for namespace in {self.source.namespace, self.target.namespace}
        }
        self._mounted: asyncio.Future[Key] = asyncio.get_running_loop().create_future()
        """The first other pod that was seen to mount one of the claims."""

    async def run(self, *, overwrite: bool = False) -> Content:
        """Returns what was copied. Deletes files of a target that is no incomplete copy only if
        ``overwrite``. Raises PreflightError, KubeError and TimeoutError."""
        await self._plan_pods()
        source, target = self._pods
        is_incomplete = False
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch())
                await self._start_pods()
                content = await self._inspect(source)
                empty = copy_pod.empty(_text(self.source), self._run_id, overwrite=overwrite)
                await self._run(target, empty)
                is_incomplete = True
                await self._send(source, target, content.sent)
                await self._verify(source, target, content.size)
                watch.cancel()
            await self._run(target, copy_pod.finish(self._run_id))
            is_incomplete = False
        except BaseExceptionGroup as error:
            raise first_leaf(error) from None
        finally:
            if is_incomplete:
                name = _text(self.target)
                self.notify(Caveat(f"{name} is incomplete; its file {copy_pod.MARKER} states it"))
            with contextlib.suppress(KubeError, TimeoutError):
                async with asyncio.timeout(CLEANUP_SECONDS):
                    await self._delete_pods(f"{LABEL_VOLUME_COPY}={self._run_id}")
        return content

    async def _inspect(self, source: Key) -> Content:
        """Reads the size of the source, and reports what will not be copied."""
        output = await self._run(source, copy_pod.INSPECT)
        try:
            numbers, attributes, sockets = output.decode(errors="replace").split("\n", 2)
            files, size, sent = map(int, numbers.split())
        except ValueError:
            raise PreflightError(
                f"home: pod {source} answers with something else than the size of its volume; see "
                "whether --image has the programs that a copy needs"
            ) from None
        for option, name in (("--xattrs", "extended attributes"), ("--acls", "ACLs")):
            if option not in attributes:
                self.notify(Caveat(f"{name} are not copied: tar of the image does not support it"))
        if sockets:
            self.notify(Caveat(f"sockets are not copied: {', '.join(sockets.splitlines())}"))
        return Content(files, size, sent)

    async def _send(self, source: Key, target: Key, size: int) -> None:
        """Returns when the target has the files on disk. Raises PreflightError if the stream has
        another ``size``."""
        task = self.progress.add_task("copying", total=size)
        async with (
            self._shell(target, copy_pod.receive(size)) as receiver,
            self._shell(source, copy_pod.SEND) as sender,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._read(receiver))
            held, left = bytearray(), size
            async for data in sender.output():
                held += data
                if len(held) > left:
                    break
                # The last message waits for the end of the source, which may have changed.
                if _MESSAGE <= len(held) < left:
                    await receiver.write(bytes(held))
                    self.progress.advance(task, len(held))
                    left -= len(held)
                    held.clear()
            if len(held) != left:
                raise PreflightError(
                    f"home: {_text(self.source)} changed during the copy; find what writes to it, "
                    "such as a pod that only the remote knows, and run the command again"
                )
            await receiver.write(bytes(held))
            self.progress.advance(task, left)

    async def _verify(self, source: Key, target: Key, size: int) -> None:
        """Raises PreflightError if the checksums differ, or if a pod has mounted a volume."""
        task = self.progress.add_task("verifying", total=size)
        async with asyncio.TaskGroup() as group:
            expected = group.create_task(self._run(source, copy_pod.DIGEST))
            found = group.create_task(self._run(target, copy_pod.DIGEST, task))
        async with asyncio.timeout(self.timeout):
            for informer in self._informers.values():
                await informer.refresh()
        if self._mounted.done():
            raise self._in_use(self._mounted.result())
        if expected.result().strip() != found.result().strip():
            raise PreflightError(
                "home: the checksums differ: a pod that only the remote knows writes to a volume, "
                "or the target cannot keep all attributes of files; see the page Copy a volume"
            )

    def _shell(self, pod: Key, script: str) -> AbstractAsyncContextManager[ShellStream]:
        names = {"namespace": pod.namespace, "pod": pod.name, "container": copy_pod.CONTAINER}
        return open_shell(self.home, script, **names)

    async def _run(self, pod: Key, script: str, task: TaskID | None = None) -> bytes:
        """Runs a script and returns its output, whose lines are the steps of a digest ``task``."""
        async with self._shell(pod, script) as running:
            return await self._read(running, task)

    async def _read(self, running: ShellStream, task: TaskID | None = None) -> bytes:
        output = bytearray()
        async for data in running.output():
            output += data
            if task is not None:
                self.progress.advance(task, data.count(b"\n") * copy_pod.DIGEST_STEP)
            if len(output) > _OUTPUT_MAX:
                raise PreflightError("home: a pod of the copy does not end its output")
        return bytes(output)

    async def _plan_pods(self) -> None:
        """Raises PreflightError if the copy cannot begin. Changes nothing."""
        if self.source == self.target:
            raise PreflightError("source and target are the same PersistentVolumeClaim")
        source, target = await self._claim(self.source), await self._claim(self.target)
        nodes = (await self.home.list(api_resources.NODES)).items
        if self.node and self.node not in (names := sorted(map(name_of, nodes))):
            raise PreflightError(
                f"home: there is no node {self.node}; the nodes are {summarize_names(names)}"
            )
        for role, claim, allowed in (("source", source, ""), ("target", target, self.node)):
            volume = None
            if is_bound(claim):
                volume = await self.home.get(api_resources.PERSISTENT_VOLUMES, bound_volume(claim))
            elif not allowed:
                raise PreflightError(
                    f"home: {_text(key_of(claim))} is not Bound; only a target may be, if --to "
                    "names the node that its volume will be on"
                )
            pod = copy_pod.copy_pod(
                claim,
                role=role,
                pair=f"{uid_of(source)}/{uid_of(target)}",
                volume=volume,
                node=allowed,
                taints=[taint for node in nodes for taint in node["spec"].get("taints") or ()],
                image=self.image,
                run=self._run_id,
                timeout=self.timeout,
            )
            self._pods[key_of(pod)] = pod
        for namespace in self._informers:
            for pod in (await self.home.list(PODS, namespace=namespace)).items:
                if self._mounts(pod) and not is_terminal(pod):
                    raise self._in_use(key_of(pod))
        for key in self._pods:
            with contextlib.suppress(AlreadyExists):  # A killed command has left it.
                await self._create(key, dry_run=True)

    async def _claim(self, key: ClaimKey) -> Object:
        claims = api_resources.PERSISTENT_VOLUME_CLAIMS
        found = await self.home.find(claims, key.name, namespace=key.namespace)
        if found is None or is_deleting(found):
            raise PreflightError(f"home: {_text(key)} does not exist, or is being deleted")
        if found["spec"].get("volumeMode") == "Block":
            raise PreflightError(f"home: {_text(key)} is a block device, and has no files")
        return found

    async def _create(self, key: Key, *, dry_run: bool = False) -> None:
        try:
            await self.home.create(PODS, self._pods[key], namespace=key.namespace, dry_run=dry_run)
        except (Forbidden, Invalid) as error:
            raise PreflightError(
                f"home: pod {key} cannot be created: {error.message}; it runs as root with the "
                "capabilities that tar needs, which the namespace must permit (Pod Security level "
                "baseline)"
            ) from error

    def _mounts(self, pod: Object) -> bool:
        """Whether a pod that is not of this copy mounts one of the claims."""
        claims = set(claims_of_pod(pod))
        return key_of(pod) not in self._pods and (self.source in claims or self.target in claims)

    def _in_use(self, pod: Key) -> PreflightError:
        return PreflightError(
            f"home: pod {pod} mounts {_text(self.source)} or {_text(self.target)}, which no pod "
            "may do until the copy is verified; scale its controller to zero, or delete it, and "
            "run the command again"
        )

    async def _watch(self) -> None:
        """Follows the pods of both namespaces. Raises PreflightError once one mounts a claim."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers.values():
                informer.on_change(functools.partial(self._see, informer))
                group.create_task(informer.run())
            raise self._in_use(await self._mounted)

    def _see(self, informer: Informer, old: Object | None, new: Object | None) -> None:
        if new is None or self._mounted.done() or not self._mounts(new):
            return
        # A pod that had finished before the copy does not count, one that was quick does.
        if not is_terminal(new) or (old is None and informer.synced.is_set()):
            self._mounted.set_result(key_of(new))

    async def _start_pods(self) -> None:
        """Deletes the pods of killed commands, and returns when those of this one run."""
        try:
            async with asyncio.timeout(self.timeout):
                for informer in self._informers.values():
                    await informer.synced.wait()
                await self._delete_pods(
                    LABEL_VOLUME_COPY, lambda pod: key_of(pod) in self._pods or is_terminal(pod)
                )
                for key in self._pods:
                    await self._create(key)
                while not all(is_ready(self._latest(key)) for key in self._pods):
                    if any(is_terminal(self._latest(key)) for key in self._pods):
                        break
                    await asyncio.sleep(POLL_SECONDS)
                else:
                    return
        except TimeoutError:
            pass
        reasons = "; ".join([await self._state(key) for key in self._pods])
        raise PreflightError(
            f"home: the pods of the copy do not run: {reasons}; remove the cause, or allow more "
            "time by --timeout, and run the command again"
        )

    def _latest(self, key: Key) -> Object:
        return self._informers[key.namespace].store.get(key) or self._pods[key]

    async def _state(self, key: Key) -> str:
        """The pod's phase, and the last warning about it or its claim."""
        names = {key.name, *(claim.name for claim in claims_of_pod(self._pods[key]))}
        events = await self.home.list(
            api_resources.EVENTS, namespace=key.namespace, fields="type=Warning"
        )
        warnings = [
            f" ({event.get('message')})"
            for event in events.items
            if (event.get("involvedObject") or {}).get("name") in names
        ]
        return f"{key} is {phase(self._latest(key))}{''.join(warnings[-1:])}"

    async def _delete_pods(
        self, labels: str, belongs: Callable[[Object], bool] = lambda _: True
    ) -> None:
        """Deletes pods of this command in both namespaces, and waits until they have ended."""
        while pods := [
            pod
            for namespace in self._informers
            for pod in (await self.home.list(PODS, namespace=namespace, labels=labels)).items
            if belongs(pod)
        ]:
            for pod in pods:
                key = key_of(pod)
                if not is_deleting(pod):
                    await self.home.delete(PODS, key.name, namespace=key.namespace, uid=uid_of(pod))
            await asyncio.sleep(POLL_SECONDS)


def _text(claim: ClaimKey | Key) -> str:
    return f"PersistentVolumeClaim {claim.namespace}/{claim.name}"
