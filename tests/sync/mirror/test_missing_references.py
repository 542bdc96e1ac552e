"""References that home cannot resolve never use an unmanaged object of the remote."""

from __future__ import annotations

import pytest

from sync.kube.api_resources import CONFIG_MAPS, PODS, SECRETS, Object
from tests.objects import config_map, secret
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.ownership_labels import ANNOTATION_ACCEPTS

_TOKENS = "cluster-bridge-token-0f8fad5b-d9cb-469f-a165-70867728950e"


def _optional(name: str) -> list[Object]:
    key = {"name": name, "key": "k", "optional": True}
    return [{"name": "A", "valueFrom": {"secretKeyRef": key}}]


def grant_namespace(harness: EngineHarness) -> None:
    """The remote namespace is unmanaged, and its owner grants it to the bridge."""
    meta: Object = {"name": REMOTE_NAMESPACE, "annotations": {ANNOTATION_ACCEPTS: "*"}}
    harness.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


async def with_running_pod(harness: EngineHarness) -> None:
    """The bridge has created the namespace, and a pod runs in it."""
    await harness.start()
    harness.pod("first")
    await harness.settle()


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "v", "secret": {"secretName": _TOKENS}}]},
        {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": _TOKENS}}]}}]},
        {"imagePullSecrets": [{"name": _TOKENS}]},
    ],
    ids=["volume", "projected", "pull secret"],
)
async def test_pod_that_names_a_token_secret_is_rejected(
    harness: EngineHarness, spec: Object
) -> None:
    await harness.start()
    harness.pod("thief", **spec)
    await harness.settle()
    assert harness.remote_pod("thief") is None
    assert harness.status("thief")["reason"] == "FieldRefused"
    assert _TOKENS in harness.status("thief")["message"]


async def test_ephemeral_container_that_names_a_token_secret_is_rejected(
    harness: EngineHarness,
) -> None:
    await harness.start_running()
    debug: Object = {"name": "debug", "image": "i", "envFrom": [{"secretRef": {"name": _TOKENS}}]}
    harness.home.update(PODS, "a", {"spec": {"ephemeralContainers": [debug]}}, "default")
    events = await harness.events_with_reason("UpdateRefused")
    await harness.settle()
    assert _TOKENS in events[0]["message"]
    assert "ephemeralContainers" not in (harness.remote_pod() or {})["spec"]
    assert harness.status()["phase"] == "Running"


@pytest.mark.parametrize("use", ["secret/theirs", "cm/theirs"])
async def test_required_reference_to_an_unmanaged_object_is_blocked(
    harness: EngineHarness, use: str
) -> None:
    await with_running_pod(harness)
    make, resource = (secret, SECRETS) if use.startswith("secret") else (config_map, CONFIG_MAPS)
    theirs = harness.remote.put(make("theirs", REMOTE_NAMESPACE, data={"k": "dGhlaXJz"}))
    harness.pod(uses=[use])
    await harness.settle(waiting=True)
    assert harness.remote_pod() is None
    assert harness.status()["reason"] == "RemoteClash"
    assert harness.remote.get(resource, "theirs", REMOTE_NAMESPACE) == theirs
    harness.remote.remove(resource, "theirs", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.remote_pod()


async def test_optional_reference_to_an_unmanaged_secret_is_dropped(harness: EngineHarness) -> None:
    await with_running_pod(harness)
    harness.remote.put(secret("theirs", REMOTE_NAMESPACE))
    volumes: list[Object] = [
        {"name": "v", "secret": {"secretName": "theirs", "optional": True}},
        {"name": "p", "projected": {"sources": [{"secret": {"name": "theirs", "optional": True}}]}},
    ]
    container: Object = {"name": "main", "image": "i", "env": _optional("theirs")}
    container["envFrom"] = [{"secretRef": {"name": "theirs", "optional": True}}]
    pull = [{"name": "theirs"}]
    harness.pod(volumes=volumes, containers=[container], imagePullSecrets=pull)
    await harness.settle()
    spec = (harness.remote_pod() or {})["spec"]
    assert "theirs" not in str(spec)
    assert spec["volumes"][0] == {"name": "v", "emptyDir": {}}
    assert "spec.volumes[v]" in (await harness.events_with_reason("FieldDropped"))[0]["message"]


async def test_optional_reference_to_nothing_stays(harness: EngineHarness) -> None:
    """The kubelet reads the object when it appears."""
    await with_running_pod(harness)
    harness.pod(volumes=[{"name": "v", "secret": {"secretName": "later", "optional": True}}])
    await harness.settle()
    assert (harness.remote_pod() or {})["spec"]["volumes"][0]["secret"]["secretName"] == "later"
    harness.home.put(secret("later"))
    await harness.settle()
    assert harness.secret("later")


async def test_pod_in_a_shared_namespace_waits_until_home_has_what_it_requires(
    harness: EngineHarness,
) -> None:
    """Any user of the namespace could create the object once the pod exists."""
    grant_namespace(harness)
    await harness.start()
    harness.pod(uses=["secret/later"])
    await harness.settle(waiting=True)
    assert harness.remote_pod() is None
    assert harness.status()["reason"] == "ReferenceMissing"
    harness.home.put(secret("later"))
    await harness.settle()
    assert harness.remote_pod()
    assert harness.secret("later")


async def test_pod_in_a_shared_namespace_is_created_without_optional_references(
    harness: EngineHarness,
) -> None:
    grant_namespace(harness)
    await harness.start()
    harness.pod(containers=[{"name": "main", "image": "i", "env": _optional("later")}])
    await harness.settle()
    assert "later" not in str((harness.remote_pod() or {})["spec"])


async def test_copy_in_a_shared_namespace_outlives_its_original_while_a_pod_uses_it(
    harness: EngineHarness,
) -> None:
    """Otherwise an unmanaged Secret could take its name, and the running pod would read it."""
    grant_namespace(harness)
    harness.home.put(secret("key"))
    await harness.start_running(uses=["secret/key"])
    harness.home.remove(SECRETS, "key", "default")
    await harness.settle()
    assert harness.secret()
    harness.home.delete(PODS, "a", "default")
    await harness.settle()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.secret() is None
