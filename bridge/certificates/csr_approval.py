"""Approves the bridge's own CertificateSigningRequests, where a person or ``--yes`` wants it.

With ``--yes``, or after a yes to one question on the terminal, `Approver.approve` approves a
request and the later ones of the same join. Home must permit it to the credential of the join: an
administrator's does, and the Roles of `bridge rbac` do not.

Directly before the approval, the object is read and compared with what this process requested, and
the update names the object's UID and resource version: a user who replaces the request cannot have
the replacement approved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bridge.base.consent import Consent
from bridge.certificates.certificate_kinds import CertificateKind
from bridge.certificates.signing_outcome import conditions_of
from bridge.certificates.signing_request import key_fingerprint, requests_the_same
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, Object
from sync.kube.client import KubeClient
from translators.object_accessors import name_of

#: Whether the credential may approve requests for a signer. Raises KubeError.
MayApprove = Callable[[KubeClient, str], Awaitable[bool]]

#: The reason in the condition of an approved request.
REASON = "BridgeJoinApproves"


class NotOwnRequestError(Exception):
    """The object at home is not the request that this process created."""


class Approver:
    """Approves the requests of one join with the credential of ``home``."""

    def __init__(self, home: KubeClient, may_approve: MayApprove, consent: Consent) -> None:
        self._home = home
        self._may_approve = may_approve
        self._consent = consent

    async def approve(self, kind: CertificateKind, request: Object, summary: str) -> str | None:
        """Approves the request and returns None, or returns why another person has to: "" if there
        is no person to ask.

        ``summary`` describes the request for the question. Raises KubeError and NotOwnRequestError.
        """
        if not self._consent.is_possible:
            return ""
        if not await self._may_approve(self._home, kind.signer):
            return "this credential may not approve it"
        fingerprint = key_fingerprint(request)
        question = (
            f"Home has to approve the bridge's own request for {kind.title} ({summary}, signer "
            f"{kind.signer}, SHA-256 of its public key {fingerprint}). Approve it now?"
        )
        if not await self._consent.obtain(question):
            return "not approved here"
        await _approve(self._home, request)
        return None


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
        "message": "approved by the operator of bridge join or bridge install",
    }
    current["status"] = {**(current.get("status") or {}), "conditions": [condition]}
    path = CERTIFICATE_SIGNING_REQUESTS.path(name, subresource="approval")
    await home.request("PUT", path, body=current, subject=name, decode=False)
