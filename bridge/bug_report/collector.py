"""Collects a bug report from both clusters, with the user's own permissions, and writes it as a
compressed archive that only its owner may read.

A part that cannot be read is a line in ``problems`` and hides no other. Each part ends within
`PART_SECONDS`, and no list has more than `MAX_OBJECTS` objects.

Data of the Secrets and ConfigMaps that pods use, and of their copies, is registered for redaction
(`bridge.bug_report.redaction`) and dropped. If a part of it cannot be read, or is too much, texts
of the clusters are withheld: they could quote it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bridge.base.command_error import PreflightError
from bridge.bug_report.redaction import WITHHELD, Redactor
from bridge.checks import check_runner
from bridge.checks.check_context import ClusterConnectivity
from bridge.checks.check_runner import NodeCheckSettings
from bridge.checks.cluster_access import check_connectivity
from bridge.clusters.cluster_reads_selection import read_scope
from bridge.clusters.connection import Notify, cluster_uid
from bridge.election import election_lease
from bridge.install.remote_kubeconfig_lookup import resolve_remote_kubeconfig
from bridge.node import join_record, lease_namespace, node_object
from bridge.node.node_lease import LEASE_NAMESPACE
from bridge.status import version_report
from sync.cleanup import remote_inventory
from sync.cleanup.remote_inventory import ReadScope
from sync.kube import kubeconfig
from sync.kube.api_errors import ApiError, KubeError
from sync.kube.api_resources import EVENTS, LEASES, NODES, PODS, RESOURCE_QUOTAS, Resource
from sync.kube.client import KubeClient
from sync.kube.credentials import Credentials
from sync.kube.kubeconfig import KubeconfigError
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.references.reference_keys import REFERENCED_RESOURCES
from translators.object_accessors import Object, name_of, namespace_of
from translators.pods.references import Reference, references
from translators.virtual_node_identity import home_id_from_uid

T = TypeVar("T")

#: Timeout of a part, in seconds.
PART_SECONDS = 20.0
#: Longest list.
MAX_OBJECTS = 2000
#: ConfigMaps and Secrets of the home cluster that are read, and how many concurrently.
MAX_REFERENCES, AT_ONCE = 2000, 16


@dataclass(frozen=True, slots=True)
class BugReportSettings:
    """Options of `bridge bug-report`."""

    home: KubeconfigRef
    name: str = ""
    """The virtual node; "" for all of home."""
    remote: KubeconfigRef | None = None
    """The remote's kubeconfig; None for the one that each node records."""
    addresses: bool = False
    """Whether to include the addresses of the API servers."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A part that cannot be read."""

    text: str
    answer: str = ""
    """The message of an API server, which can quote an object."""


@dataclass(slots=True)
class BugReport:
    """The parts of a report. They are rendered by `files`, after all secrets are known."""

    redactor: Redactor = field(default_factory=Redactor)
    parts: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """File name → function that returns its content."""
    descriptions: dict[str, str] = field(default_factory=dict)
    """File name → description."""
    problems: list[Problem] = field(default_factory=list)
    unlearned: list[str] = field(default_factory=list)
    """The contents that could not be registered for redaction."""
    replacements: dict[str, str] = field(default_factory=dict)
    """Text that is replaced in all files → its replacement."""

    def add(self, file: str, description: str, content: Callable[[], Any]) -> None:
        """Adds a file."""
        self.parts[file], self.descriptions[file] = content, description

    def problem(self, text: str) -> None:
        self.problems.append(Problem(text))

    def files(self) -> dict[str, bytes]:
        """The redacted content of each file, by name."""
        found = {file: self._text(content()) for file, content in self.parts.items()}
        problems = [
            self.redactor.without_known(problem.text) + self.redactor.redact(problem.answer)
            for problem in self.problems
        ]
        if self.unlearned:
            problems.append(
                f"texts of the clusters are withheld, because the contents that they could quote "
                f"are not all known: {'; '.join(self.unlearned)}"
            )
        found["problems.json"] = self._text(problems)
        self.descriptions["problems.json"] = "what could not be read, and why"
        return {file: text.encode() for file, text in sorted(found.items())}

    def _text(self, content: Any) -> str:
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        # The longest first: one may contain another.
        for secret in sorted(self.replacements, key=len, reverse=True):
            text = text.replace(secret, self.replacements[secret])
        return text


