"""The objects of one kind in a namespace of home as a source: watched with the Secrets that they
name. The kinds are Remotes and ClusterProfiles (`JoinedKind`).

For each object, in this order:

1. The finalizer `remote_crd.FINALIZER` is added. If home rejects that, the join begins
   nevertheless, and the next pass tries again.
2. Its kubeconfig is validated and written to a private file, which a running join follows: a
   rotated Secret takes effect without a restart.
3. The join is desired. If the object or its Secret becomes invalid, the last valid join goes on,
   and the object shows the reason.
4. A deleted object leaves as `bridge leave --yes`. If the remote does not answer, home is cleaned
   up alone after `JoinedKind.abandoned_at`. Then the finalizer is removed. An object that was never
   joined has nothing to leave.

The state of a join is shown when it differs. Of several replicas, the one that serves a node shows
it; while none does, each may.

Failures of home are retried with delays up to `RETRY_CAP`; what runs goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from bridge.base.join_settings import Part
from bridge.crds.remote_crd import FINALIZER
from bridge.fleet.desired_state import DesiredState, InvalidState
from bridge.fleet.fleet_report import FleetReport, RemoteReport, Standing
from bridge.fleet.joined_kind import (
    JoinedKind,
    ProfileAccess,
    Rejection,
    has_finalizer,
    is_leaving,
)
from bridge.fleet.port_assignment import assign_ports
from bridge.fleet.secret_watches import FoundSecret, SecretWatches
from sync.base import exception_summary
from sync.base.backoff import Backoff
from sync.base.private_file import write_private_file
from sync.cache.informer import Informer
from sync.cache.store import Store
from sync.kube.api_errors import Conflict, KubeError, NotFound
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, condition_of, metadata, name_of, uid_of

log = logging.getLogger(__name__)

#: First and longest delay in seconds before home is contacted again.
RETRY_FIRST, RETRY_CAP = 1.0, 30.0
#: Seconds between looks at what no event reports: which replica leads, and leave timeouts.
LOOK_SECONDS = 10.0
#: The standings of the replica that serves a node.
_SERVING: tuple[Standing, ...] = ("serving", "lost")
#: The file in each Remote's directory.
_FILE = "kubeconfig"


@dataclass(frozen=True, slots=True)
class Request:
    """The join that one object describes."""

    node: str
    options: Mapping[str, object]
    kubeconfig: bytes | None = field(repr=False)
    """From the Secret, untrusted; None to make it of ``access``, or else to use the file."""
    path: Path
    """Where the kubeconfig is written."""
    home: KubeconfigRef
    access: ProfileAccess | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A valid `Request`, or the reason why it is not."""

    part: Part | None
    has_port: bool = False
    """Whether the options set the port."""
    kubeconfig: bytes = field(default=b"", repr=False)
    """The accepted kubeconfig, to be written."""
    rejection: Rejection | None = None
    is_transient: bool = False
    """Whether the same request may be answered otherwise later."""


#: Validates requests, in their order.
Read = Callable[[list[Request]], Awaitable[list[Answer]]]


