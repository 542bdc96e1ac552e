"""A virtual node's end: removes what is ours from both clusters, after saying what that is.

1. The Node tells which remote it stands for; nothing is touched before the person agreed.
2. The Node is cordoned. With ``drain`` its pods are evicted (`bridge.drain.eviction`).
3. The bridges of the node end: those in home's cluster (`bridge.install.uninstall`), and by
   ``force`` those that run elsewhere (`bridge.election.leave_lock`).
4. Both clusters are looked at again: a bridge that was stopped only now wrote until then, and
   another home of the same identity may have taken the claim (`bridge.remote_claim.claim_removal`).
5. The other pods are deleted at home, so that controllers make them elsewhere at once.
6. The remote pods end with their own grace; then home's pods go, the copies in the remote, the
   namespaces that hold nothing more (`bridge.leave.remote_cleanup`), and last the Leases, the
   certificate, what was installed in home for the bridge, and the Node.

What fails, and what is interrupted at whatever point, leaves the rest in place: leaving again goes
on where it stopped. Every wait ends after ``timeout`` seconds.

A remote that cannot be reached ends it before anything is touched, with what to do. With ``force``
home is cleaned all the same, and what could not be reached or removed is told. With
``keep_workloads`` the remote is only read: what is there stays as it is, labels included
(`bridge.prune.leftovers` finds it by them), and home's side goes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bridge.base.errors import PreflightError
from bridge.certificates.tls_key_pair import CertificateError
from bridge.clusters.connection import as_preflight_errors, connect
from bridge.drain import eviction
from bridge.election import leave_lock
from bridge.install import uninstall
from bridge.install.remote_kubeconfig import temporary_kubeconfig
from bridge.leave import home_inventory, remote_cleanup, summary
from bridge.leave.summary import HomeState, LeaveSettings, RemoteState
from bridge.node import namespace_record, node_object
from bridge.node.lease import LEASE_NAMESPACE
from bridge.remote_claim import claim_removal
from sync.cleanup import inventory
from sync.kube.client import KubeClient
from sync.kube.credentials import KubeconfigRef
from sync.kube.errors import Forbidden, NotFound
from sync.kube.resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
)
from sync.namespaces import ownership
from translators.identity import LABEL_HOME, Identity, has_home_uid, home_id_from_uid
from translators.objects import Object, metadata, name_of, namespace_of, uid_of

Told = Callable[[str], None]


async def leave(
    settings: LeaveSettings, *, report: Told, agree: Callable[[list[str]], bool]
) -> bool:
    """Leaves, if ``agree`` says yes to the lines that tell what will be removed.

    Returns whether it left. Raises PreflightError and KubeError, for the person who asked.
    """
    async with _at_home(settings, report) as home:
        with as_preflight_errors("home"):
            found = await home_inventory.collect(home, settings)
        for line in found.warnings:
            report(line)
        async with _there(settings, found, report) as remote:
            await _check_claim(settings, home, found, remote)
            for line in summary.warning_lines(settings, found, remote):
                report(line)
            if not agree(summary.removal_lines(settings, found, remote)):
                return False
            with as_preflight_errors():
                await _leave(settings, home, found, remote, told=report)
    report(f"node {settings.name} has left")
    return True


# -- what there is -------------------------------------------------------------------------


@asynccontextmanager
async def _at_home(settings: LeaveSettings, told: Told) -> AsyncIterator[KubeClient]:
    """Home's client. Raises PreflightError, with what can be done without home."""
    async with AsyncExitStack() as stack:
        try:
            home = await stack.enter_async_context(connect(settings.home, side="home", notify=told))
        except PreflightError as error:
            raise PreflightError(
                f"{error}; nothing was removed. Where home is gone for ever, `bridge garbage "
                "--kubeconfig REMOTE` lists and removes what is in the remote"
            ) from error
        yield home


@asynccontextmanager
async def _there(
    settings: LeaveSettings, found: HomeState, told: Told
) -> AsyncIterator[RemoteState]:
    """The other side. Raises PreflightError where it cannot be reached, unless ``force`` is set."""
    async with AsyncExitStack() as stack:
        try:
            remote = await _reached(stack, settings, found, told)
        except PreflightError as error:
            if not settings.force:
                raise PreflightError(
                    f"{error}; nothing was removed. Leave again when the remote answers, or "
                    "with --force to clean up home alone"
                ) from error
            remote = RemoteState(failure=str(error))
        yield remote


async def _reached(
    stack: AsyncExitStack, settings: LeaveSettings, found: HomeState, told: Told
) -> RemoteState:
    there = found.installation
    if settings.remote is None and there is not None and there.kubeconfig is not None:
        ref = KubeconfigRef(stack.enter_context(temporary_kubeconfig(there.kubeconfig)))
    else:
        ref = _remote(settings, found.node)
    client = await stack.enter_async_context(connect(ref, side="remote", notify=told))
    with as_preflight_errors("remote"):
        await _check_identity(client, settings.name, found)
        return RemoteState(client, "", await remote_cleanup.collect(client, settings.name, found))


