"""Removes a virtual node and the objects that its bridge created, after a confirmation.

1. The Node identifies its remote cluster; nothing is changed before the user confirms.
2. The Node is cordoned. With ``drain`` its pods are evicted (`bridge.leave.eviction`).
3. The node's bridges are stopped: those installed in home's cluster (`bridge.install.uninstall`),
   and with ``force`` those that run elsewhere (`bridge.election.leave_lock`).
4. Both clusters are inspected again: a bridge that was stopped only now wrote until then, and
   another home of the same identity may hold the claim (`bridge.remote_claim.claim_removal`).
5. The other pods are deleted at home, so that controllers re-create them elsewhere at once.
6. The remote pods terminate with their own grace period. Then home's pods, the remote's copies and
   the remote's empty namespaces are deleted, and last the Leases, the certificate, the installation
   and the Node.

An error or interruption at any point leaves the rest in place, and leaving again continues. Every
wait ends after ``timeout`` seconds.

Volumes of home with data in the remote are an error before anything is changed, unless another
virtual node serves that remote. With ``keep_volumes`` they stay as they are. No option deletes
data: home's PersistentVolumes are not touched, and of the remote's PVCs only those that the bridge
was still provisioning, which no pod has mounted, are deleted (`bridge.leave.unfinished_claims`).

An unreachable remote is an error before anything is changed. With ``force`` home is cleaned up
anyway, and what is left in the remote is reported. With ``keep_workloads`` the remote is only read:
its objects keep their labels, by which `bridge.prune.remote_leftovers` finds them, and home is
cleaned up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.clusters.connection import Notify, as_preflight_errors, connect
from bridge.election import leave_lock
from bridge.install import uninstall
from bridge.install.remote_kubeconfig_lookup import check_remote_of_node, kubeconfig_in_memory
from bridge.leave import eviction, home_cleanup, home_inventory, leave_summary, remote_cleanup
from bridge.leave.leave_summary import HomeState, LeaveSettings, RemoteState
from bridge.node import node_object
from bridge.remote_claim import claim_removal
from bridge.remote_claim.claim_place import select_claim_places
from sync.cleanup import remote_inventory
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, metadata, name_of, uid_of
from translators.ownership_labels import has_home_uid


async def leave(
    settings: LeaveSettings, *, notify: Notify, confirm: Callable[[list[str]], bool]
) -> bool:
    """Removes the node if ``confirm`` accepts the lines that describe what will be removed.

    Returns whether it was removed. Raises PreflightError and KubeError.
    """
    async with AsyncExitStack() as stack:
        home = await _connect_home(stack, settings, notify)
        with as_preflight_errors("home"):
            home_state = await home_inventory.collect(home, settings)
        for line in home_state.warnings:
            notify(Caveat(line))
        if home_state.volumes and not settings.keep_volumes:
            raise PreflightError(leave_summary.volumes_error(settings.name, home_state.volumes))
        remote_state = await _connect_remote(stack, settings, home, home_state, notify)
        await _check_claim(settings, home, home_state, remote_state)
        for line in leave_summary.warning_lines(settings, home_state, remote_state):
            notify(Caveat(line))
        if not confirm(leave_summary.removal_lines(settings, home_state, remote_state)):
            return False
        with as_preflight_errors():
            await _Removal(settings, home, home_state, remote_state, notify).run()
    notify(f"node {settings.name} has left")
    return True


# -- inspection ----------------------------------------------------------------------------


async def _connect_home(
    stack: AsyncExitStack, settings: LeaveSettings, notify: Notify
) -> KubeClient:
    """Home's client. The PreflightError that it raises names what is possible without home."""
    try:
        return await stack.enter_async_context(connect(settings.home, side="home", notify=notify))
    except PreflightError as error:
        raise PreflightError(
            f"{error}; nothing was removed. If home is permanently gone, `bridge prune "
            "--kubeconfig REMOTE` lists and removes what is in the remote"
        ) from error


