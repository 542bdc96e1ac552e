"""Remotes whose admission changes the pods that the bridge makes, or takes something off them."""

from __future__ import annotations

import json
import time

from e2e.bench.pods.audit_log import Requests
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, is_ready, uids, wait_for
from e2e.mutating_admission_policy import mutating, patch
from e2e.workload_manifests import busybox, pod, shell

#: Seconds in which a bridge would have sent what it has to send.
_QUIET = 5.0
_GUARANTEED = {
    "requests": {"cpu": "30m", "memory": "32Mi"},
    "limits": {"cpu": "30m", "memory": "32Mi"},
}
_MORE = {"requests": {"cpu": "30m", "memory": "48Mi"}}


def _home(bridged: Bridged, name: str) -> Json:
    return get_one(bridged.home, "pod", name, namespace=bridged.namespace)


def _requests_of(bridged: Bridged, name: str) -> Json:
    """What the remote pod requests."""
    remote = get_one(bridged.remote, "pod", name, namespace=bridged.remote_namespace)
    found: Json = remote["spec"]["containers"][0]["resources"]["requests"]
    return found


def _first_pod(bridged: Bridged) -> None:
    """Makes the remote namespace."""
    bridged.apply(busybox(bridged.node, "first", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")


def _refusals(bridged: Bridged) -> list[Json]:
    events = get(bridged.home, "events", namespace=bridged.namespace)
    return [it for it in events if it["reason"] == "UpdateRefused"]


def test_requests_that_admission_changed_are_not_resized_back(bridged: Bridged) -> None:
    """Neither where the QoS class would change, nor after a restart; home's own resize follows."""
    log = bridged.remote.audit_log
    assert log is not None
    _first_pod(bridged)
    asked = Requests(log)

    def resizes() -> list[str]:
        return [
            it.name
            for it in asked.all()
            if it.resource == "pods/resize" and it.namespace == bridged.remote_namespace
        ]

    path = "/spec/containers/0/resources"
    ours = {"requests": {"cpu": "10m", "memory": "32Mi"}}
    with (
        mutating(
            bridged.remote,
            bridged.remote_namespace,
            patch(path, _GUARANTEED),
            when="object.metadata.name == 'other-class'",
        ),
        mutating(
            bridged.remote,
            bridged.remote_namespace,
            patch(path, _MORE),
            when="object.metadata.name == 'more'",
        ),
    ):
        for name in ("other-class", "more"):
            containers = [shell("main", "sleep 3600", resources=ours)]
            bridged.apply(pod(bridged.node, name, containers=containers))
        for name in ("other-class", "more"):
            bridged.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    assert _requests_of(bridged, "other-class") == _GUARANTEED["requests"]
    assert _requests_of(bridged, "more") == _MORE["requests"]
    bridged.bridge.stop()
    bridged.bridge.start()
    time.sleep(_QUIET)
    assert resizes() == []
    assert _refusals(bridged) == []
    for name in ("other-class", "more"):
        home = _home(bridged, name)
        assert home["status"].get("observedGeneration") == home["metadata"].get("generation")

    resized = {"name": "main", "resources": {"requests": {"cpu": "20m"}}}
    change = json.dumps({"spec": {"containers": [resized]}})
    bridged.kubectl("patch", "pod", "more", "--subresource=resize", "-p", change)
    wait_for(
        lambda: _requests_of(bridged, "more") == {"cpu": "20m", "memory": "48Mi"},
        "what home changed follows, and nothing else",
    )

    def acted() -> bool:
        home = _home(bridged, "more")
        return bool(
            home["status"].get("observedGeneration") == home["metadata"].get("generation")
            and home["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"] == "20m"
        )

    wait_for(acted, "home's status is of the resized pod")
    time.sleep(_QUIET)
    assert resizes() == ["more"]
    assert _refusals(bridged) == []


def test_a_pod_that_would_lose_its_user_namespace_never_runs(bridged: Bridged) -> None:
    """It waits with the reason, is made once the remote keeps the field, and what restricts nothing
    is an Event."""
    _first_pod(bridged)
    with mutating(
        bridged.remote,
        bridged.remote_namespace,
        patch("/spec/hostUsers", None, op="remove"),
        when="has(object.spec.hostUsers)",
    ):
        bridged.apply(pod(bridged.node, "confined", hostUsers=False))

        def refused() -> bool:
            return bool(_home(bridged, "confined")["status"].get("reason") == "RemoteDropsField")

        wait_for(refused, "the pod waits with the reason")
        assert "spec.hostUsers" in _home(bridged, "confined")["status"]["message"]
        time.sleep(_QUIET)
        assert "confined" not in uids(bridged.remote_pods())
    wait_for(lambda: "confined" in uids(bridged.remote_pods()), "it is made")
    made = get_one(bridged.remote, "pod", "confined", namespace=bridged.remote_namespace)
    assert made["spec"]["hostUsers"] is False


def test_pod_that_loses_another_restriction_is_deleted(bridged: Bridged) -> None:
    _first_pod(bridged)
    context = {"runAsNonRoot": True, "runAsUser": 1000}
    with mutating(
        bridged.remote,
        bridged.remote_namespace,
        patch("/spec/securityContext/runAsNonRoot", None, op="remove"),
        when="has(object.spec.securityContext) && has(object.spec.securityContext.runAsNonRoot)",
    ):
        bridged.apply(pod(bridged.node, "careful", securityContext=context))
        wait_for(
            lambda: _home(bridged, "careful")["status"].get("reason") == "RemoteDropsField",
            "the pod waits with the reason",
        )
        wait_for(lambda: "careful" not in uids(bridged.remote_pods()), "the remote pod is gone")
    wait_for(lambda: is_ready(_home(bridged, "careful")), "it runs when the remote keeps the field")
