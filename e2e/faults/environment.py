"""The environment of faults: two clusters, the bridge between them, and a random load.

With clusters in namespaces of this machine, the bridge runs in its own namespace (`BridgeNetwork`),
so that a fault between it and an API server affects neither the load nor the audit. Some faults
need another join (`JoinMode`), which `join` performs. `recover` ends every fault, so that no trial
affects the next.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.bridge_process import Bridge
from e2e.clusters.cluster import API_SERVER, Backend, Cluster, Settings
from e2e.clusters.errors import ClusterError
from e2e.clusters.native_node import KUBELET
from e2e.clusters.run_command import run
from e2e.conftest import Bridged, joined, usual_options
from e2e.faults.bridge_network_namespace import BridgeNetwork
from e2e.faults.clock import Clock
from e2e.faults.fault_model import JoinMode
from e2e.faults.faulty_proxy import Proxy
from e2e.faults.service_account_tokens import Credential
from e2e.faults.untouched_pods import UntouchedPods
from e2e.kubectl import get_one, wait_for
from e2e.provisioned_storage import ProvisionedStorage, load_volumes
from e2e.random_load import RandomLoad
from e2e.revisions import with_linger
from e2e.storage_classes import hostpath

#: Seconds until the node is Ready and API servers answer after the last fault.
READY_SECONDS = 90.0
#: Seconds between two steps of the load.
_PACE = (0.1, 0.6)
#: Seconds until the bridge deletes an empty namespace: audits wait for it.
LINGER = 5.0
#: Bytes of the small disk.
_DISK = "384k"


class BridgeEnded(Exception):
    """The bridge ended unexpectedly."""


@dataclass
class Stage:
    """The environment, as described in the module. ``random`` makes the faults' random choices."""

    bridged: Bridged
    folder: Path
    random: random.Random
    load: RandomLoad
    untouched_pods: UntouchedPods
    network: BridgeNetwork | None
    home_proxy: Proxy
    remote_proxy: Proxy
    credential: Credential
    clock: Clock
    how: JoinMode = JoinMode.DIRECT

    @property
    def bridge(self) -> Bridge:
        """The bridge."""
        return self.bridged.bridge

    @property
    def home(self) -> Cluster:
        """The cluster of the users."""
        return self.bridged.home

    @property
    def remote(self) -> Cluster:
        """The cluster that runs the pods."""
        return self.bridged.remote

    @property
    def packets(self) -> BridgeNetwork:
        """The bridge's network, for faults with ``packets``."""
        assert self.network is not None, "the bridge is not in a network namespace"
        return self.network

    @property
    def disk(self) -> Path:
        """The small disk."""
        return self.folder / "disk"

    # -- the bridge --------------------------------------------------------------------------

    def join(self, how: JoinMode) -> None:
        """Joins the bridge in this mode unless it is already joined so."""
        if how is self.how and self.runs():
            return
        self.bridge.stop()
        self._arrange(how)
        self.how = how
        self.bridge.start()

    def _arrange(self, how: JoinMode) -> None:
        bridge, home, remote = self.bridge, self.home, self.remote
        if how is JoinMode.PROXY:
            home = replace(home, kubeconfig=self.home_proxy.kubeconfig)
            remote = replace(remote, kubeconfig=self.remote_proxy.kubeconfig)
        elif how is JoinMode.TOKEN:
            remote = replace(remote, kubeconfig=self.credential.kubeconfig)
        bridge.home, bridge.remote = home, remote
        bridge.env = self.clock.environment if how is JoinMode.CLOCK else {}
        bridge.args = _options(self.bridged.node, self.home)
        bridge.log = self.folder / "bridge.log"
        if how is JoinMode.SMALL_DISK:
            if not self.disk.is_mount():
                self.disk.mkdir(exist_ok=True)
                size = f"size={_DISK},mode=0700"
                run(["mount", "-t", "tmpfs", "-o", size, "faults", self.disk])
            bridge.log = self.disk / "bridge.log"
            bridge.log.unlink(missing_ok=True)
            bridge.env = {"TMPDIR": str(self.disk), "HOME": str(self.disk)}
            own = ("--serving-certificate", "csr", "--cert-dir", str(self.disk / "certificates"))
            bridge.args = (*bridge.args, *own)

    def runs(self) -> bool:
        """Whether the bridge runs."""
        return self.bridge.process is not None and self.bridge.process.poll() is None

    def require_bridge(self) -> None:
        """Raises BridgeEnded, with the end of its log, if the bridge does not run."""
        process = self.bridge.process
        if process is not None and process.poll() is not None:
            output = "\n".join(self.bridge.log.read_text(errors="replace").splitlines()[-15:])
            raise BridgeEnded(f"the bridge ended by itself with {process.returncode}:\n{output}")

    # -- load --------------------------------------------------------------------------------

    def work(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Runs the load for so long, or until the condition is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            self.load.step()
            time.sleep(min(self.random.uniform(*_PACE), max(0.0, end - time.monotonic())))

    def sleep(self, seconds: float) -> None:
        """Pauses the load."""
        time.sleep(seconds)

    def is_ready(self) -> bool:
        """Whether the node is Ready at home."""
        try:
            node = get_one(self.home, "node", self.bridged.node)
        except ClusterError:
            return False
        conditions = node["status"]["conditions"]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def wait_until_ready(self) -> None:
        """Waits until both API servers answer, the bridge runs, and the node is Ready."""
        for cluster in (self.home, self.remote):
            wait_for(
                lambda cluster=cluster: _answers(cluster),  # type: ignore[misc]
                f"{cluster.name}'s API server answers",
                seconds=READY_SECONDS,
            )
        self.require_bridge()
        wait_for(self.is_ready, "the node is Ready", seconds=READY_SECONDS)
        self.require_bridge()

    def recover(self) -> None:
        """Ends every fault, and starts the bridge unless it runs."""
        if self.network is not None:
            self.network.heal()
        for proxy in (self.home_proxy, self.remote_proxy):
            proxy.rules = ()
            proxy.publish()
        self.clock.put(0.0)
        for cluster in (self.home, self.remote):
            if cluster.backend is Backend.NATIVE:
                cluster.start_component(API_SERVER)
                cluster.start_component(KUBELET)
        if not self.runs():
            for cluster in (self.home, self.remote):
                wait_for(
                    lambda cluster=cluster: _answers(cluster),  # type: ignore[misc]
                    f"{cluster.name}'s API server answers",
                    seconds=READY_SECONDS,
                )
            self.bridge.kill()
            self.bridge.start()

    def keep_log(self) -> None:
        """Saves the bridge's log from the small disk."""
        if self.disk.is_mount() and (self.disk / "bridge.log").exists():
            shutil.copy(self.disk / "bridge.log", self.folder / "small-disk.log")


def _answers(cluster: Cluster) -> bool:
    try:
        return cluster.kubectl("get", "--raw", "/readyz", check=False, timeout=10).returncode == 0
    except ClusterError:
        return False


def _options(node: str, home: Cluster) -> tuple[str, ...]:
    """Pods use home's API server directly, whatever the bridge's own kubeconfig has."""
    api = ("--home-api-address", f"{home.node_ip}:6443")
    return (*usual_options(node), *api)


@contextmanager
def set_up(
    home: Cluster,
    remote: Cluster,
    settings: Settings,
    *,
    folder: Path,
    seed: int,
    say: Callable[[str], None],
) -> Iterator[Stage]:
    """An environment on these clusters. ``folder`` keeps logs; ``settings`` are the clusters'."""
    source = random.Random(seed)
    node = f"faults-{os.urandom(3).hex()}"
    with ExitStack() as stack:
        native = home.backend is Backend.NATIVE and remote.backend is Backend.NATIVE
        line = stack.enter_context(BridgeNetwork.of(settings, home)) if native else None
        bridge = Bridge(home, remote, folder / "bridge.log", _options(node, home))
        bridge.through = line.through if line else ()
        bridge.use(with_linger(LINGER))
        credential = stack.enter_context(Credential.of(remote, node, folder / "token.yaml"))
        home_proxy, remote_proxy = [
            stack.enter_context(
                Proxy(
                    cluster.kubeconfig,
                    folder / f"proxy-{cluster.name}",
                    address=cluster.host_address,
                    seed=source.getrandbits(32),
                )
            )
            for cluster in (home, remote)
        ]
        bridged = stack.enter_context(joined(bridge, node, home=home, remote=remote))
        witnesses = UntouchedPods(bridged)
        stage = Stage(
            bridged,
            folder,
            source,
            RandomLoad(bridged, source.getrandbits(32), say),
            witnesses,
            line,
            home_proxy,
            remote_proxy,
            credential,
            Clock(folder / "clock"),
        )
        stack.callback(_unmount, stage.disk)
        # An active fault at the time of an interruption would hinder the clean-up.
        stack.callback(_recover_and_stop, stage)
        stack.enter_context(hostpath(remote, default=True))
        storage = ProvisionedStorage(bridged)
        stack.enter_context(load_volumes(storage, stage.load))
        stack.callback(_delete_volumes, stage, storage)
        stage.load.set_up()
        witnesses.make()
        yield stage


def _recover_and_stop(stage: Stage) -> None:
    with contextlib.suppress(Exception):
        stage.recover()
        stage.keep_log()
        stage.bridge.stop()


def _delete_volumes(stage: Stage, storage: ProvisionedStorage) -> None:
    """Deletes all volumes, retained ones too; the bridge has to run for it."""
    stage.recover()
    storage.clear()


def _unmount(disk: Path) -> None:
    if disk.is_mount():
        run(["umount", "--lazy", disk])