async def collect(settings: BugReportSettings, *, notify: Notify) -> BugReport:
    """Collects everything that can be read. Errors of the clusters become ``problems``."""
    found = BugReport()
    with contextlib.suppress(RuntimeError):  # The user has no home directory.
        home = str(Path.home())
        if len(home) > 1:
            found.replacements[home] = "~"
    notify("collecting versions and check results")
    await _add_versions_and_checks(settings, found)
    async with AsyncExitStack() as stack:
        its = await check_connectivity(stack, settings.home, "home")
        _hide(found, its.credentials, show=settings.addresses)
        if its.client is None:
            _add_errors(its, found)
            return found
        for known in await _nodes(its.client, settings, found):
            notify(f"collecting node {name_of(known)}")
            await _add_node(stack, settings, its.client, known, found)
    found.redactor.is_complete = not found.unlearned
    return found


def _add_errors(its: ClusterConnectivity, found: BugReport) -> None:
    for finding in its.findings:
        if finding.severity == "error":
            found.problem(finding.found)


async def _add_versions_and_checks(settings: BugReportSettings, found: BugReport) -> None:
    """Adds versions and check results. Their messages are redacted when rendered."""
    versions = await version_report.collect_versions(settings.home, settings.remote)
    # The servers of other nodes are not known as such, and an error would name them.
    nodes = [node for node in versions["nodes"] if settings.name in ("", node["name"])]

    def clusters() -> Object:
        for cluster in (versions["home"], *(node["remote"] for node in nodes)):
            cluster["problem"] = found.redactor.without_known(cluster["problem"])
        return {**versions, "nodes": nodes}

    found.add("versions.json", "versions of both clusters and of the bridges", clusters)
    health = NodeCheckSettings(settings.home, settings.name, settings.remote)
    report = await check_runner.check_nodes(health)

    def findings() -> Object:
        data = report.as_data()
        for it in data["findings"]:
            it["found"] = found.redactor.redact(it["found"])
        return data

    found.add("check.json", "results of bridge check", findings)


async def _nodes(home: KubeClient, settings: BugReportSettings, found: BugReport) -> list[Object]:
    if settings.name:
        nodes = await _existing(home, NODES, settings.name, found)
        nodes = list(filter(node_object.is_virtual_node, nodes))
    else:
        nodes = await _listed(home, NODES, found, labels=node_object.LABEL_REMOTE)
    if not nodes:
        found.problem("home: no such virtual node")
    return nodes


async def _add_node(
    stack: AsyncExitStack,
    settings: BugReportSettings,
    home: KubeClient,
    known: Object,
    found: BugReport,
) -> None:
    name, redactor = name_of(known), found.redactor
    folder = f"nodes/{name}"
    found.add(f"{folder}/node.json", "the virtual node", lambda: redactor.node(known))
    pods = await _learned_pods(home, name, found)
    found.add(
        f"{folder}/pods.json", "home's pods on it: status", lambda: [*map(redactor.pod, pods)]
    )
    leases = await _leases(home, name, found)
    found.add(f"{folder}/leases.json", "its Leases", lambda: [*map(redactor.lease, leases)])
    events = await _events(home, name, pods, found)
    found.add(f"{folder}/events.json", "Events of both", lambda: [*map(redactor.event, events)])
    await _add_metrics(home, name, folder, found)
    looking_up = resolve_remote_kubeconfig(stack, home, known, settings.remote, warn=found.problem)
    there = await _part(found, f"home: the kubeconfig of the remote of {name}", looking_up)
    if there is None:
        found.problem(f"remote of {name}: its kubeconfig was not found")
        found.unlearned.append(f"copies and tokens in the remote of {name}")
        return
    its = await check_connectivity(stack, there, "remote")
    _hide(found, its.credentials, show=settings.addresses)
    if its.client is None:
        _add_errors(its, found)
        found.unlearned.append(f"copies and tokens in the remote of {name}")
        return
    reading = read_scope(its.client, join_record.remote_namespaces(known))
    scope = await _part(found, "remote: permissions", reading)
    if scope is None:
        found.unlearned.append(f"copies and tokens in the remote of {name}")
        return
    await _add_remote(home, its.client, scope, folder, found)


