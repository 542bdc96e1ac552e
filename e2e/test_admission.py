"""Remotes whose admission changes the pods that the bridge creates, or removes fields from them."""

from __future__ import annotations

import json
import time

import pytest

from e2e.admission_policies import mutating, patch
from e2e.bench.pods.audit_log import Requests
from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, is_ready, uids, wait_for
from e2e.workload_manifests import busybox, pod, shell

#: Seconds within which a bridge would have sent its next request.
_QUIET = 5.0
_GUARANTEED = {
    "requests": {"cpu": "30m", "memory": "32Mi"},
    "limits": {"cpu": "30m", "memory": "32Mi"},
}
_MORE = {"requests": {"cpu": "30m", "memory": "48Mi"}}


def _home(bridged: Bridged, name: str) -> Json:
    return get_one(bridged.home, "pod", name, namespace=bridged.namespace)


def _requests_of(bridged: Bridged, name: str) -> Json:
    """The requests of the remote pod."""
    remote = get_one(bridged.remote, "pod", name, namespace=bridged.remote_namespace)
    found: Json = remote["spec"]["containers"][0]["resources"]["requests"]
    return found


def _first_pod(bridged: Bridged) -> None:
    """Creates the remote namespace."""
    bridged.apply(busybox(bridged.node, "first", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")


def test_requests_that_admission_changed_are_not_resized_back(bridged: Bridged) -> None:
    """Neither for another QoS class, nor after a restart; home's own resize is applied."""
    log = bridged.remote.audit_log
    assert log is not None
    _first_pod(bridged)
    requests = Requests(log)

    def resizes() -> list[str]:
        return [
            it.name
            for it in requests.all()
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
    assert bridged.events("UpdateRefused") == []
    for name in ("other-class", "more"):
        home = _home(bridged, name)
        assert home["status"].get("observedGeneration") == home["metadata"].get("generation")

    resized = {"name": "main", "resources": {"requests": {"cpu": "20m"}}}
    change = json.dumps({"spec": {"containers": [resized]}})
    bridged.kubectl("patch", "pod", "more", "--subresource=resize", "-p", change)
    wait_for(
        lambda: _requests_of(bridged, "more") == {"cpu": "20m", "memory": "48Mi"},
        "only home's change is applied",
    )

    def acted() -> bool:
        home = _home(bridged, "more")
        return bool(
            home["status"].get("observedGeneration") == home["metadata"].get("generation")
            and home["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"] == "20m"
        )

    wait_for(acted, "home's status shows the resized pod")
    time.sleep(_QUIET)
    assert resizes() == ["more"]
    assert bridged.events("UpdateRefused") == []


def test_label_that_admission_sets_stays(bridged: Bridged) -> None:
    """A NetworkPolicy of the remote may select by it."""
    _first_pod(bridged)
    with mutating(
        bridged.remote,
        bridged.remote_namespace,
        patch("/metadata/labels/network-zone", "restricted"),
        when="object.metadata.name == 'zoned'",
    ):
        bridged.apply(pod(bridged.node, "zoned", {"labels": {"app": "web", "gone": "soon"}}))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/zoned", "--timeout=60s")
    bridged.kubectl("label", "pod", "zoned", "gone-", "app=shop", "--overwrite")

    def labels() -> dict[str, str]:
        remote = get_one(bridged.remote, "pod", "zoned", namespace=bridged.remote_namespace)
        found: dict[str, str] = remote["metadata"]["labels"]
        return found

    wait_for(lambda: labels()["app"] == "shop", "the home pod's label reaches the remote pod")
    assert labels()["network-zone"] == "restricted"
    assert "gone" not in labels()


@pytest.mark.core
def test_a_pod_that_would_lose_its_user_namespace_never_runs(bridged: Bridged) -> None:
    """The pod waits with the reason and is created once the remote keeps the field; fields without
    security relevance only cause an Event."""
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
    wait_for(lambda: "confined" in uids(bridged.remote_pods()), "the remote pod is created")
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
        wait_for(lambda: "careful" not in uids(bridged.remote_pods()), "the remote pod was deleted")
    wait_for(lambda: is_ready(_home(bridged, "careful")), "it runs when the remote keeps the field")