async def _check_claim(
    settings: LeaveSettings, home: KubeClient, found: HomeState, remote: RemoteState
) -> None:
    """Raises PreflightError where another home of this identity uses the remote."""
    if remote.client is None:
        return
    try:
        with as_preflight_errors():
            remote.claim = await claim_removal.require_own_claim(
                home, remote.client, _identity(settings, found)
            )
    except PreflightError:
        remote.claim = None
        if not settings.keep_workloads:
            raise


def _identity(settings: LeaveSettings, found: HomeState) -> Identity:
    return Identity(home_id=found.home_id, home_name=found.home_id[:8], node=settings.name)


def _remote(settings: LeaveSettings, node: Object | None) -> KubeconfigRef:
    if settings.remote is not None:
        return settings.remote
    remembered = metadata(node).get("annotations") or {} if node else {}
    path = remembered.get(node_object.ANNOTATION_KUBECONFIG)
    if not path:
        raise PreflightError(
            f"home: there is no node {settings.name} that tells its remote; name the "
            "remote's kubeconfig with --kubeconfig to remove what is left there"
            if node is None
            else f"home: node {settings.name} does not tell its remote; "
            "name its kubeconfig with --kubeconfig"
        )
    return KubeconfigRef(Path(path), remembered.get(node_object.ANNOTATION_CONTEXT))


async def _check_identity(remote: KubeClient, name: str, found: HomeState) -> None:
    """Raises PreflightError where it is not the cluster that the node stands for."""
    theirs = home_id_from_uid(uid_of(await remote.get(NAMESPACES, "kube-system")))
    node = found.node
    expected = (
        (metadata(node).get("labels") or {}).get(node_object.LABEL_REMOTE) if node else theirs
    )
    if theirs != expected:
        raise PreflightError(
            f"{remote.config.server} is not the cluster that node {name} stands for; name "
            "that one with --kubeconfig"
        )


# -- the removal ---------------------------------------------------------------------------


async def _leave(
    settings: LeaveSettings, home: KubeClient, found: HomeState, remote: RemoteState, *, told: Told
) -> None:
    if found.node is not None:
        # The question may have stood for long: with its UID, the patch meets no other Node.
        cordon: Object = {"metadata": {"uid": uid_of(found.node)}, "spec": {"unschedulable": True}}
        await home.patch(NODES, name_of(found.node), cordon)
    if settings.drain:
        await _drain(settings, home, found, remote, told=told)
    if found.installation is not None:
        await uninstall.stop(home, found.installation, report=told)
        if not settings.force and (
            served := await home_inventory.find_serving_bridge(home, settings.name, None)
        ):
            raise PreflightError(
                f"home: another bridge serves node {settings.name}: {served}; stop it with "
                "Ctrl-C and leave again, or leave with --force"
            )
    async with leave_lock.hold_lease_for_leave(home, settings.name, notify=told):
        # No bridge writes any more: what came since the question is part of what is removed.
        await home_inventory.refresh(home, settings, found)
        if not remote.failure:
            await _check_claim(settings, home, found, remote)
        if not settings.keep_workloads:
            await _end_there(settings, home, found, remote, told=told)
        await _remove_record(settings, home, found, remote, told=told)
        await _remove_claim(settings, found, remote, told=told)
        for pod in found.pods:
            await _delete_pod(home, pod, grace_seconds=0)
        await _remove_from_home(settings, home, found, told=told)
    if remote.failure:
        for line in summary.leftover_lines(settings, found, remote):
            told(line)


async def _drain(
    settings: LeaveSettings, home: KubeClient, found: HomeState, remote: RemoteState, *, told: Told
) -> None:
    """Evicts the pods. Raises PreflightError where a bridge is to be stopped before the rest."""
    served = await home_inventory.find_serving_bridge(home, settings.name, found.lease)
    # Both may have changed while the question stood.
    found.pods = await home_inventory.list_pods(home, settings.name)
    if remote.client is not None and not settings.keep_workloads:
        remote.inventory = await remote_cleanup.collect(remote.client, settings.name, found)

    async def end(pod: Object) -> None:
        if remote.client is not None:
            its = [it for it in remote.inventory.pods if has_home_uid(it, uid_of(pod))]
            await inventory.delete_pods(remote.client, its, waiting=lambda _: None)
        await _delete_pod(home, pod, grace_seconds=0)

    async with eviction.renew_lease(home, None if served else found.lease):
        await eviction.evict_pods(
            home,
            eviction.plan_drain(found.pods, eviction.EVICT_ALL).evict,
            end_pod=None if served else end,
            timeout=settings.timeout,
            report=told,
        )
    try:
        lease: Object | None = await home.get(LEASES, settings.name, namespace=LEASE_NAMESPACE)
    except NotFound:
        lease = None
    if settings.force or found.installation is not None:
        return
    if await home_inventory.find_serving_bridge(home, settings.name, lease):
        raise PreflightError(
            f"home: node {settings.name} is drained and cordoned, and a bridge still serves "
            "it; stop it with Ctrl-C and leave again"
        )


