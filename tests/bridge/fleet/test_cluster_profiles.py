"""ClusterProfiles of a fake home, whose writers are not trusted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bridge.crds.remote_crd import FINALIZER
from bridge.fleet import cluster_profiles, object_source, supervisor
from bridge.fleet.access_providers import Plugin
from bridge.fleet.cluster_profiles import ClusterProfileKind, property_labels
from bridge.fleet.fleet_report import FleetMember
from sync.kube.api_resources import CLUSTER_PROFILES, EVENTS, SECRETS
from tests.bridge.fleet.object_fleet import KUBECONFIG, NAMESPACE, Fleet, running, secret
from tests.fakeapi.faults import Fault
from tests.fakeapi.server import FakeApi
from translators.object_accessors import Object
from translators.ownership_labels import PROPERTY_DOMAIN

SERVER = "https://192.0.2.1:6443"
EXEC = "client.authentication.k8s.io/exec"
CLOUD = Plugin(
    "cloud",
    {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/usr/bin/cloud-auth",
        "args": ["get-token"],
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    },
)


def access(provider: str, extension: object = None, **cluster: Any) -> Object:
    """An access provider; ``cluster`` has more fields of its cluster."""
    extensions = [] if extension is None else [{"name": EXEC, "extension": extension}]
    return {
        "name": provider,
        "cluster": {"server": SERVER, "extensions": extensions, **cluster},
    }


def by_token(secret_name: str = "osaka", **cluster: Any) -> Object:
    return access("secretreader", {"clusterName": secret_name}, **cluster)


def profile(name: str, *providers: Object, **status: Any) -> Object:
    meta = {"name": name, "namespace": NAMESPACE}
    spec = {"displayName": name, "clusterManager": {"name": "tests"}}
    status = {"accessProviders": list(providers), **status}
    return CLUSTER_PROFILES.manifest(meta, spec=spec, status=status)


def token(name: str, value: str = "t1", **more: Any) -> Object:
    return secret(name, value, "token", **more)


def events(fleet: Fleet, name: str = "osaka") -> dict[str, str]:
    """The Events of a profile: message by reason."""
    return {
        it["reason"]: it["message"]
        for it in fleet.home.objects(EVENTS, NAMESPACE)
        if it["involvedObject"]["name"] == name
    }


def counts(fleet: Fleet) -> dict[str, int]:
    """How often each Event occurred, by reason."""
    return {it["reason"]: it["count"] for it in fleet.home.objects(EVENTS, NAMESPACE)}


async def until_served(fleet: Fleet, *names: str) -> None:
    await fleet.until(lambda: all(it in fleet.served for it in names))


def user_of(fleet: Fleet, name: str) -> Object:
    return dict(fleet.kubeconfig(name)["users"][0]["user"])


def cluster_of(fleet: Fleet, name: str) -> Object:
    return dict(fleet.kubeconfig(name)["clusters"][0]["cluster"])


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(object_source, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "RETRY_FIRST", 0.01)
    monkeypatch.setattr(cluster_profiles, "EVENT_SECONDS", 0.0)
    monkeypatch.setattr(cluster_profiles, "LABEL_SECONDS", 0.0)
    async with FakeApi() as home:
        home.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield Fleet(home, tmp_path, ClusterProfileKind([CLOUD], {"homeName": "tests"}))


async def test_profiles_join_change_and_leave_without_touching_others(fleet: Fleet) -> None:
    fleet.home.put(token("osaka"))
    fleet.home.put(profile("osaka", by_token()))
    async with running(fleet):
        await until_served(fleet, "osaka")
        await fleet.until(lambda: "Joined" in events(fleet))
        found = fleet.find("osaka")
        assert found is not None
        assert found["metadata"]["finalizers"] == [FINALIZER]
        assert found["status"] == profile("osaka", by_token())["status"]
        assert cluster_of(fleet, "osaka") == {"server": SERVER}
        assert user_of(fleet, "osaka") == {"token": "t1"}
        assert fleet.served["osaka"].settings.home_name == "tests"

        fleet.home.put(token("lima", "t2"))
        fleet.home.put(profile("lima", by_token("lima")))
        await until_served(fleet, "lima")
        ports = {name: it.settings.port for name, it in fleet.served.items()}
        assert ports == {"osaka": 10250, "lima": 10251}
        assert user_of(fleet, "osaka") == {"token": "t1"}

        moved = {"accessProviders": [by_token("lima", server="https://192.0.2.2:6443")]}
        fleet.home.update(CLUSTER_PROFILES, "lima", {"status": moved}, NAMESPACE)
        await fleet.until(lambda: "192.0.2.2" in cluster_of(fleet, "lima")["server"])
        fleet.home.put(token("lima", "t3"))
        await fleet.until(lambda: user_of(fleet, "lima") == {"token": "t3"})
        assert fleet.events.count("+lima") == 1, "a running join follows its kubeconfig"

        fleet.home.delete(CLUSTER_PROFILES, "lima", NAMESPACE)
        await fleet.until(lambda: fleet.find("lima") is None)
        assert [it.settings.name for it in fleet.left] == ["lima"]
        await fleet.until(lambda: not (fleet.directory / "lima").exists())
        assert fleet.events.count("+osaka") == 1
        assert "osaka" in fleet.served


async def test_operators_plugin_runs_with_the_cluster_of_its_profile_alone(fleet: Fleet) -> None:
    hostile = access(
        "cloud",
        {"clusterName": "osaka", "command": "/bin/sh"},
        exec={"command": "/bin/sh"},
    )
    for key in ("additional-args", "additional-envs"):
        name = f"clusterprofiles.multicluster.x-k8s.io/exec/{key}"
        hostile["cluster"]["extensions"].append({"name": name, "extension": {"PATH": "/evil"}})
    del hostile["cluster"]["exec"]
    fleet.home.put(profile("osaka", by_token("nothing"), hostile))
    fleet.home.put(profile("lima", access("cloud", {"clusterName": "lima"})))
    async with running(fleet):
        await until_served(fleet, "osaka", "lima")
        for name, extension in (
            ("osaka", {"clusterName": "osaka", "command": "/bin/sh"}),
            ("lima", {"clusterName": "lima"}),
        ):
            assert user_of(fleet, name) == {"exec": CLOUD.exec}
            assert cluster_of(fleet, name)["extensions"] == [{"name": EXEC, "extension": extension}]
        assert "/evil" not in (fleet.directory / "osaka" / "kubeconfig").read_text()


async def test_credential_of_a_kubeconfig_secret_goes_to_the_profiles_server(fleet: Fleet) -> None:
    extension = {"name": "osaka-kubeconfig", "key": "value"}
    fleet.home.put(secret("osaka-kubeconfig", KUBECONFIG.replace(SERVER, "https://x"), "value"))
    fleet.home.put(profile("osaka", access("kubeconfig-secretreader", extension)))
    async with running(fleet):
        await until_served(fleet, "osaka")
        assert user_of(fleet, "osaka") == {"token": "t1"}
        assert cluster_of(fleet, "osaka") == {"server": SERVER}


async def test_access_providers_take_precedence_over_credential_providers(fleet: Fleet) -> None:
    fleet.home.put(token("osaka"))
    old = [by_token(server="https://192.0.2.9"), access("other")]
    fleet.home.put(profile("osaka", by_token(), credentialProviders=old))
    fleet.home.put(token("lima"))
    fleet.home.put(profile("lima", credentialProviders=[by_token("lima")]))
    async with running(fleet):
        await until_served(fleet, "osaka", "lima")
        assert cluster_of(fleet, "osaka") == {"server": SERVER}


@pytest.mark.parametrize(
    ("provider", "reason", "message"),
    [
        (None, "NoAccessProvider", "accessProviders is empty"),
        (access("aws\x1b[2J"), "NoAccessProvider", "aws\\x1b[2J, and the bridge has cloud"),
        (access("secretreader"), "AccessProviderInvalid", "clusterName is not the name"),
        (by_token("a,metadata.namespace=kube-system"), "AccessProviderInvalid", "not the name"),
        (by_token("lima"), "SecretRejected", "x-k8s.io/cluster-profile=osaka"),
        (by_token("labelled"), "SecretRejected", "names another ClusterProfile"),
        (by_token("osaka-elsewhere"), "SecretRejected", "names another namespace"),
        (by_token("account"), "SecretRejected", "token of a ServiceAccount of home"),
        (by_token("absent"), "SecretNotFound", "there is no Secret absent in namespace fleet"),
        (by_token("empty"), "SecretInvalid", "has no key token"),
        (by_token("lines"), "AccessProviderInvalid", "is not a bearer token"),
        (by_token(server="http://192.0.2.1"), "AccessProviderInvalid", "server is not a URL"),
        (
            by_token(**{"certificate-authority": "/etc/passwd"}),
            "AccessProviderInvalid",
            "certificate-authority names a file",
        ),
        (
            by_token(**{"proxy-url": "unix:///run/docker.sock"}),
            "AccessProviderInvalid",
            "proxy-url is not a URL",
        ),
        (
            access("cloud", {"a": "x" * 40_000}),
            "AccessProviderInvalid",
            "is larger than 32 KiB",
        ),
        (
            access("cloud", json.loads('{"a":' * 40 + "1" + "}" * 40)),
            "AccessProviderInvalid",
            "16 levels",
        ),
        (
            access(
                "kubeconfig-secretreader",
                {"name": "osaka", "key": "exec", "namespace": "kube-system"},
            ),
            "AccessProviderInvalid",
            "namespace is another",
        ),
        (
            access("kubeconfig-secretreader", {"name": "osaka-kubeconfig", "key": "kubeconfig"}),
            "AccessProviderInvalid",
            "user.exec is a field",
        ),
        (
            access(
                "kubeconfig-secretreader",
                {"name": "osaka-kubeconfig", "key": "kubeconfig", "context": "none"},
            ),
            "AccessProviderInvalid",
            "no context of that name",
        ),
    ],
)
async def test_hostile_profile_is_rejected_with_an_event_and_joined_once_it_is_valid(
    fleet: Fleet, provider: Object | None, reason: str, message: str
) -> None:
    label = "x-k8s.io/cluster-profile"
    program = KUBECONFIG.replace("token: t1", "exec: {command: /bin/sh, apiVersion: v1}")
    fleet.home.put(token("osaka"))
    fleet.home.put(token("lima"))
    fleet.home.put(token("labelled", labels={label: "lima"}))
    elsewhere = {label: "osaka", "x-k8s.io/cluster-profile-namespace": "other"}
    fleet.home.put(token("osaka-elsewhere", labels=elsewhere))
    fleet.home.put(
        token("account", labels={label: "osaka"}) | {"type": "kubernetes.io/service-account-token"}
    )
    fleet.home.put(secret("empty", labels={label: "osaka"}))
    fleet.home.put(token("lines", "one\ntwo", labels={label: "osaka"}))
    fleet.home.put(secret("osaka-kubeconfig", program))
    fleet.home.put(profile("osaka", *([provider] if provider is not None else [])))
    async with running(fleet):
        await fleet.until(lambda: reason in events(fleet))
        assert message in events(fleet)[reason]
        assert "t1" not in json.dumps(fleet.home.objects(EVENTS, NAMESPACE))
        assert fleet.events == []
        found = fleet.find("osaka")
        assert found is not None
        assert "conditions" not in found["status"]
        valid = {"accessProviders": [by_token()]}
        fleet.home.update(CLUSTER_PROFILES, "osaka", {"status": valid}, NAMESPACE)
        await until_served(fleet, "osaka")
        await fleet.until(lambda: "Joined" in events(fleet))


async def test_labelled_secret_of_another_name_is_used(fleet: Fleet) -> None:
    fleet.home.put(token("credential-7", labels={"x-k8s.io/cluster-profile": "osaka"}))
    fleet.home.put(profile("osaka", by_token("credential-7")))
    async with running(fleet):
        await until_served(fleet, "osaka")


async def test_running_join_survives_an_invalid_change(fleet: Fleet) -> None:
    fleet.home.put(token("osaka"))
    fleet.home.put(profile("osaka", by_token()))
    async with running(fleet):
        await until_served(fleet, "osaka")
        await fleet.until(lambda: "Joined" in events(fleet))
        gone: Object = {"accessProviders": []}
        fleet.home.update(CLUSTER_PROFILES, "osaka", {"status": gone}, NAMESPACE)
        await fleet.until(lambda: "NoAccessProvider" in events(fleet))
        assert "the last valid join goes on" in events(fleet)["NoAccessProvider"]
        assert fleet.events == ["+osaka"]
        valid = {"accessProviders": [by_token()]}
        fleet.home.update(CLUSTER_PROFILES, "osaka", {"status": valid}, NAMESPACE)
        await fleet.until(lambda: counts(fleet)["Joined"] == 2)
        fleet.home.update(CLUSTER_PROFILES, "osaka", {"status": gone}, NAMESPACE)
        await fleet.until(lambda: counts(fleet)["NoAccessProvider"] == 2)
        fleet.home.delete(CLUSTER_PROFILES, "osaka", NAMESPACE)
        await fleet.until(lambda: fleet.find("osaka") is None)
        assert [it.settings.name for it in fleet.left] == ["osaka"]


async def test_recreated_profile_does_not_use_the_credential_of_the_earlier_one(
    fleet: Fleet,
) -> None:
    fleet.home.put(token("osaka"))
    fleet.home.put(profile("osaka", by_token()))
    async with running(fleet):
        await until_served(fleet, "osaka")
        fleet.home.delete(CLUSTER_PROFILES, "osaka", NAMESPACE)
        await fleet.until(lambda: fleet.find("osaka") is None)
        fleet.home.remove(SECRETS, "osaka", NAMESPACE)
        fleet.home.put(profile("osaka", by_token(server="https://192.0.2.7")))
        await fleet.until(lambda: "SecretNotFound" in events(fleet))
        assert fleet.served == {}


async def test_properties_become_labels_without_a_restart(fleet: Fleet) -> None:
    changes = []
    member = FleetMember(fleet.supervisor.report, "osaka")
    member.on_labels(lambda: changes.append(dict(member.labels)))
    fleet.home.put(token("osaka"))
    region = {"name": "region", "value": "asia"}
    fleet.home.put(profile("osaka", by_token(), properties=[region]))
    async with running(fleet):
        await until_served(fleet, "osaka")
        await fleet.until(lambda: len(changes) == 1)
        moved = {"properties": [region | {"value": "peru"}]}
        fleet.home.update(CLUSTER_PROFILES, "osaka", {"status": moved}, NAMESPACE)
        await fleet.until(lambda: len(changes) == 2)
        key = f"{PROPERTY_DOMAIN}/region"
        assert changes == [{key: "asia"}, {key: "peru"}]
        assert fleet.events == ["+osaka"]


async def test_idle_profile_costs_no_request_and_no_read(fleet: Fleet) -> None:
    fleet.home.put(token("osaka"))
    fleet.home.put(profile("osaka", by_token()))
    fleet.home.put(profile("lima"))
    async with running(fleet):
        await until_served(fleet, "osaka")
        await fleet.until(lambda: "Joined" in events(fleet))
        await fleet.until(lambda: "NoAccessProvider" in events(fleet, "lima"))
        await asyncio.sleep(0.2)
        requests, reads = len(fleet.home.log), fleet.reads
        await asyncio.sleep(0.5)
        assert len(fleet.home.log) == requests
        assert fleet.reads == reads


async def test_rejected_event_stops_nothing_and_is_not_repeated(fleet: Fleet) -> None:
    fleet.home.faults.add(Fault(method="POST", path="*/events", code=403))
    fleet.home.put(token("osaka"))
    fleet.home.put(profile("osaka", by_token()))
    async with running(fleet):
        await until_served(fleet, "osaka")
        await asyncio.sleep(0.3)
        posts = [it for it in fleet.home.log if it.method == "POST" and "/events" in it.path]
        assert len(posts) == 1


async def test_missing_definition_is_reported_with_the_next_step(fleet: Fleet) -> None:
    fleet.home.faults.add(Fault(path="/apis/multicluster.x-k8s.io/*", code=404))
    async with running(fleet):
        await fleet.until(lambda: "cluster-inventory-api" in fleet.supervisor.report.error)


def test_properties_that_no_label_can_have_are_left_out() -> None:
    values = {
        "location": "us-central1",
        "cluster.clusterset.k8s.io": "one",
        "example.com/tier": "gold",
        "example.com_tier": "exact",
        "x" * 64: "long",
        "spaces": "a b",
        "long": "v" * 64,
        "-dash": "x",
        "../../escape": "x",
    }
    listed = [{"name": name, "value": value} for name, value in values.items()]
    found = property_labels(profile("osaka", properties=[*listed, "text", {"name": "no-value"}]))
    prefix = PROPERTY_DOMAIN
    assert found == {
        f"{prefix}/location": "us-central1",
        f"{prefix}/cluster.clusterset.k8s.io": "one",
        f"{prefix}/example.com_tier": "exact",
    }


def test_number_of_labels_is_limited() -> None:
    many = [{"name": f"p{number:04}", "value": "x"} for number in range(500)]
    assert len(property_labels(profile("osaka", properties=many))) == cluster_profiles.MAX_LABELS


def test_labels_change_at_most_once_in_a_while() -> None:
    kind, start = ClusterProfileKind([], {}), datetime(2026, 1, 1, tzinfo=UTC)
    key = f"{PROPERTY_DOMAIN}/pods"

    def labels(pods: int, seconds: float) -> dict[str, str]:
        given = profile("osaka", properties=[{"name": "pods", "value": str(pods)}])
        given["metadata"]["uid"] = "u1"
        return dict(kind.labels(given, start + timedelta(seconds=seconds)))

    assert labels(1, 0) == {key: "1"}
    assert labels(2, 30) == {key: "1"}
    assert labels(3, 61) == {key: "3"}
    assert labels(4, 62) == {key: "3"}
    assert labels(4, 130) == {key: "4"}


def test_abandoned_after_a_fixed_time() -> None:
    deleted = profile("osaka")
    assert ClusterProfileKind([], {}).abandoned_at(deleted) is None
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    end = ClusterProfileKind([], {}).abandoned_at(deleted)
    assert end == datetime(2026, 1, 1, 0, 10, tzinfo=UTC)


async def test_events_of_a_profile_that_changes_all_the_time_are_limited(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_profiles, "EVENT_SECONDS", 60.0)
    fleet.home.put(profile("osaka"))
    async with running(fleet):
        await fleet.until(lambda: "NoAccessProvider" in events(fleet))
        for number in range(5):
            other = {"accessProviders": [access(f"unknown-{number}")]}
            fleet.home.update(CLUSTER_PROFILES, "osaka", {"status": other}, NAMESPACE)
            await asyncio.sleep(0.1)
        assert len(fleet.home.objects(EVENTS, NAMESPACE)) == 1
