"""Approvals of the bridge's own requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bridge.base.consent import NO_CONSENT, Consent
from bridge.certificates.certificate_kinds import SERVING
from bridge.certificates.csr_approval import REASON, Approver, NotOwnRequestError
from bridge.certificates.signing_request import build_csr, generate_key, key_fingerprint
from bridge.rbac import permissions
from sync.kube.api_errors import Conflict
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, Object
from sync.kube.client import KubeClient
from tests.bridge.certificates.running_source import ADDRESS, NODE
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi

SUMMARY = f"node {NODE}, address {ADDRESS}"


@pytest.fixture
async def home(home_api: FakeApi, client_for: ClientFor) -> KubeClient:
    return await client_for(home_api, "home")


@pytest.fixture
def request_at_home(home_api: FakeApi) -> Object:
    """A request that the bridge has created."""
    request = build_csr(SERVING, generate_key(), NODE, [ADDRESS])
    home_api.put(request)
    return request


class Person:
    """Answers questions."""

    def __init__(self, *answers: bool) -> None:
        self._answers = list(answers)
        self.questions: list[str] = []

    async def __call__(self, question: str) -> bool:
        self.questions.append(question)
        return self._answers.pop(0)


def approver(home: KubeClient, consent: Consent) -> Approver:
    return Approver(home, permissions.may_approve, consent)


def conditions(home_api: FakeApi, request: Object) -> list[Object]:
    name = request["metadata"]["name"]
    stored = home_api.get(CERTIFICATE_SIGNING_REQUESTS, name)
    found: list[Object] = (stored.get("status") or {}).get("conditions") or []
    return found


async def test_without_consent_nothing_is_requested(
    home: KubeClient, home_api: FakeApi, request_at_home: Object
) -> None:
    home_api.clear_log()
    assert await approver(home, NO_CONSENT).approve(SERVING, request_at_home, SUMMARY) == ""
    assert not home_api.log


async def test_yes_approves_without_a_question(
    home: KubeClient, home_api: FakeApi, request_at_home: Object
) -> None:
    consent = Consent(assume_yes=True)
    assert await approver(home, consent).approve(SERVING, request_at_home, SUMMARY) is None
    (condition,) = conditions(home_api, request_at_home)
    assert (condition["type"], condition["status"]) == ("Approved", "True")
    assert condition["reason"] == REASON == "BridgeJoinApproves"


async def test_question_names_node_address_signer_and_fingerprint_and_comes_once(
    home: KubeClient, home_api: FakeApi, request_at_home: Object
) -> None:
    person = Person(True)
    its = approver(home, Consent(ask=person))
    assert await its.approve(SERVING, request_at_home, SUMMARY) is None
    (question,) = person.questions
    fingerprint = key_fingerprint(request_at_home)
    for part in (NODE, ADDRESS, "kubernetes.io/kubelet-serving", fingerprint, "Approve it now?"):
        assert part in question
    renewed = build_csr(SERVING, generate_key(), NODE, [ADDRESS])
    home_api.put(renewed)
    assert await its.approve(SERVING, renewed, SUMMARY) is None
    assert conditions(home_api, renewed)
    assert len(person.questions) == 1


async def test_no_is_remembered(
    home: KubeClient, home_api: FakeApi, request_at_home: Object
) -> None:
    its = approver(home, Consent(ask=(person := Person(False))))
    for _ in range(2):
        reason = await its.approve(SERVING, request_at_home, SUMMARY)
        assert reason == "not approved here"
    assert not conditions(home_api, request_at_home)
    assert len(person.questions) == 1


def _only(*allowed: str) -> Callable[[Object], bool]:
    """Permits reviews of other resources, and these ``SUBRESOURCE`` or ``NAME`` of requests."""

    def authorize(spec: Object) -> bool:
        attributes: dict[str, Any] = spec["resourceAttributes"]
        if attributes["resource"] == "signers":
            return attributes["name"] in allowed
        return attributes.get("subresource", "get") in allowed

    return authorize


@pytest.mark.parametrize(
    ("allowed", "approves"),
    [
        (("get", "approval", "kubernetes.io/kubelet-serving"), True),
        (("get", "approval", "kubernetes.io/*"), True),
        (("get", "approval"), False),
        (("get", "kubernetes.io/kubelet-serving"), False),
        (("get", "approval", "kubernetes.io/kube-apiserver-client-kubelet"), False),
    ],
    ids=str,
)
async def test_permission_for_approvals_and_for_the_signer_is_required(
    home: KubeClient,
    home_api: FakeApi,
    request_at_home: Object,
    allowed: tuple[str, ...],
    approves: bool,
) -> None:
    home_api.api.authorize = _only(*allowed)
    consent = Consent(ask=(person := Person(True)))
    reason = await approver(home, consent).approve(SERVING, request_at_home, SUMMARY)
    assert reason == (None if approves else "this credential may not approve it")
    assert len(person.questions) == approves
    assert bool(conditions(home_api, request_at_home)) is approves


async def test_request_that_was_replaced_is_not_approved(
    home: KubeClient, home_api: FakeApi, request_at_home: Object
) -> None:
    other = build_csr(SERVING, generate_key(), NODE, [ADDRESS, "192.0.2.8"])
    name = request_at_home["metadata"]["name"]
    home_api.remove(CERTIFICATE_SIGNING_REQUESTS, name)
    home_api.put({**other, "metadata": {"name": name}})
    its = approver(home, Consent(assume_yes=True))
    with pytest.raises(NotOwnRequestError, match=f"{name} is not the one that this bridge"):
        await its.approve(SERVING, request_at_home, SUMMARY)
    assert not conditions(home_api, request_at_home)


async def test_request_that_is_replaced_after_the_comparison_is_not_approved(
    home: KubeClient, home_api: FakeApi, request_at_home: Object
) -> None:
    name = request_at_home["metadata"]["name"]
    other = build_csr(SERVING, generate_key(), NODE, [ADDRESS, "192.0.2.8"])

    get = home.get

    async def get_then_replace(*args: Any, **kwargs: Any) -> Object:
        found = await get(*args, **kwargs)
        home_api.remove(CERTIFICATE_SIGNING_REQUESTS, name)
        home_api.put({**other, "metadata": {"name": name}})
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "get", get_then_replace)
        its = approver(home, Consent(assume_yes=True))
        with pytest.raises(Conflict):
            await its.approve(SERVING, request_at_home, SUMMARY)
    assert not conditions(home_api, request_at_home)


async def test_denied_request_stays_denied(
    home: KubeClient, home_api: FakeApi, request_at_home: Object
) -> None:
    denied = {"status": {"conditions": [{"type": "Denied", "status": "True"}]}}
    home_api.update(CERTIFICATE_SIGNING_REQUESTS, request_at_home["metadata"]["name"], denied)
    its = approver(home, Consent(assume_yes=True))
    await its.approve(SERVING, request_at_home, SUMMARY)
    assert [it["type"] for it in conditions(home_api, request_at_home)] == ["Denied"]