async def _end_there(
    settings: LeaveSettings, home: KubeClient, found: HomeState, remote: RemoteState, *, told: Told
) -> None:
    """Ends the pods on both sides, and removes what is ours in the remote. With ``force`` what
    fails is noted in ``remote``, and the rest goes on."""
    for pod in found.pods:
        await _delete_pod(home, pod)
    if remote.client is None:
        return
    try:
        with as_preflight_errors("remote"):
            await remote_cleanup.remove(
                remote.client, settings, found, remote.inventory, report=told
            )
    except PreflightError as error:
        if not settings.force:
            raise
        remote.failure = str(error)


async def _remove_record(
    settings: LeaveSettings, home: KubeClient, found: HomeState, remote: RemoteState, *, told: Told
) -> None:
    """Removes the record of the namespaces that the bridge created, but for those in which it found
    something of others: the next join is to know them. Of a remote that was not cleaned up nothing
    stays at home."""
    staying: list[str] = []
    cleaned = remote.client is not None and not remote.failure and not settings.keep_workloads
    own = (
        await namespace_record.recorded_namespaces(home, settings.name) if cleaned else frozenset()
    )
    if own and remote.client is not None:
        labels = f"{LABEL_HOME}={found.home_id}"
        staying = ownership.still_existing(
            own, (await remote.client.list(NAMESPACES, labels=labels)).items
        )
    try:
        await namespace_record.remove_record(home, settings.name, staying)
    except Forbidden:
        told(
            f"home: Lease {LEASE_NAMESPACE}/{namespace_record.NAME} keeps what node "
            f"{settings.name} recorded: the credential may not change it"
        )


async def _remove_claim(
    settings: LeaveSettings, found: HomeState, remote: RemoteState, *, told: Told
) -> None:
    if remote.client is None or remote.claim is None or remote.failure:
        return
    try:
        with as_preflight_errors("remote"):
            identity = _identity(settings, found)
            await claim_removal.remove_claim(remote.client, identity, remote.claim, notify=told)
    except PreflightError as error:
        if not settings.force:
            raise
        remote.failure = str(error)


async def _remove_from_home(
    settings: LeaveSettings, home: KubeClient, found: HomeState, *, told: Told
) -> None:
    """The Node last: while it is there, leaving again finds the rest."""
    for request in found.certificate_requests:
        try:
            await home.delete(CERTIFICATE_SIGNING_REQUESTS, name_of(request), uid=uid_of(request))
        except Forbidden:
            told(
                f"home: certificate signing request {name_of(request)} stays: the credential "
                "may not delete it; home removes it by itself within a day"
            )
    # Once more: a bridge that was stopped meanwhile has taken back its own, or made others.
    for slice_ in await home_inventory.list_relay_slices(home, settings.name, found.home_id):
        try:
            await home.delete(
                ENDPOINT_SLICES, name_of(slice_), namespace=namespace_of(slice_), uid=uid_of(slice_)
            )
        except Forbidden:
            told(
                f"home: EndpointSlice {namespace_of(slice_)}/{name_of(slice_)} stays: the "
                "credential may not delete it; it leads to nobody any more: delete it with "
                "kubectl"
            )
    if found.lease is not None:
        await home.delete(LEASES, settings.name, namespace=LEASE_NAMESPACE, uid=uid_of(found.lease))
    if found.certificate_store is not None:
        try:
            found.certificate_store.remove()
        except CertificateError as error:
            told(f"here: {error}")
    if found.relay_cidr:
        _remove_range(found.relay_cidr, told=told)
    if found.installation is not None:
        await uninstall.remove(home, found.installation, report=told)
    if found.node is not None:
        await home.delete(NODES, settings.name, uid=uid_of(found.node))
        # What a DaemonSet made for the node meanwhile.
        for pod in await home_inventory.list_pods(home, settings.name):
            await _delete_pod(home, pod, grace_seconds=0)


def _remove_range(left: str, *, told: Told) -> None:
    from bridge.relay.forward import local_route

    try:
        local_route.remove_stale(left)
    except local_route.LocalRouteError as error:
        told(f"here: {error}; `ip route del local {left} dev lo` removes it")


async def _delete_pod(home: KubeClient, pod: Object, *, grace_seconds: int | None = None) -> None:
    await home.delete(
        PODS,
        name_of(pod),
        namespace=namespace_of(pod),
        uid=uid_of(pod),
        grace_seconds=grace_seconds,
    )
