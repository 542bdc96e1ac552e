"""Labels and annotations of pods that act on nodes, networks or identities of the remote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.translators.golden import POLICY
from translators.object_accessors import Object
from translators.pods import dropped_metadata, remote_pod, update
from translators.translation_options import PodMetadata, Policy


def _home(**fields: dict[str, str]) -> Object:
    meta: Object = {"name": "web", "namespace": "shop", "uid": "home-1", **fields}
    return {"metadata": meta, "spec": {"containers": [{"name": "main"}]}}


def _remote(home: Object, policy: Policy = POLICY) -> Object:
    return remote_pod.translate_pod(home, policy).pod


@pytest.mark.parametrize(
    "key",
    [
        "k8s.v1.cni.cncf.io/networks",
        "cni.projectcalico.org/ipAddrs",
        "ipam.cilium.io/ip-pool",
        "iam.amazonaws.com/role",
        "aadpodidbinding",
        "azure.workload.identity/use",
        "cdi.k8s.io/gpu",
        "devices.nri.io/container.main",
        "io.kubernetes.cri-o.Devices",
        "irq-load-balancing.crio.io",
        "sidecar.istio.io/inject",
        "istio.io/rev",
        "linkerd.io/inject",
        "vault.hashicorp.com/agent-inject",
        "instrumentation.opentelemetry.io/inject-java",
    ],
)
def test_key_that_acts_on_the_remote_is_dropped_with_a_message(key: str) -> None:
    for field in ("labels", "annotations"):
        translated = remote_pod.translate_pod(_home(**{field: {key: "x", "app": "y"}}), POLICY)
        kept = translated.pod["metadata"][field]
        assert key not in kept
        assert kept["app"] == "y"
        [message] = translated.dropped
        assert message.field == f"metadata.{field}[{key}]"
        assert "--pod-metadata" in message.message


@pytest.mark.parametrize(
    "key",
    [
        "app",
        "app.kubernetes.io/name",
        "prometheus.io/scrape",
        "kubernetes.io/ingress-bandwidth",
        "cluster-autoscaler.kubernetes.io/safe-to-evict",
        "container.apparmor.security.beta.kubernetes.io/main",
        "security.istio.io/tlsMode",
        "not-istio.io/rev",
        "my.iam.amazonaws.com",
    ],
)
def test_other_keys_are_kept(key: str) -> None:
    assert not dropped_metadata.is_dropped(key, POLICY)


def test_patterns_add_keys_and_exceptions_win() -> None:
    policy = replace(
        POLICY,
        pod_metadata=PodMetadata(("*/*",), ("app.kubernetes.io/*", "iam.amazonaws.com/role")),
    )
    found = {"app": "1", "app.kubernetes.io/name": "2", "iam.amazonaws.com/role": "3", "a.b/c": "4"}
    remote = _remote(_home(labels=found), policy)["metadata"]
    assert {it for it in remote["labels"] if not it.startswith("cluster-bridge.io/")} == {
        "app",
        "app.kubernetes.io/name",
        "iam.amazonaws.com/role",
    }
    assert remote["labels"]["cluster-bridge.io/node"] == "burst"
    assert remote["annotations"]["cluster-bridge.io/home-name"] == "web"


def test_update_sends_no_dropped_key_and_keeps_what_a_running_pod_has() -> None:
    """An API server rejects the removal of some of them, such as AppArmor's."""
    key = "sidecar.istio.io/inject"
    home = _home(annotations={"a.b/c": "1"})
    with_key = _home(annotations={"a.b/c": "2", key: "true"})
    [change] = update.pod_patches(with_key, _remote(home), POLICY)
    assert change.patch["metadata"]["annotations"]["a.b/c"] == "2"
    assert key not in change.patch["metadata"]["annotations"]

    passing = replace(POLICY, pod_metadata=PodMetadata(keep=(key,)))
    assert update.pod_patches(with_key, _remote(with_key, passing), POLICY) == []
    [change] = update.pod_patches(home, _remote(with_key, passing), POLICY)
    assert key not in change.patch["metadata"]["annotations"]
    [change] = update.pod_patches(home, _remote(with_key, passing), passing)
    assert change.patch["metadata"]["annotations"][key] is None


def test_update_sends_a_key_that_is_passed_from_now_on() -> None:
    home = _home(annotations={"istio.io/rev": "x"})
    policy = replace(POLICY, pod_metadata=PodMetadata(keep=("istio.io/*",)))
    [change] = update.pod_patches(home, _remote(home), policy)
    assert change.patch == {"metadata": {"annotations": {"istio.io/rev": "x"}}}


def test_environment_still_has_the_value_of_home() -> None:
    field = "metadata.labels['aadpodidbinding']"
    env: list[Any] = [{"name": "BINDING", "valueFrom": {"fieldRef": {"fieldPath": field}}}]
    home = _home(labels={"aadpodidbinding": "own"})
    home["spec"]["containers"][0]["env"] = env
    policy = replace(POLICY, service_accounts="none")
    [container] = _remote(home, policy)["spec"]["containers"]
    assert container["env"] == [{"name": "BINDING", "value": "own"}]