async def _add_remote(
    home: KubeClient, remote: KubeClient, scope: ReadScope, folder: str, found: BugReport
) -> None:
    redactor = found.redactor

    async def inventories() -> list[remote_inventory.NodeInventory]:
        home_id = home_id_from_uid(await cluster_uid(home))
        return await remote_inventory.list_node_inventories(remote, home_id, scope=scope)

    theirs = await _part(found, "remote: objects of the bridge", inventories())
    if theirs is None or any(remote.limits.rejected.values()):
        found.unlearned.append("copies and tokens in the remote")
    theirs = theirs or []
    pods = [pod for its in theirs for pod in its.pods]
    copies = [copy for its in theirs for copy in its.copies]
    namespaces = [it for its in theirs for it in its.namespaces]
    for pod in pods:
        redactor.learn_pod(pod)
    for resource, copy in copies:
        redactor.learn_data({**copy, "kind": resource.kind})
        for key in ("data", "binaryData", "stringData"):
            copy.pop(key, None)
    # All were learned before.
    pods, copies = pods[:MAX_OBJECTS], copies[:MAX_OBJECTS]
    found.add(
        f"{folder}/remote-pods.json",
        "the remote's pods for them: status",
        lambda: [*map(redactor.pod, pods)],
    )
    found.add(
        f"{folder}/remote-objects.json",
        "the bridge's objects there: names and owners, no contents",
        lambda: [*map(redactor.metadata_only, [*(copy for _, copy in copies), *namespaces])],
    )
    nodes = await _listed(remote, NODES, found) if scope.reads.nodes else []
    found.add(
        f"{folder}/remote-nodes.json", "the remote's nodes", lambda: [*map(redactor.node, nodes)]
    )
    mapped = {*map(name_of, namespaces), *scope.namespaces}
    where = (None,) if scope.reads.resource_quotas else scope.namespaces
    lists = [await _listed(remote, RESOURCE_QUOTAS, found, namespace=it) for it in where]
    quotas = [it for listed in lists for it in listed if namespace_of(it) in mapped]
    found.add(f"{folder}/remote-quotas.json", "its quotas", lambda: [*map(redactor.quota, quotas)])


async def _learned_pods(home: KubeClient, node: str, found: BugReport) -> list[Object]:
    """The pods on a node, once all that they contain and refer to is learned."""
    listed = await _part(found, "home: pods", home.list(PODS, fields=f"spec.nodeName={node}"))
    if listed is None:
        found.unlearned.append(f"pods on {node}")
        return []
    for pod in listed.items:
        found.redactor.learn_pod(pod)
    wanted = {(namespace_of(pod), named) for pod in listed.items for named in references(pod)}
    await _learn_references(home, sorted(wanted), found)
    return _cut(listed.items, "home: pods", found)


async def _learn_references(
    home: KubeClient, wanted: Sequence[tuple[str, Reference]], found: BugReport
) -> None:
    if len(wanted) > MAX_REFERENCES:
        found.unlearned.append(f"{len(wanted)} ConfigMaps and Secrets to which pods refer")
        return

    async def learn(namespace: str, ref: Reference) -> None:
        resource = REFERENCED_RESOURCES[ref.kind]
        obj = await home.find(resource, ref.name, namespace=namespace)
        if obj is not None:
            found.redactor.learn_data({**obj, "kind": ref.kind})

    async def learn_all() -> bool:
        for start in range(0, len(wanted), AT_ONCE):
            await asyncio.gather(*(learn(*key) for key in wanted[start : start + AT_ONCE]))
        return True

    if not await _part(found, "home: ConfigMaps and Secrets to which pods refer", learn_all()):
        found.unlearned.append("ConfigMaps and Secrets to which pods refer")


async def _leases(home: KubeClient, name: str, found: BugReport) -> list[Object]:
    leases = []
    for namespace, lease_name in (
        (LEASE_NAMESPACE, name),
        (lease_namespace.NAMESPACE, election_lease.election_lease_name(name)),
    ):
        leases += await _existing(home, LEASES, lease_name, found, namespace=namespace)
    return leases


async def _events(
    home: KubeClient, name: str, pods: Iterable[Object], found: BugReport
) -> list[Object]:
    of_node = f"involvedObject.kind=Node,involvedObject.name={name}"
    events = await _listed(home, EVENTS, found, fields=of_node)
    known = {(namespace_of(pod), name_of(pod)) for pod in pods}
    for namespace in sorted({namespace for namespace, _ in known}):
        selected = "involvedObject.kind=Pod"
        for event in await _listed(home, EVENTS, found, namespace=namespace, fields=selected):
            if (namespace, str((event.get("involvedObject") or {}).get("name"))) in known:
                events.append(event)
    return events[:MAX_OBJECTS]


