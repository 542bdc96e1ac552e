"""References that home cannot resolve: no unmanaged object of the remote stands in for them."""

from __future__ import annotations

import pytest

from sync.kube.resources import CONFIG_MAPS, PODS, SECRETS, Object
from tests.objects import config_map, secret
from tests.sync.world import THERE, World
from translators.identity import ANNOTATION_ACCEPTS

_TOKENS = "cluster-bridge-token-0f8fad5b-d9cb-469f-a165-70867728950e"


def _optional(name: str) -> list[Object]:
    key = {"name": name, "key": "k", "optional": True}
    return [{"name": "A", "valueFrom": {"secretKeyRef": key}}]


def hand_over(world: World) -> None:
    """The namespace of the remote is another party's, who hands it over."""
    meta: Object = {"name": THERE, "annotations": {ANNOTATION_ACCEPTS: "*"}}
    world.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


async def made(world: World) -> None:
    """The bridge has made the namespace, and a pod runs there."""
    await world.start()
    world.pod("first")
    await world.settle()


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "v", "secret": {"secretName": _TOKENS}}]},
        {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": _TOKENS}}]}}]},
        {"imagePullSecrets": [{"name": _TOKENS}]},
    ],
    ids=["volume", "projected", "pull secret"],
)
async def test_pod_that_names_a_token_secret_is_rejected(world: World, spec: Object) -> None:
    await world.start()
    world.pod("thief", **spec)
    await world.settle()
    assert world.remote_pod("thief") is None
    assert world.status("thief")["reason"] == "FieldRefused"
    assert _TOKENS in world.status("thief")["message"]


async def test_ephemeral_container_that_names_a_token_secret_is_rejected(world: World) -> None:
    await world.start_running()
    debug: Object = {"name": "debug", "image": "i", "envFrom": [{"secretRef": {"name": _TOKENS}}]}
    world.home.update(PODS, "a", {"spec": {"ephemeralContainers": [debug]}}, "default")
    told = await world.events_with_reason("UpdateRefused")
    await world.settle()
    assert _TOKENS in told[0]["message"]
    assert "ephemeralContainers" not in (world.remote_pod() or {})["spec"]
    assert world.status()["phase"] == "Running"


@pytest.mark.parametrize("use", ["secret/theirs", "cm/theirs"])
async def test_required_reference_to_an_unmanaged_object_is_blocked(world: World, use: str) -> None:
    await made(world)
    make, resource = (secret, SECRETS) if use.startswith("secret") else (config_map, CONFIG_MAPS)
    theirs = world.remote.put(make("theirs", THERE, data={"k": "dGhlaXJz"}))
    world.pod(uses=[use])
    await world.settle(waiting=True)
    assert world.remote_pod() is None
    assert world.status()["reason"] == "RemoteClash"
    assert world.remote.get(resource, "theirs", THERE) == theirs
    world.remote.remove(resource, "theirs", THERE)
    await world.settle()
    assert world.remote_pod()


async def test_optional_reference_to_an_unmanaged_secret_is_dropped(world: World) -> None:
    await made(world)
    world.remote.put(secret("theirs", THERE))
    volumes: list[Object] = [
        {"name": "v", "secret": {"secretName": "theirs", "optional": True}},
        {
            "name": "p",
            "projected": {"sources": [{"secret": {"name": "theirs", "optional": True}}]},
        },
    ]
    container: Object = {"name": "main", "image": "i", "env": _optional("theirs")}
    container["envFrom"] = [{"secretRef": {"name": "theirs", "optional": True}}]
    pull = [{"name": "theirs"}]
    world.pod(volumes=volumes, containers=[container], imagePullSecrets=pull)
    await world.settle()
    spec = (world.remote_pod() or {})["spec"]
    assert "theirs" not in str(spec)
    assert spec["volumes"][0] == {"name": "v", "emptyDir": {}}
    assert "spec.volumes[v]" in (await world.events_with_reason("FieldDropped"))[0]["message"]


async def test_optional_reference_to_nothing_stays(world: World) -> None:
    """As under a kubelet, which reads the object when it appears."""
    await made(world)
    world.pod(volumes=[{"name": "v", "secret": {"secretName": "later", "optional": True}}])
    await world.settle()
    assert (world.remote_pod() or {})["spec"]["volumes"][0]["secret"]["secretName"] == "later"
    world.home.put(secret("later"))
    await world.settle()
    assert world.secret("later")


async def test_pod_in_a_shared_namespace_waits_until_home_has_what_it_requires(
    world: World,
) -> None:
    """Whoever writes in the namespace could create the object once the pod is there."""
    hand_over(world)
    await world.start()
    world.pod(uses=["secret/later"])
    await world.settle(waiting=True)
    assert world.remote_pod() is None
    assert world.status()["reason"] == "ReferenceMissing"
    world.home.put(secret("later"))
    await world.settle()
    assert world.remote_pod()
    assert world.secret("later")


async def test_pod_in_a_shared_namespace_is_created_without_optional_references(
    world: World,
) -> None:
    hand_over(world)
    await world.start()
    world.pod(containers=[{"name": "main", "image": "i", "env": _optional("later")}])
    await world.settle()
    assert "later" not in str((world.remote_pod() or {})["spec"])


async def test_copy_in_a_shared_namespace_outlives_its_original_while_a_pod_uses_it(
    world: World,
) -> None:
    """Otherwise an unmanaged Secret could take its name, and the running pod would read it."""
    hand_over(world)
    world.home.put(secret("key"))
    await world.start_running(uses=["secret/key"])
    world.home.remove(SECRETS, "key", "default")
    await world.settle()
    assert world.secret()
    world.home.delete(PODS, "a", "default")
    await world.settle()
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert world.secret() is None