async def _connect_remote(
    stack: AsyncExitStack,
    settings: LeaveSettings,
    home: KubeClient,
    home_state: HomeState,
    notify: Notify,
) -> RemoteState:
    """The remote's state. Raises PreflightError if it cannot be read, unless ``force`` is set."""
    try:
        return await _read_remote(stack, settings, home, home_state, notify)
    except PreflightError as error:
        if not settings.force:
            raise PreflightError(
                f"{error}; nothing was removed. Leave again when the remote answers, or with "
                "--force to clean up home alone"
            ) from error
        return RemoteState(failure=str(error))


async def _read_remote(
    stack: AsyncExitStack,
    settings: LeaveSettings,
    home: KubeClient,
    home_state: HomeState,
    notify: Notify,
) -> RemoteState:
    installation = home_state.installation
    stored = installation.stored if installation is not None else None
    if settings.remote is None and stored is not None:
        ref = stack.enter_context(kubeconfig_in_memory(stored))
    else:
        ref = _remote_kubeconfig(settings, home_state.node)
    client = await stack.enter_async_context(connect(ref, side="remote", notify=notify))
    with as_preflight_errors("remote"):
        if home_state.node is not None:
            await check_remote_of_node(client, home_state.node)
        found = await remote_cleanup.collect(home, client, home_state)
        return RemoteState(client, inventory=found)


def _remote_kubeconfig(settings: LeaveSettings, node: Object | None) -> KubeconfigRef:
    """The kubeconfig from the options, or the one that the Node records."""
    if settings.remote is not None:
        return settings.remote
    annotations = metadata(node).get("annotations") or {} if node else {}
    path = annotations.get(node_object.ANNOTATION_KUBECONFIG)
    if path:
        return KubeconfigRef(Path(path), annotations.get(node_object.ANNOTATION_CONTEXT))
    if node is None:
        raise PreflightError(
            f"home: there is no node {settings.name} that records its remote; name the remote's "
            "kubeconfig with --kubeconfig to remove what is left there"
        )
    raise PreflightError(
        f"home: node {settings.name} does not record its remote; name its kubeconfig with "
        "--kubeconfig"
    )


async def _check_claim(
    settings: LeaveSettings, home: KubeClient, home_state: HomeState, remote_state: RemoteState
) -> None:
    """Raises PreflightError if another home of the same identity uses the remote."""
    if remote_state.client is None:
        return
    try:
        with as_preflight_errors():
            places = await select_claim_places(remote_state.client, home_state.remote_namespaces)
            remote_state.claim = await claim_removal.require_own_claim(
                home, remote_state.client, home_state.identity, places
            )
    except PreflightError:
        remote_state.claim = None
        if not settings.keep_workloads:
            raise