async def _add_metrics(home: KubeClient, name: str, folder: str, found: BugReport) -> None:
    """The bridge's own numbers, whose labels name no user objects (docs/reference/metrics.md)."""
    path = NODES.path(name, subresource="proxy/metrics")
    metrics = await _part(found, f"home: /metrics of {name}", home.read(path, timeout=PART_SECONDS))
    if metrics is not None:
        text = metrics.decode(errors="replace")
        found.add(f"{folder}/metrics.txt", "the bridge's own metrics", lambda: text)


# -- reading -------------------------------------------------------------------------------


async def _existing(
    home: KubeClient, resource: Resource, name: str, found: BugReport, *, namespace: str = ""
) -> list[Object]:
    """The object; none if it does not exist or cannot be read."""
    reading = home.find(resource, name, namespace=namespace or None)
    obj = await _part(found, f"home: {resource.kind} {name}", reading)
    return [] if obj is None else [obj]


async def _listed(
    client: KubeClient,
    resource: Resource,
    found: BugReport,
    *,
    namespace: str | None = None,
    labels: str = "",
    fields: str = "",
) -> list[Object]:
    reading = client.list(resource, namespace=namespace, labels=labels, fields=fields)
    page = await _part(found, f"{client.side}: {resource}", reading)
    return [] if page is None else _cut(page.items, f"{client.side}: {resource}", found)


def _cut(objects: list[Object], what: str, found: BugReport) -> list[Object]:
    if len(objects) > MAX_OBJECTS:
        found.problem(f"{what}: {MAX_OBJECTS} of {len(objects)} are included")
    return objects[:MAX_OBJECTS]


async def _part(found: BugReport, what: str, reading: Awaitable[T]) -> T | None:
    """The result of ``reading``; None if it fails, which is recorded as a problem."""
    try:
        async with asyncio.timeout(PART_SECONDS):
            return await reading
    except ApiError as error:
        found.problems.append(Problem(f"{what}: {error.code}: ", error.message))
    except KubeError as error:
        found.problem(f"{what}: {error}")
    except TimeoutError:
        found.problem(f"{what}: no answer in {PART_SECONDS:.0f} s")
    return None


def _hide(found: BugReport, credentials: Credentials | None, *, show: bool) -> None:
    """Registers the credentials for replacement, and unless ``show`` is set their server, which
    errors name too."""
    if credentials is None:
        return
    if header := credentials.credential.authorization:
        found.replacements[header.partition(" ")[2] or header] = WITHHELD
    for file in credentials.ref.paths():
        for value in _credentials(file):
            found.replacements[value] = WITHHELD
    if not show:
        found.replacements[credentials.endpoint.host] = f"<{credentials.side}-api-server>"


def _credentials(file: Path) -> Iterable[str]:
    """The secrets of a kubeconfig's users."""
    try:
        config = kubeconfig.parse(file.read_bytes()) or {}
        users = [entry.get("user", {}) for entry in config.get("users", ())]
    except (OSError, KubeconfigError):
        return []
    keys = ("token", "password", "client-key-data", "client-certificate-data")
    return [str(it[key]) for it in users for key in keys if it.get(key)]


#: The beginning of the archive's table of contents.
_CONTENTS_HEADER = """A bug report of a cluster bridge. It does not contain: data of Secrets and
ConfigMaps, values of environment variables, commands, arguments, labels and annotations, logs,
credentials.

"""


def default_archive(now: time.struct_time) -> Path:
    """The default file name."""
    return Path(time.strftime("bridge-bugreport-%Y%m%d-%H%M%S.tar.gz", now))


def write_archive(path: Path, report: BugReport) -> list[Object]:
    """Writes the archive, and returns its files with size and description. Raises PreflightError,
    also if the file exists."""
    files = report.files()
    folder = path.name.removesuffix(".gz").removesuffix(".tar")
    listed = [
        {"file": name, "bytes": len(content), "what": report.descriptions[name]}
        for name, content in files.items()
    ]
    lines = [f"{entry['file']}: {entry['what']}\n" for entry in listed]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            _add(tar, f"{folder}/CONTENTS.txt", (_CONTENTS_HEADER + "".join(lines)).encode())
            for name, content in files.items():
                _add(tar, f"{folder}/{name}", content)
    except FileExistsError:
        raise PreflightError(f"{path} exists; name another file with -f") from None
    except OSError as error:
        raise PreflightError(f"{path} cannot be written: {error.strerror}") from error
    return listed


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
    tar.addfile(entry, io.BytesIO(content))