class ObjectSource:
    """Yields the joins of the objects of a kind in a namespace."""

    ends_with_last_node = False

    def __init__(
        self,
        home: KubeconfigRef,
        namespace: str,
        kind: JoinedKind,
        *,
        read: Read,
        directory: Path,
    ) -> None:
        self.name = f"the {kind.resource.kind}s in namespace {namespace}"
        self._kind = kind
        self._home = home
        self._namespace = namespace
        self._read = read
        self._directory = directory
        self._wake = asyncio.Event()
        self._states: asyncio.Queue[DesiredState | InvalidState] = asyncio.Queue()
        self._report = FleetReport()
        self._answers: dict[str, tuple[Request, Answer]] = {}
        self._parts: dict[str, Part] = {}
        # Deleted objects that are not valid: they leave without their options.
        self._left_bare: set[str] = set()
        # UIDs of those that have left; the informer may still have them.
        self._released: set[str] = set()
        self._yielded: DesiredState | InvalidState | None = None

    def read_now(self) -> None:
        """Has all objects looked at again."""
        self._answers.clear()
        self._wake.set()

    async def states(self) -> AsyncIterator[DesiredState | InvalidState]:
        """The states as they are found."""
        while True:
            yield await self._states.get()

    async def run(self, report: FleetReport) -> None:
        """Follows home until cancelled."""
        self._report = report
        report.on_change = self._wake.set
        backoff = Backoff(first=RETRY_FIRST, cap=RETRY_CAP)
        while True:
            try:
                await self._follow(backoff)
            except* KubeError as group:
                error = exception_summary.first_leaf(group)
                self._yield(InvalidState(f"{self.name} cannot be read: {error}"))
            await asyncio.sleep(backoff.next())

    def _yield(self, state: DesiredState | InvalidState) -> None:
        if state != self._yielded:
            self._yielded = state
            self._states.put_nowait(state)

    async def _follow(self, backoff: Backoff) -> None:
        """Follows home's objects until an error, or a missing definition."""
        resource = self._kind.resource
        config = await load(self._home, side="home")
        async with KubeClient(config) as home:
            try:
                await home.list_page(resource, namespace=self._namespace, query={"limit": "1"})
            except NotFound:
                message = f"home: {resource} is not defined: {self._kind.missing}"
                self._yield(InvalidState(message))
                return
            backoff.reset()
            joined = Informer(home, resource, namespace=self._namespace)
            joined.on_change(lambda _old, _new: self._wake.set())
            async with asyncio.TaskGroup() as group:
                group.create_task(joined.run(), name=resource.plural)
                await joined.synced.wait()
                secrets = SecretWatches(home, self._namespace, group, self._wake)
                while True:
                    self._wake.clear()
                    await self._reconcile(home, joined.store, secrets)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_SECONDS):
                            await self._wake.wait()

    # -- one pass --------------------------------------------------------------------------

    async def _reconcile(self, home: KubeClient, store: Store, secrets: SecretWatches) -> None:
        """Brings the desired state and the objects' status up to date. A failed write is tried
        again in the next pass."""
        uids = {uid_of(it) for it in store}
        self._released &= uids
        self._kind.forget(uids)
        kept = (it for it in store if uid_of(it) not in self._released)
        objects = {name_of(it): it for it in sorted(kept, key=_age)}
        contents = await secrets.follow({self._kind.secret_name(it) for it in objects.values()})
        rejections = await self._validate(objects, contents)
        for name in self._parts.keys() - objects.keys():
            del self._parts[name]
        for name in self._answers.keys() - objects.keys():
            del self._answers[name]
        self._left_bare &= objects.keys()
        for name, joined in objects.items():
            with _logging_failures(name):
                await self._settle(home, joined, rejections.get(name))
        wanted = {it.settings.name or "": it for it in self._parts.values()}
        self._yield(DesiredState(tuple(self._with_ports(wanted).values())))

    async def _validate(
        self, objects: Mapping[str, Object], contents: Mapping[str, FoundSecret]
    ) -> dict[str, Rejection]:
        """Updates the joins of objects that have changed, or whose Secret has. Returns why others
        are rejected."""
        rejections: dict[str, Rejection] = {}
        nodes: dict[str, str] = {}
        new: dict[str, Request] = {}
        for name, joined in objects.items():
            node = self._kind.node_name(joined)
            if node in nodes:
                rejections[name] = Rejection(
                    "NodeNameTaken",
                    f"{self._kind.resource.kind} {nodes[node]} has the node {node}; set another "
                    "spec.nodeName",
                )
                continue
            nodes[node] = name
            found = self._request(joined, contents.get(self._kind.secret_name(joined)))
            if isinstance(found, Rejection):
                rejections[name] = found
            elif name not in self._answers or self._answers[name][0] != found:
                new[name] = found
        answers = await self._read([*new.values()]) if new else []
        for (name, request), answer in zip(new.items(), answers, strict=True):
            self._answers[name] = (request, self._written(request, answer))
        for name in objects.keys() - rejections.keys():
            answer, leaves = self._answers[name][1], is_leaving(objects[name])
            if answer.rejection is not None:
                rejections[name] = answer.rejection
                self._left_bare |= {name} if leaves else set()
                if answer.is_transient:
                    del self._answers[name]
            elif answer.part is not None and not (leaves and name in self._parts):
                self._parts[name] = answer.part
        return rejections

    def _request(self, joined: Object, secret: FoundSecret) -> Request | Rejection:
        """The request of an object."""
        node, path = self._kind.node_name(joined), self._path(joined)
        if name_of(joined) in self._left_bare:
            return Request(node, {}, None, path, self._home)
        if isinstance(secret, KubeError):
            return Rejection("SecretUnreadable", str(secret))
        has_file = is_leaving(joined) or path.is_file()
        found = self._kind.contents(joined, secret, has_file=has_file)
        if isinstance(found, Rejection):
            return found
        return Request(node, found.options, found.kubeconfig, path, self._home, found.access)

    def _path(self, joined: Object) -> Path:
        """Where the kubeconfig is written."""
        return self._directory / name_of(joined) / _FILE

    def _written(self, request: Request, answer: Answer) -> Answer:
        """The answer after its kubeconfig was written."""
        if not answer.kubeconfig:
            return answer
        folder = request.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not request.path.is_file() or request.path.read_bytes() != answer.kubeconfig:
                write_private_file(request.path, answer.kubeconfig)
        except OSError as error:
            message = f"the bridge cannot write {request.path}: {error.strerror}; check its disk"
            rejection = Rejection("NotWritable", message)
            return Answer(None, rejection=rejection, is_transient=True)
        return answer

    def _with_ports(self, parts: dict[str, Part]) -> dict[str, Part]:
        """The joins, each with a port of its own, which it keeps."""
        before = self._yielded
        present = before.parts if isinstance(before, DesiredState) else ()
        kept = {it.settings.name or "": it.settings.port for it in present if it.state == "joined"}
        fixed = {a.part.settings.name for _, a in self._answers.values() if a.part and a.has_port}
        unset = [node for node, it in parts.items() if it.state == "joined" and node not in fixed]
        return assign_ports(parts, unset, kept)

    # -- one object ------------------------------------------------------------------------

    async def _settle(self, home: KubeClient, joined: Object, rejection: Rejection | None) -> None:
        """The finalizer and the status of one object, and the state of its join."""
        name, now = name_of(joined), datetime.now(UTC)
        is_own = rejection is None or rejection.reason != "NodeNameTaken"
        report = self._report.remotes.get(self._kind.node_name(joined)) if is_own else None
        if is_leaving(joined):
            if not has_finalizer(joined):
                return
            if await self._has_left(home, joined, report, is_own=is_own):
                await self._set_finalizer(home, joined, present=False)
                self._parts.pop(name, None)
                self._released.add(uid_of(joined))
                self._forget_file(joined)
                return
            await self._leave(joined, rejection, now)
        elif name in self._parts and not has_finalizer(joined):
            await self._set_finalizer(home, joined, present=True)
        self._report.set_labels(self._kind.node_name(joined), self._kind.labels(joined, now))
        await self._kind.show(
            home,
            joined,
            rejection=rejection,
            report=report,
            now=now,
            may_write=lambda: self._may_write(home, joined, report),
        )

    def _forget_file(self, joined: Object) -> None:
        """Removes the kubeconfig: a later object of the name may be another cluster's."""
        path = self._path(joined)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()

    async def _has_left(
        self, home: KubeClient, joined: Object, report: RemoteReport | None, *, is_own: bool
    ) -> bool:
        """Whether nothing of a deleted object remains."""
        if report is not None:
            part = self._parts.get(name_of(joined))
            return report.state == "left" and (part is None or part.state == "left")
        if not is_own:
            return True
        # Not joined by this process: an invalid object, or one that was deleted before its start.
        node = await home.find(NODES, self._kind.node_name(joined))
        return node is None and name_of(joined) not in self._parts

    async def _leave(self, joined: Object, rejection: Rejection | None, now: datetime) -> None:
        """Has the join of a deleted object leave."""
        name, end = name_of(joined), self._kind.abandoned_at(joined)
        part = self._parts.get(name)
        if part is None and name in self._answers and rejection is None:
            part = self._answers[name][1].part
        if part is not None:
            abandons = end is not None and now >= end
            self._parts[name] = replace(part, state="left", abandons=abandons)

    async def _set_finalizer(self, home: KubeClient, joined: Object, *, present: bool) -> None:
        meta = metadata(joined)
        others = [it for it in meta.get("finalizers") or () if it != FINALIZER]
        # The version keeps the patch from undoing another one's change of the list.
        patch = {
            "metadata": {
                "resourceVersion": meta["resourceVersion"],
                "finalizers": [*others, FINALIZER] if present else others,
            }
        }
        await home.patch(
            self._kind.resource, name_of(joined), patch, namespace=self._namespace, decode=False
        )

    async def _may_write(
        self, home: KubeClient, joined: Object, report: RemoteReport | None
    ) -> bool:
        """Whether this replica shows the state of the join."""
        node_name = self._kind.node_name(joined)
        if report is None and name_of(joined) in self._parts:
            return False  # Another replica runs the join, or this one does soon.
        if report is not None and report.state == "running":
            return self._report.standing(node_name) in _SERVING
        if is_leaving(joined) or not self._kind.was_ready(joined):
            return True
        # Another replica may serve the node; or this one did before it was restarted.
        node = await home.find(NODES, node_name)
        return node is None or condition_of(node, "Ready").get("status") != "True"


def _age(joined: Object) -> tuple[str, str]:
    return str(metadata(joined).get("creationTimestamp") or ""), name_of(joined)


@contextlib.contextmanager
def _logging_failures(name: str) -> Iterator[None]:
    try:
        yield
    except (Conflict, NotFound):
        pass  # The object has changed, which is an event of its own.
    except KubeError as error:
        log.warning("home: %s cannot be updated yet: %s", name, error)
