"""Makes the bridge of an installation the node at home, with the administrator's consent.

The key stays in the cluster: the installed bridge requests its certificate itself
(`bridge.home_identity`), and `IdentityApproval` approves that request with the administrator's
credential. It approves only a request of the installation's ServiceAccount, which the API server
records, for the client certificate of exactly this node.

`select_identity` decides before anything is applied, because the permissions to grant depend on it.
It asks once. Homes without the Node authorizer, where that identity would permit nothing, are
recognised by an access review.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from bridge.base.consent import Consent
from bridge.certificates.certificate_kinds import CLIENT
from bridge.certificates.csr_approval import Approver, NotOwnRequestError
from bridge.certificates.signing_outcome import (
    Issued,
    conditions_of,
    csr_outcome,
    list_csrs_of_node,
)
from bridge.certificates.signing_request import is_for_node
from bridge.clusters.connection import Notify
from bridge.install.installation import Installation
from bridge.rbac import permissions
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import DEPLOYMENTS, SECRETS, SUBJECT_ACCESS_REVIEWS, Object
from sync.kube.client import KubeClient
from translators.object_accessors import name_of, uid_of

log = logging.getLogger(__name__)

#: Seconds from an approval to a signature: home's signer takes less than one.
SIGNING_SECONDS = 15.0
#: The key of the certificate in the state Secret (`bridge.certificates.secret_store`).
_STORED = "client.pem"
_AS_NODE = "--home-identity=node"


class NotSignedError(Exception):
    """Home has no signer for the certificate of the node's identity."""


async def select_identity(
    home: KubeClient, wanted: Installation, consent: Consent, *, asks: bool
) -> Installation:
    """The installation with the identity to install: with ``auto``, the node if its certificate is
    stored, or if ``asks`` and the administrator consents to approve one. Raises KubeError."""
    if wanted.home_identity != "auto":
        return wanted
    if await _is_stored(home, wanted):
        return replace(wanted, home_identity="node")
    if not (asks and consent.is_possible):
        return wanted
    if not await permissions.may_approve(home, CLIENT.signer):
        return wanted
    if not await _has_node_authorizer(home, wanted.node):
        return wanted
    question = (
        f"The bridge can act at home as node {wanted.node}, with fewer permissions than its "
        "ServiceAccount needs otherwise. Home has to approve the certificate that its pods will "
        f"request (signer {CLIENT.signer}). Approve it once it is requested?"
    )
    return replace(wanted, home_identity="node") if await consent.obtain(question) else wanted


async def keeping_permissions(home: KubeClient, wanted: Installation) -> Installation:
    """The installation to apply first: if bridges run that act in place of the node, they keep
    their permissions until those that replace them are the node. Raises KubeError."""
    if wanted.home_identity != "node":
        return wanted
    existing = await home.find(DEPLOYMENTS, wanted.name, namespace=wanted.namespace)
    if existing is None:
        return wanted
    containers = existing["spec"]["template"]["spec"]["containers"]
    is_node = _AS_NODE in (containers[0].get("args") or ())
    return wanted if is_node else replace(wanted, keeps_permissions=True)


async def _is_stored(home: KubeClient, wanted: Installation) -> bool:
    namespace, name = wanted.state_secret
    try:
        secret = await home.find(SECRETS, name, namespace=namespace)
    except Forbidden:
        return False
    return _STORED in ((secret or {}).get("data") or {})


async def _has_node_authorizer(home: KubeClient, node: str) -> bool:
    """Whether home permits the node's credential what it permits a kubelet's."""
    review = SUBJECT_ACCESS_REVIEWS
    body: Object = {
        "apiVersion": review.api_version,
        "kind": review.kind,
        "spec": {
            "user": f"system:node:{node}",
            "groups": ["system:nodes", "system:authenticated"],
            "resourceAttributes": {"verb": "patch", "resource": "nodes", "name": node},
        },
    }
    try:
        answer = await home.request("POST", review.path(), body=body)
    except Forbidden:
        return False
    return bool((answer.get("status") or {}).get("allowed"))


class IdentityApproval:
    """Approves the request of an installation's bridges while they start."""

    def __init__(
        self, home: KubeClient, installation: Installation, consent: Consent, notify: Notify
    ) -> None:
        self._home = home
        self._installation = installation
        self._notify = notify
        self._is_needed = installation.home_identity == "node" and consent.is_possible
        self._approver = Approver(home, permissions.may_approve, consent)
        self._decided = set[str]()
        """UIDs of the requests that were approved, or are left to another person."""
        self._approved: tuple[str, float] | None = None
        """The request that this command has approved last, and when."""

    async def step(self) -> None:
        """Looks at the requests once. Raises NotSignedError `SIGNING_SECONDS` after an approval
        without an outcome, and KubeError."""
        if not self._is_needed:
            return
        node, user = self._installation.node, self._installation.account.user
        try:
            requests = await list_csrs_of_node(self._home, CLIENT, node)
        except Forbidden:
            self._is_needed = False
            return
        for request in requests:
            if (request.get("spec") or {}).get("username") != user:
                continue
            await self._check_signed(request)
            if uid_of(request) not in self._decided and not conditions_of(request):
                self._decided.add(uid_of(request))
                await self._approve(request)

    async def _approve(self, request: Object) -> None:
        name, node = name_of(request), self._installation.node
        if not is_for_node(CLIENT, request, node):
            log.warning("home: certificate signing request %s is not for node %s", name, node)
            return
        try:
            reason = await self._approver.approve(CLIENT, request, f"node {node}")
        except NotOwnRequestError as error:
            log.warning("home: %s", error)
            return
        if reason is None:
            self._approved = name, asyncio.get_running_loop().time()
            self._notify(f"home: approved certificate signing request {name}")

    async def _check_signed(self, request: Object) -> None:
        if self._approved is None or self._approved[0] != name_of(request):
            return
        if isinstance(csr_outcome(request), Issued):
            self._approved = None
        elif asyncio.get_running_loop().time() - self._approved[1] > SIGNING_SECONDS:
            raise NotSignedError(
                f"home has not signed the approved certificate of node {self._installation.node} "
                f"in {SIGNING_SECONDS:.0f} s"
            )