# -- removal -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Removal:
    """The steps after the confirmation."""

    settings: LeaveSettings
    home: KubeClient
    home_state: HomeState
    remote_state: RemoteState
    notify: Notify

    async def run(self) -> None:
        settings, home, notify = self.settings, self.home, self.notify
        home_state, remote_state = self.home_state, self.remote_state
        await self._cordon()
        if settings.drain:
            await self._drain()
        await self._stop_installed_bridges()
        async with leave_lock.hold_lease_for_leave(home, settings.name, notify=notify):
            # No bridge writes any more: the removal includes what was created since the question.
            await home_inventory.refresh(home, settings, home_state)
            if not remote_state.failure:
                await _check_claim(settings, home, home_state, remote_state)
            if not settings.keep_workloads:
                await self._remove_workloads()
            await home_cleanup.remove_namespace_record(
                settings, home, home_state, remote_state, notify=notify
            )
            await self._remove_claim()
            for pod in home_state.pods:
                await home_cleanup.delete_pod(home, pod, grace_seconds=0)
            await home_cleanup.remove(settings, home, home_state, notify=notify)
        home_cleanup.forget_renewed_token(home_state, remote_state, notify=notify)
        await uninstall.remove_namespaces(home, home_state.installation, notify=notify)
        if remote_state.failure:
            for line in leave_summary.leftover_lines(home_state, remote_state):
                notify(Caveat(line))

    async def _cordon(self) -> None:
        node = self.home_state.node
        if node is not None:
            # The UID keeps the patch from a Node that was re-created during the confirmation.
            patch: Object = {"metadata": {"uid": uid_of(node)}, "spec": {"unschedulable": True}}
            await self.home.patch(NODES, name_of(node), patch)

    async def _drain(self) -> None:
        """Evicts the pods. Raises PreflightError if a bridge must be stopped before the rest."""
        settings, home, home_state = self.settings, self.home, self.home_state
        remote_state = self.remote_state
        is_served = await home_inventory.find_serving_bridge(home, settings.name, home_state.lease)
        # Both may have changed during the confirmation.
        home_state.pods = await home_inventory.list_pods(home, settings.name)
        if remote_state.client is not None and not settings.keep_workloads:
            remote_state.inventory = await remote_cleanup.collect(
                home, remote_state.client, home_state
            )
        async with eviction.renew_lease(home, None if is_served else home_state.lease):
            await eviction.evict_pods(
                home,
                eviction.evictable_pods(home_state.pods),
                end_pod=None if is_served else self._terminate_pod,
                timeout=settings.timeout,
                notify=self.notify,
            )
        if settings.force or home_state.installation is not None:
            return
        lease = await home_inventory.get_lease(home, settings.name)
        if await home_inventory.find_serving_bridge(home, settings.name, lease):
            raise PreflightError(
                f"home: node {settings.name} is drained and cordoned, and a bridge still serves "
                "it; stop it with Ctrl-C and leave again"
            )

    async def _terminate_pod(self, pod: Object) -> None:
        """Deletes the remote pod with its grace period, then home's pod, as a bridge would."""
        if self.remote_state.client is not None:
            pods = self.remote_state.inventory.pods
            pods = [it for it in pods if has_home_uid(it, uid_of(pod))]
            await remote_inventory.delete_pods(
                self.remote_state.client, pods, waiting=lambda _: None
            )
        await home_cleanup.delete_pod(self.home, pod, grace_seconds=0)

    async def _stop_installed_bridges(self) -> None:
        """Raises PreflightError if another bridge serves the node afterwards, without ``force``."""
        settings, installation = self.settings, self.home_state.installation
        if installation is None:
            return
        await uninstall.stop(self.home, installation, notify=self.notify)
        if not settings.force and (
            evidence := await home_inventory.find_serving_bridge(self.home, settings.name, None)
        ):
            raise PreflightError(
                f"home: another bridge serves node {settings.name}: {evidence}; stop it with "
                "Ctrl-C and leave again, or leave with --force"
            )

    async def _remove_workloads(self) -> None:
        """Terminates the pods on both sides, and deletes what the node has in the remote. With
        ``force`` an error of the remote is recorded, and the removal continues."""
        for pod in self.home_state.pods:
            await home_cleanup.delete_pod(self.home, pod)
        client = self.remote_state.client
        if client is not None:
            with self._recording_failures(), as_preflight_errors("remote"):
                await remote_cleanup.remove(
                    self.home,
                    client,
                    self.settings,
                    self.home_state,
                    self.remote_state,
                    notify=self.notify,
                )

    async def _remove_claim(self) -> None:
        client, claim = self.remote_state.client, self.remote_state.claim
        if client is not None and claim is not None and not self.remote_state.failure:
            with self._recording_failures(), as_preflight_errors("remote"):
                places = await select_claim_places(client, self.home_state.remote_namespaces)
                await claim_removal.remove_claim(
                    client, self.home_state.identity, claim, places, notify=self.notify
                )

    @contextmanager
    def _recording_failures(self) -> Iterator[None]:
        """With ``force`` records a PreflightError in the remote's state instead of raising it."""
        try:
            yield
        except PreflightError as error:
            if not self.settings.force:
                raise
            self.remote_state.failure = str(error)
