"""Approves the bridge's own CertificateSigningRequests, where a person or ``--yes`` wants it.

`Approver.approve` decides once in the life of the process: with ``--yes``, or after a yes to one
question on the terminal, it approves this request and the later ones for the same node. Home must
permit it to the bridge's credential: ``update certificatesigningrequests/approval``, and ``approve
signers`` of the signer, as API servers require (plugin/pkg/admission/certificates/approval).
Bridges that run unattended have no such permission, and the Roles of `bridge rbac` do not grant it.

Directly before the approval, the object is read and compared with what this process requested, and
the update names the object's UID and resource version: a user who replaces the request cannot have
the replacement approved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bridge.certificates.signing_request import (
    CertificateKind,
    conditions_of,
    key_fingerprint,
    requests_the_same,
)
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    Object,
)
from sync.kube.client import KubeClient
from translators.object_accessors import name_of

#: Asks a person; True is yes.
Ask = Callable[[str], Awaitable[bool]]

#: The reason in the condition of an approved request.
REASON = "BridgeJoinApproves"
#: Timeout in seconds of an access review.
REVIEW_SECONDS = 6.0

log = logging.getLogger(__name__)


class NotOwnRequestError(Exception):
    """The object at home is not the request that this process created."""


@dataclass(slots=True)
class Approver:
    """Approves the requests of one join."""

    assume_yes: bool = False
    """``--yes``."""
    ask: Ask | None = None
    """None if there is no terminal."""

    async def approve(
        self, home: KubeClient, kind: CertificateKind, request: Object, summary: str
    ) -> str:
        """Approves the request; returns "", or why a person has to do it.

        ``summary`` describes the request for the question. Raises KubeError and NotOwnRequestError.
        """
        if not self.assume_yes and self.ask is None:
            return "no terminal to ask on, and no --yes"
        if not await _may_approve(home, kind):
            return "the credential may not approve it"
        if not self.assume_yes and self.ask is not None:
            ask, self.ask = self.ask, None  # one question in the life of the process
            fingerprint = f"SHA-256 of its public key {key_fingerprint(request)}"
            self.assume_yes = await ask(
                f"Home has to approve this bridge's own request for {kind.title} ({summary}, "
                f"signer {kind.signer}, {fingerprint}). Approve it now?"
            )
            if not self.assume_yes:
                return "not approved here"
        await _approve(home, request)
        return ""


async def _may_approve(home: KubeClient, kind: CertificateKind) -> bool:
    approval = {
        "group": CERTIFICATE_SIGNING_REQUESTS.group,
        "resource": CERTIFICATE_SIGNING_REQUESTS.plural,
        "subresource": "approval",
        "verb": "update",
    }
    domain = kind.signer.partition("/")[0]
    signers = [
        {
            "group": CERTIFICATE_SIGNING_REQUESTS.group,
            "resource": "signers",
            "verb": "approve",
            "name": name,
        }
        for name in (kind.signer, f"{domain}/*")
    ]
    updates, *approves = await asyncio.gather(
        *(_is_allowed(home, attributes) for attributes in (approval, *signers))
    )
    return updates and any(approves)


async def _is_allowed(home: KubeClient, attributes: Object) -> bool:
    reviews = SELF_SUBJECT_ACCESS_REVIEWS
    body = reviews.manifest({}, spec={"resourceAttributes": attributes})
    try:
        answer = await home.request("POST", reviews.path(), body=body, timeout=REVIEW_SECONDS)
    except KubeError as error:
        log.debug("home: cannot review the permission to approve: %s", error)
        return False
    return bool((answer.get("status") or {}).get("allowed"))


async def _approve(home: KubeClient, request: Object) -> None:
    name = name_of(request)
    current = await home.get(CERTIFICATE_SIGNING_REQUESTS, name)
    if not requests_the_same(request, current):
        raise NotOwnRequestError(
            f"certificate signing request {name} is not the one that this bridge created; it was "
            "not approved"
        )
    if conditions_of(current):
        return  # an administrator has decided it meanwhile
    condition = {
        "type": "Approved",
        "status": "True",
        "reason": REASON,
        "message": "approved by the operator of bridge join, which created this request",
    }
    current["status"] = {**(current.get("status") or {}), "conditions": [condition]}
    path = CERTIFICATE_SIGNING_REQUESTS.path(name, subresource="approval")
    await home.request("PUT", path, body=current, subject=name, decode=False)
