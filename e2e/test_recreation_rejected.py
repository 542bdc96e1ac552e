"""The remote rejects the re-creation of a pod that ran: home's Services stop leading to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, is_ready, uids, wait_for
from e2e.workload_manifests import busybox

#: Seconds until another attempt after repeated failures: the bridge's longest back-off is a minute.
AGAIN_SECONDS = 120.0
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
"""


@contextmanager
def webhook_without_backend(bridged: Bridged) -> Iterator[str]:
    """The API server answers 500: it fails to call the webhook, and the policy is Fail."""
    name = f"{bridged.remote_namespace}.example.com"
    selector = {"matchLabels": {"kubernetes.io/metadata.name": bridged.remote_namespace}}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    webhook = {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 2,
        "namespaceSelector": selector,
        "rules": [rule],
        "clientConfig": {"service": {"name": "none", "namespace": "default"}},
    }
    with _created(bridged, "ValidatingWebhookConfiguration", name, {"webhooks": [webhook]}):
        yield name


@contextmanager
def exhausted_quota(bridged: Bridged) -> Iterator[str]:
    """The API server answers 403."""
    bridged.remote.kubectl(
        *("-n", bridged.remote_namespace, "create", "quota", "no-pods", "--hard=pods=0")
    )
    wait_for(lambda: _used(bridged), "the quota controller has counted")
    try:
        yield "exceeded quota: no-pods"
    finally:
        bridged.remote.kubectl("-n", bridged.remote_namespace, "delete", "quota", "no-pods")


def _used(bridged: Bridged) -> bool:
    quota = get_one(bridged.remote, "quota", "no-pods", namespace=bridged.remote_namespace)
    return bool(quota.get("status", {}).get("used"))


@contextmanager
def _created(bridged: Bridged, kind: str, name: str, fields: Json) -> Iterator[None]:
    made = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        **fields,
    }
    bridged.remote.kubectl("create", "-f", "-", input=json.dumps(made))
    try:
        yield
    finally:
        bridged.remote.kubectl("delete", kind, name)


def addresses(bridged: Bridged) -> list[str]:
    """The Ready endpoints of the Service."""
    return [
        address
        for item in get(bridged.home, "endpointslices", namespace=bridged.namespace)
        for endpoint in item.get("endpoints") or ()
        if endpoint["conditions"].get("ready")
        for address in endpoint["addresses"]
    ]


@pytest.mark.parametrize(
    ("refuse", "reason"),
    [
        pytest.param(webhook_without_backend, "RemoteServerError", id="webhook"),
        pytest.param(exhausted_quota, "RemoteForbidden", id="quota"),
    ],
)
def test_pod_that_cannot_be_recreated_leaves_its_services(
    bridged: Bridged, refuse: Callable[[Bridged], AbstractContextManager[str]], reason: str
) -> None:
    bridged.apply(SERVICE)
    bridged.apply(busybox(bridged.node, "web", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=90s")
    wait_for(lambda: addresses(bridged), "the Service leads to it")
    at_home = uids(bridged.home_pods())

    def home_pod() -> Json:
        return get_one(bridged.home, "pod", "web", namespace=bridged.namespace)

    with refuse(bridged) as cause:
        bridged.remote.kubectl(
            *("-n", bridged.remote_namespace, "delete", "pod", "web"),
            *("--force", "--grace-period=0"),
        )
        wait_for(lambda: home_pod()["status"].get("reason") == reason, "home shows the reason")
        pod = home_pod()
        assert cause in pod["status"]["message"]
        assert pod["status"]["phase"] == "Pending"
        assert not is_ready(pod)
        assert not pod["status"].get("podIP")
        assert not pod["status"].get("podIPs")
        wait_for(lambda: not addresses(bridged), "the Service leads to it no more")
        events = wait_for(lambda: bridged.events(reason), "an Event has the reason")
        assert [it["type"] for it in events] == ["Warning"]
    wait_for(lambda: is_ready(home_pod()), "it runs again", seconds=AGAIN_SECONDS)
    assert uids(bridged.home_pods()) == at_home
    assert "reason" not in home_pod()["status"]
    wait_for(lambda: addresses(bridged), "the Service leads to it again")
