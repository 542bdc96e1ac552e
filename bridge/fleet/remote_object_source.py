"""The Remotes of one namespace of home as a source: watched with the Secrets that they name.

For each Remote, in this order:

1. The finalizer `remote_crd.FINALIZER` is added. If home rejects that, the join begins
   nevertheless, and the next pass tries again.
2. The kubeconfig of its Secret is validated and written to a private file, which a running join
   follows: a rotated Secret takes effect without a restart.
3. The join is desired. If the spec or the Secret becomes invalid, the last valid join goes on, and
   the object's conditions have the reason.
4. A deleted Remote leaves as `bridge leave --yes`. If the remote does not answer, home is cleaned
   up alone after ``spec.leaveTimeout``. Then the finalizer is removed. A Remote that was never
   joined has nothing to leave.

The status is written when it differs. Of several replicas, the one that serves a node writes the
status of its Remote; while none does, each may.

Failures of home are retried with delays up to `RETRY_CAP`; what runs goes on.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from bridge.base.join_settings import Part
from bridge.crds.remote_crd import DEFAULT_KEYS, FINALIZER
from bridge.fleet import remote_objects
from bridge.fleet.desired_state import DesiredState, InvalidState
from bridge.fleet.fleet_report import FleetReport, RemoteReport, Standing
from bridge.fleet.port_assignment import assign_ports
from bridge.fleet.remote_objects import Rejection
from bridge.fleet.secret_watches import SecretData, SecretWatches
from sync.base import exception_summary
from sync.base.backoff import Backoff
from sync.base.private_file import write_private_file
from sync.cache.informer import Informer
from sync.cache.store import Store
from sync.kube.api_errors import Conflict, KubeError, NotFound
from sync.kube.api_resources import NODES, REMOTES
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
_MISSING = "`bridge crds | kubectl apply -f -` defines it, and `bridge rbac fleet` grants access"


@dataclass(frozen=True, slots=True)
class Request:
    """The join that one Remote describes."""

    node: str
    options: Mapping[str, object]
    kubeconfig: bytes | None = field(repr=False)
    """From the Secret, untrusted; None to use the file as it is."""
    path: Path
    """Where the kubeconfig is written."""
    home: KubeconfigRef


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


class RemoteObjectSource:
    """Yields the Remotes of a namespace."""

    ends_with_last_node = False

    def __init__(self, home: KubeconfigRef, namespace: str, *, read: Read, directory: Path) -> None:
        self.name = f"the Remotes in namespace {namespace}"
        self._home = home
        self._namespace = namespace
        self._read = read
        self._directory = directory
        self._wake = asyncio.Event()
        self._states: asyncio.Queue[DesiredState | InvalidState] = asyncio.Queue()
        self._report = FleetReport()
        self._answers: dict[str, tuple[Request, Answer]] = {}
        self._parts: dict[str, Part] = {}
        # Deleted Remotes that are not valid: they leave without their options.
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
        config = await load(self._home, side="home")
        async with KubeClient(config) as home:
            try:
                await home.list_page(REMOTES, namespace=self._namespace, query={"limit": "1"})
            except NotFound:
                message = f"home: {REMOTES} is not defined: {_MISSING}"
                self._yield(InvalidState(message))
                return
            backoff.reset()
            remotes = Informer(home, REMOTES, namespace=self._namespace)
            remotes.on_change(lambda _old, _new: self._wake.set())
            async with asyncio.TaskGroup() as group:
                group.create_task(remotes.run(), name="remotes")
                await remotes.synced.wait()
                secrets = SecretWatches(home, self._namespace, group, self._wake)
                while True:
                    self._wake.clear()
                    await self._reconcile(home, remotes.store, secrets)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_SECONDS):
                            await self._wake.wait()

    # -- one pass --------------------------------------------------------------------------

    async def _reconcile(self, home: KubeClient, store: Store, secrets: SecretWatches) -> None:
        """Brings the desired state and the objects' status up to date. A failed write is tried
        again in the next pass."""
        self._released &= {uid_of(it) for it in store}
        kept = (it for it in store if uid_of(it) not in self._released)
        remotes = {name_of(it): it for it in sorted(kept, key=_age)}
        contents = await secrets.follow({remote_objects.secret_name(it) for it in remotes.values()})
        rejections = await self._validate(remotes, contents)
        for name in self._parts.keys() - remotes.keys():
            del self._parts[name]
        for name in self._answers.keys() - remotes.keys():
            del self._answers[name]
        self._left_bare &= remotes.keys()
        for name, remote in remotes.items():
            with _logging_failures(name):
                await self._settle(home, remote, rejections.get(name))
        wanted = {it.settings.name or "": it for it in self._parts.values()}
        self._yield(DesiredState(tuple(self._with_ports(wanted).values())))

    async def _validate(
        self, remotes: Mapping[str, Object], contents: Mapping[str, SecretData]
    ) -> dict[str, Rejection]:
        """Updates the joins of Remotes whose spec or Secret has changed; returns why others are
        rejected."""
        rejections: dict[str, Rejection] = {}
        nodes: dict[str, str] = {}
        new: dict[str, Request] = {}
        for name, remote in remotes.items():
            node = remote_objects.node_name(remote)
            if node in nodes:
                rejections[name] = Rejection(
                    "NodeNameTaken",
                    f"Remote {nodes[node]} has the node {node}; set another spec.nodeName",
                )
                continue
            nodes[node] = name
            found = self._request(remote, contents.get(remote_objects.secret_name(remote)))
            if isinstance(found, Rejection):
                rejections[name] = found
            elif name not in self._answers or self._answers[name][0] != found:
                new[name] = found
        answers = await self._read([*new.values()]) if new else []
        for (name, request), answer in zip(new.items(), answers, strict=True):
            self._answers[name] = (request, self._written(request, answer))
        for name in remotes.keys() - rejections.keys():
            answer, is_leaving = self._answers[name][1], remote_objects.is_leaving(remotes[name])
            if answer.rejection is not None:
                rejections[name] = answer.rejection
                self._left_bare |= {name} if is_leaving else set()
                if answer.is_transient:
                    del self._answers[name]
            elif answer.part is not None and not (is_leaving and name in self._parts):
                self._parts[name] = answer.part
        return rejections

    def _request(self, remote: Object, secret: SecretData) -> Request | Rejection:
        """The request of a Remote. Without a Secret, the file of an earlier one counts."""
        node = remote_objects.node_name(remote)
        wanted, key = remote_objects.secret_name(remote), remote_objects.secret_key(remote)
        path = self._directory / name_of(remote) / _FILE
        content: bytes | None = None
        if name_of(remote) in self._left_bare:
            return Request(node, {}, None, path, self._home)
        if isinstance(secret, KubeError):
            return Rejection("SecretUnreadable", str(secret))
        if secret is not None:
            found = next((it for it in ([key] if key else DEFAULT_KEYS) if it in secret), None)
            if found is None:
                keys = key or " or ".join(DEFAULT_KEYS)
                return Rejection("SecretInvalid", f"Secret {wanted} has no key {keys}")
            try:
                content = base64.b64decode(secret[found], validate=True)
            except (binascii.Error, ValueError):
                return Rejection("SecretInvalid", f"Secret {wanted}: {found} is not base64")
        elif not (remote_objects.is_leaving(remote) or path.is_file()):
            return Rejection(
                "SecretNotFound",
                f"home: there is no Secret {wanted} in namespace {self._namespace}; create it with "
                "the kubeconfig of the remote",
            )
        options = (remote.get("spec") or {}).get("options") or {}
        return Request(node, options, content, path, self._home)

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

    # -- one Remote ------------------------------------------------------------------------

    async def _settle(self, home: KubeClient, remote: Object, rejection: Rejection | None) -> None:
        """The finalizer and the status of one Remote, and the state of its join."""
        name, now = name_of(remote), datetime.now(UTC)
        is_own = rejection is None or rejection.reason != "NodeNameTaken"
        report = self._report.remotes.get(remote_objects.node_name(remote)) if is_own else None
        if remote_objects.is_leaving(remote):
            if not remote_objects.has_finalizer(remote):
                return
            if await self._has_left(home, remote, report, is_own=is_own):
                await self._set_finalizer(home, remote, present=False)
                self._parts.pop(name, None)
                self._released.add(uid_of(remote))
                return
            await self._leave(remote, rejection, now)
        elif name in self._parts and not remote_objects.has_finalizer(remote):
            await self._set_finalizer(home, remote, present=True)
        await self._write_status(home, remote, rejection, report, now)

    async def _has_left(
        self, home: KubeClient, remote: Object, report: RemoteReport | None, *, is_own: bool
    ) -> bool:
        """Whether nothing of a deleted Remote remains."""
        if report is not None:
            part = self._parts.get(name_of(remote))
            return report.state == "left" and (part is None or part.state == "left")
        if not is_own:
            return True
        # Not joined by this process: an invalid Remote, or one that was deleted before its start.
        node = await home.find(NODES, remote_objects.node_name(remote))
        return node is None and name_of(remote) not in self._parts

    async def _leave(self, remote: Object, rejection: Rejection | None, now: datetime) -> None:
        """Has the join of a deleted Remote leave."""
        name, end = name_of(remote), remote_objects.abandoned_at(remote)
        part = self._parts.get(name)
        if part is None and name in self._answers and rejection is None:
            part = self._answers[name][1].part
        if part is not None:
            abandons = end is not None and now >= end
            self._parts[name] = replace(part, state="left", abandons=abandons)

    async def _set_finalizer(self, home: KubeClient, remote: Object, *, present: bool) -> None:
        meta = metadata(remote)
        others = [it for it in meta.get("finalizers") or () if it != FINALIZER]
        # The version keeps the patch from undoing another one's change of the list.
        patch = {
            "metadata": {
                "resourceVersion": meta["resourceVersion"],
                "finalizers": [*others, FINALIZER] if present else others,
            }
        }
        await home.patch(REMOTES, name_of(remote), patch, namespace=self._namespace, decode=False)

    async def _write_status(
        self,
        home: KubeClient,
        remote: Object,
        rejection: Rejection | None,
        report: RemoteReport | None,
        now: datetime,
    ) -> None:
        before = remote.get("status") or {}
        state, error = (report.state, report.error) if report is not None else (None, "")
        status = remote_objects.status(
            remote, rejection=rejection, state=state, error=error, now=now
        )
        if status != before and await self._may_write(home, remote, report):
            # A merge patch replaces the list of conditions as a whole.
            await home.patch(
                REMOTES,
                name_of(remote),
                {"status": status},
                namespace=self._namespace,
                subresource="status",
                decode=False,
            )

    async def _may_write(
        self, home: KubeClient, remote: Object, report: RemoteReport | None
    ) -> bool:
        """Whether the status is this replica's to write."""
        node_name = remote_objects.node_name(remote)
        if report is None and name_of(remote) in self._parts:
            return False  # Another replica runs the join, or this one does soon.
        if report is not None and report.state == "running":
            return self._report.standing(node_name) in _SERVING
        was_ready = condition_of(remote, "Ready").get("status") == "True"
        if remote_objects.is_leaving(remote) or not was_ready:
            return True
        # Another replica may serve the node; or this one did before it was restarted.
        node = await home.find(NODES, node_name)
        return node is None or condition_of(node, "Ready").get("status") != "True"


def _age(remote: Object) -> tuple[str, str]:
    return str(metadata(remote).get("creationTimestamp") or ""), name_of(remote)


@contextlib.contextmanager
def _logging_failures(name: str) -> Iterator[None]:
    try:
        yield
    except (Conflict, NotFound):
        pass  # The object has changed, which is an event of its own.
    except KubeError as error:
        log.warning("home: Remote %s cannot be updated yet: %s", name, error)
