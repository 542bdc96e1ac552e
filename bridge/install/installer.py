"""Applies an installation to home, and waits until it serves its node.

Where the bridge shall be the node at home, the administrator's consent is asked for first, and the
request of its pods is approved while they start (`bridge.install.identity_approval`). Home may have
no signer, which only shows then: an installation with ``--home-identity auto`` is then applied
again, with the permissions of an account that acts in place of the node.

Bridges that already run keep their permissions until the new ones have replaced them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.base.command_error import PreflightError
from bridge.base.consent import Consent
from bridge.base.progress_lines import Caveat
from bridge.clusters.connection import Notify, as_preflight_errors
from bridge.install import identity_approval, installation_manifests, rollout, server_side_apply
from bridge.install.identity_approval import IdentityApproval, NotSignedError
from bridge.install.installation import Installation
from bridge.node.join_record import recorded_network
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient


@dataclass(frozen=True, slots=True)
class InstallOrder:
    """One installation to apply."""

    installation: Installation
    kubeconfig: str = field(repr=False)
    """The remote's, self-contained."""
    consent: Consent
    """To approvals at home."""
    dry_run: bool
    wait: bool
    """Whether to wait until the node is Ready."""
    timeout: float
    """Seconds to wait at most."""
    selects_identity: bool
    """Whether to offer ``auto`` the identity of the node."""


async def install(home: KubeClient, order: InstallOrder, *, notify: Notify) -> None:
    """Installs. Raises PreflightError; what was applied stays."""
    with as_preflight_errors("home"):
        wanted = await identity_approval.select_identity(
            home, order.installation, order.consent, asks=order.selects_identity
        )
        try:
            await _install(home, order, wanted, notify)
        except NotSignedError as error:
            if order.installation.home_identity == "node":
                advice = "install with --home-identity service-account"
                raise PreflightError(f"home: {error}; {advice}") from error
            notify(Caveat(f"home: {error}; the bridge acts as its ServiceAccount"))
            await _install(home, order, order.installation, notify)


async def _install(
    home: KubeClient, order: InstallOrder, wanted: Installation, notify: Notify
) -> None:
    first = await identity_approval.keeping_permissions(home, wanted)
    await _apply(home, order, wanted if order.dry_run else first, notify)
    if order.dry_run:
        return
    if order.wait:
        approval = IdentityApproval(home, wanted, order.consent, notify)
        await rollout.wait_until_ready(
            home, wanted, timeout=order.timeout, notify=notify, meanwhile=approval.step
        )
        if first != wanted:
            await _apply(home, order, wanted, notify)
        network = recorded_network(await home.get(NODES, wanted.node))
        if network is not None:
            notify(f"home: {network}")
        notify(f"home: node {wanted.node} is Ready; `bridge uninstall {wanted.node}` removes it")
    elif first != wanted:
        notify(
            Caveat(
                "home: the permissions to act in place of the node stay until the earlier bridges "
                "have been replaced; install again then, to remove them"
            )
        )


async def _apply(
    home: KubeClient, order: InstallOrder, wanted: Installation, notify: Notify
) -> None:
    done = await server_side_apply.apply(
        home,
        installation_manifests.render(wanted, order.kubeconfig),
        node=wanted.node,
        dry_run=order.dry_run,
        notify=notify,
    )
    changed = sum(change != "unchanged" for change, _ in done)
    where = f"{wanted.namespace}/{wanted.name}"
    if order.dry_run:
        notify(f"home: {changed} objects of {where} would change; nothing was changed")
    elif not changed:
        notify(f"home: {where} is up to date")
