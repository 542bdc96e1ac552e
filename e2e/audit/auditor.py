"""Reads two clusters for the checks of this package, and watches their pods meanwhile.

    with Auditor(home, remote, node=...) as auditor:
        ...                                  # the audited actions
        findings = auditor.settled()         # [] if nothing is wrong

API servers may be unavailable meanwhile: watches restart.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from e2e.audit.copied_objects import check_copies, check_namespaces
from e2e.audit.findings import LABEL_NODE, Finding, Json, is_managed, of_kind
from e2e.audit.pod_history import History
from e2e.audit.pod_pairs import check_pods
from e2e.audit.tokens import checksums
from e2e.audit.unmanaged_changes import Seen, check_home, check_unmanaged, snapshot
from e2e.audit.volumes import Volumes
from e2e.clusters.cluster import Cluster
from e2e.clusters.errors import ClusterError
from e2e.kubectl import get_one, get_with_managed_fields

#: The resources that a bridge creates or could touch.
KINDS = "pods,configmaps,secrets,services,namespaces,endpointslices"
#: The resources of volumes, which only `Volumes` checks.
STORAGE_KINDS = "persistentvolumeclaims,persistentvolumes"
#: Seconds in which findings may still resolve themselves (an empty namespace lingers for 60), and
#: between two checks.
SETTLE_SECONDS = 90.0
LOOK_EVERY = 2.0


class Auditor:
    """Audits the virtual node ``node`` of ``home``, whose pods run in ``remote``."""

    def __init__(self, home: Cluster, remote: Cluster, *, node: str) -> None:
        self._home = home
        self._remote = remote
        self._node = node
        self._history = History()
        self._volumes = Volumes(node)
        self._lock = threading.Lock()
        self._unmanaged: dict[str, Seen] = {}
        self._watches = [
            _Watch(home, ("--field-selector", f"spec.nodeName={node}"), self._saw_home),
            _Watch(remote, ("--selector", f"{LABEL_NODE}={node}"), self._saw_remote),
        ]

    def __enter__(self) -> Auditor:
        self._unmanaged = snapshot(_read(self._remote))
        for watch in self._watches:
            watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.stop()

    def findings(self) -> list[Finding]:
        """The current findings. The clusters are not read at the same moment: see `settled`."""
        home, remote = _read(self._home), _read(self._remote)
        storage, remote_storage = (_read(it, STORAGE_KINDS) for it in (self._home, self._remote))
        pods = [pod for pod in of_kind(home, "Pod") if pod["spec"].get("nodeName") == self._node]
        mine = [pod for pod in of_kind(remote, "Pod") if is_managed(pod, self._node)]
        found = {
            *check_pods(pods, mine, all_remote=remote, address=self._address()),
            *check_copies(home, remote, pods=pods, node=self._node),
            *check_namespaces([*remote, *remote_storage], pods=pods, node=self._node),
            *check_unmanaged(self._unmanaged, remote),
            *check_home(home),
            *self._volumes.findings(storage, remote_storage, checksums(remote_storage)),
        }
        with self._lock:
            found.update(self._history.findings(), self._history.unseen([*pods, *mine]))
        return sorted(found)

    def settled(self, seconds: float = SETTLE_SECONDS) -> list[Finding]:
        """Checks until there are no findings, or time is up; returns the remaining findings.

        A finding that is not identical in two consecutive checks was caused by a change between the
        reading of the two clusters, such as the state of a crashing pod.
        """
        deadline = time.monotonic() + seconds
        found = set(self.findings())
        while found:
            time.sleep(LOOK_EVERY)
            before, found = found, set(self.findings())
            lasting = before & found
            if not lasting or time.monotonic() >= deadline:
                return sorted(lasting)
        return []

    def counts(self) -> str:
        """Numbers of observed objects, for messages."""
        with self._lock:
            seen = {**self._history.counts(), **self._volumes.counts()}
        return ", ".join(f"{count} {what}" for what, count in seen.items())

    @property
    def compares_contents(self) -> bool:
        """Whether the content of a volume was read, and is compared with each later audit's."""
        return self._volumes.counts()["contents of volumes"] > 0

    def _address(self) -> str:
        node = get_one(self._home, "node", self._node)
        found = [a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"]
        return str(found[0])

    def _saw_home(self, pod: Json) -> None:
        with self._lock:
            self._history.saw_home(pod)

    def _saw_remote(self, pod: Json) -> None:
        with self._lock:
            self._history.saw_remote(pod)


def _read(cluster: Cluster, kinds: str = KINDS) -> list[Json]:
    try:
        return get_with_managed_fields(cluster, kinds)
    except ClusterError:
        # A second failure is more than a momentary one.
        return get_with_managed_fields(cluster, kinds)


class _Watch:
    """A `kubectl get pods --watch` that restarts whenever it ends."""

    def __init__(
        self, cluster: Cluster, args: tuple[str, ...], saw: Callable[[Json], None]
    ) -> None:
        self._command = [
            *(str(cluster.kubectl_path), f"--kubeconfig={cluster.kubeconfig}", "get", "pods"),
            *("--all-namespaces", "--watch", "--output-watch-events", "--output=json", *args),
            # As one list: of several chunks, kubectl would print the lists and not their items.
            "--chunk-size=0",
        ]
        self._saw = saw
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name=f"audit-{cluster.name}")

    def start(self) -> None:
        """Starts the watch in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the watch."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as self._process:
                if self._stopping.is_set():
                    self._process.terminate()
                assert self._process.stdout is not None
                for event in events(self._process.stdout):
                    if event["object"]["kind"] == "Pod":
                        self._saw(event["object"])
            self._stopping.wait(0.5)


def events(lines: Iterable[str]) -> Iterator[Json]:
    """The events in kubectl's output, one per line; an incomplete last line is ignored."""
    for line in lines:
        if line.endswith("\n"):
            yield json.loads(line)
