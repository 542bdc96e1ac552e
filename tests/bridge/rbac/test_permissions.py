"""Required permissions are reviewed at join, and are those that the bridge uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import JoinSettings
from bridge.checks.permission_checks import MAX_NAMED
from bridge.checks.required_at_join import check_join
from bridge.home_identity.identity_selection import HomeClients
from bridge.node import lease_namespace
from bridge.rbac import permissions
from bridge.rbac.permissions import (
    HOME_CLIENT_CA,
    HOME_KUBELET_PROXY,
    HOME_RANGES,
    REMOTE,
    REMOTE_CLAIM,
    REMOTE_CLUSTER_READS,
    REMOTE_METRICS,
    Permission,
    for_home_namespaces,
    required_at_home,
    required_in_remote,
)
from sync.kube.api_resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICE_CIDRS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Object,
    Resource,
)
from sync.kube.discovery import EVERY_GROUP
from tests.bridge.prepared_namespaces import CAPACITY, granting, limit_to_roles, prepared
from tests.bridge.running_join import RunningJoin, kubelet_api_client, running_join, start_join
from tests.bridge.two_clusters import Clusters, put_worker
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, LoggedRequest
from tests.fakeapi.resource_registry import Kind
from tests.objects import config_map, pod, secret
from tests.sync.engine_harness import IDENTITY, NODE, REMOTE_NAMESPACE, EngineHarness
from translators.capacity.node_capacity import NO_LIMITS
from translators.mirror import endpoint_slice
from translators.ownership_labels import ANNOTATION_ACCEPTS, origin_of

#: Side, resource, subresource, verb.
Use = tuple[str, Resource, str, str]


# -- access reviews ----------------------------------------------------------------------


async def lacking(two: Clusters, client_for: ClientFor) -> str:
    """The error of a join; "" where it passes all checks."""
    home, remote = await client_for(two.home, "home"), await client_for(two.remote, "remote")
    try:
        await check_join(
            two.settings,
            home=HomeClients.of_account(home, ""),
            remote=remote,
            notify=lambda _: None,
        )
    except PreflightError as error:
        return str(error)
    return ""


def only(**denied: str) -> Any:
    """Allows all but the one verb, resource or subresource that is named."""

    def authorize(spec: Object) -> bool:
        attributes: Object = spec["resourceAttributes"]
        return not all(attributes.get(key) == value for key, value in denied.items())

    return authorize


async def test_join_passes_with_all_permissions(two: Clusters, client_for: ClientFor) -> None:
    assert await lacking(two, client_for) == ""
    assert two.writes() == []


async def test_each_permission_is_reviewed_once(two: Clusters, client_for: ClientFor) -> None:
    for api, table in (
        (two.home, required_at_home(two.settings, "service-account")),
        (two.remote, REMOTE),
    ):
        client = await client_for(api, "home" if api is two.home else "remote")
        assert await permissions.missing_permissions(client, table, NODE) == []
        reviews = [entry.body["spec"]["resourceAttributes"] for entry in api.log]
        assert len(reviews) == sum(len(right.verbs) for right in table)
        for right in table:
            place: Object = {"group": right.resource.group, "resource": right.resource.plural}
            if right.subresource:
                place["subresource"] = right.subresource
            if right.namespace:
                place["namespace"] = right.namespace
            if right.names:
                (place["name"],) = right.for_nodes([NODE]).names
            for verb in right.verbs:
                assert reviews.count({**place, "verb": verb}) == 1


async def test_permission_on_several_names_is_reviewed_for_each(
    two: Clusters, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (permissions.NODE, f"of-{permissions.NODE}")
    monkeypatch.setattr(permissions, "HOME", (Permission(NODES, ("get",), names=names),))
    two.home.api.authorize = only(resource="nodes")
    monkeypatch.setattr(permissions, "HOME_IN_PLACE_OF_NODE", ())
    message = await lacking(two, client_for)
    assert message.startswith(
        "home: the credential may not get nodes; `bridge rbac home --name virtual --network flat`"
    )
    reviews = [entry.body["spec"]["resourceAttributes"].get("name") for entry in two.home.log]
    assert reviews[:2] == [NODE, f"of-{NODE}"]


async def test_namespace_permissions_are_not_required(two: Clusters, client_for: ClientFor) -> None:
    per_namespace = {
        (right.resource.plural, right.subresource, verb)
        for right in for_home_namespaces(identity="service-account", network="flat")
        for verb in right.verbs
    }

    def authorize(spec: Object) -> bool:
        attributes: Object = spec["resourceAttributes"]
        place = (attributes["resource"], attributes.get("subresource", ""), attributes["verb"])
        # The identity of home is required.
        return attributes.get("name") == "kube-system" or place not in per_namespace

    two.home.api.authorize = authorize
    assert await lacking(two, client_for) == ""


async def test_home_api_permission_is_required_only_with_tokens(
    two: Clusters, client_for: ClientFor
) -> None:
    two.home.api.authorize = only(resource="endpointslices", namespace="default")
    assert "may not get endpointslices.discovery.k8s.io" in await lacking(two, client_for)
    settings = two.but(service_accounts="none")
    assert await lacking(replace(two, settings=settings), client_for) == ""


async def test_csr_permission_is_required_only_for_csr(
    two: Clusters, client_for: ClientFor
) -> None:
    two.home.api.authorize = only(resource="certificatesigningrequests", verb="create")
    assert await lacking(two, client_for) == ""
    settings = two.but(serving="csr")
    message = await lacking(replace(two, settings=settings), client_for)
    assert "may not create certificatesigningrequests.certificates.k8s.io" in message
    assert (
        "`bridge rbac home --name virtual --serving-certificate csr --network flat` prints what"
        in message
    )


async def test_missing_permission_of_one_side_is_named(
    two: Clusters, client_for: ClientFor
) -> None:
    two.remote.api.authorize = only(resource="pods", subresource="exec", verb="create")
    assert await lacking(two, client_for) == (
        "remote: the credential may not create pods/exec; "
        "`bridge rbac remote` prints what to apply there; or use another credential"
    )


async def test_missing_permission_in_a_prepared_namespace_names_its_command(
    two: Clusters, client_for: ClientFor
) -> None:
    two.remote.api.authorize = only(resource="secrets", namespace="b", verb="create")
    settings = two.but(remote_namespaces=("a", "b"))
    message = await lacking(replace(two, settings=settings), client_for)
    assert message.startswith("remote: the credential may not create secrets; ")
    assert "`bridge rbac remote --namespace a --namespace b` prints" in message


async def test_missing_permissions_of_both_sides_are_named(
    two: Clusters, client_for: ClientFor
) -> None:
    two.home.api.authorize = only(resource="leases", namespace="kube-node-lease", verb="patch")
    two.remote.api.authorize = only(resource="secrets", verb="watch")
    assert await lacking(two, client_for) == (
        "home: the credential may not patch leases.coordination.k8s.io; "
        "`bridge rbac home --name virtual --network flat` prints what to apply there; "
        "or use another credential; "
        "remote: the credential may not watch secrets; "
        "`bridge rbac remote` prints what to apply there; or use another credential"
    )


async def test_many_missing_permissions_are_truncated(two: Clusters, client_for: ClientFor) -> None:
    two.remote.api.authorize = lambda _: False
    message = await lacking(two, client_for)
    more = sum(len(right.verbs) for right in REMOTE) - MAX_NAMED
    assert message.count(", ") == MAX_NAMED - 1
    assert f"watch namespaces and {more} more; `bridge rbac remote`" in message


# -- what is used ------------------------------------------------------------------------


def uses(side: str, api: FakeApi) -> Iterator[tuple[Use, LoggedRequest, str, str]]:
    """The server's requests as its authorizer sees them, with namespace and name."""
    reviews = {it.path(): it for it in (TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS)}
    # Everybody may, and what a namespace holds is listed as far as that is allowed.
    free = {
        "/version",
        "/apis",
        "/api/v1",
        SELF_SUBJECT_ACCESS_REVIEWS.path(),
    }
    for entry in api.log:
        if entry.path in free:
            continue
        if entry.path in reviews:
            yield (side, reviews[entry.path], "", "create"), entry, "", ""
            continue
        target = api.store.registry.resolve(entry.path)
        verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}.get(
            entry.method, "watch" if entry.watch else "get" if target.name else "list"
        )
        resource = target.kind.resource
        namespace = (target.namespace if resource.namespaced else target.name) or ""
        # The kubelet authorizes requests behind a node's proxy.
        subresource = target.subresource.partition("/")[0]
        field, _, value = entry.query.get("fieldSelector", "").partition("=")
        name = target.name or (value if field == "metadata.name" else "")
        yield (side, resource, subresource, verb), entry, namespace, name


def covers(right: Permission, use: Use, namespace: str, name: str) -> bool:
    """Whether the right allows this."""
    _, resource, subresource, verb = use
    names = right.for_nodes([NODE]).names
    return (
        right.resource == resource
        and right.subresource == subresource
        and verb in right.verbs
        and right.namespace in ("", namespace)
        and (not names or name in names)
    )


def service(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    }


def slice_of(service_name: str, name: str, address: str = "10.0.0.1") -> Object:
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {endpoint_slice.LABEL_SERVICE: service_name},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]}],
        "ports": [],
    }


async def clashes(harness: EngineHarness) -> None:
    """Things are in the way in the remote, in a namespace that was handed over."""
    accepts = {ANNOTATION_ACCEPTS: "h"}
    meta = {"name": REMOTE_NAMESPACE, "annotations": accepts}
    harness.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    slice_name = endpoint_slice.remote_name("web-taken", IDENTITY)
    in_the_way = slice_of("web", slice_name)
    for made in (config_map("taken"), secret("taken"), service("taken"), pod("taken"), in_the_way):
        harness.remote.put(
            {**made, "metadata": {**made["metadata"], "namespace": REMOTE_NAMESPACE}}
        )
    harness.home.put(config_map("taken"))
    harness.home.put(secret("taken"))
    harness.home.put(service("taken"))
    harness.pod("taken", labels={"app": "taken"})
    harness.pod("waits", uses=["cm/taken", "secret/taken"])
    await harness.events_with_reason("RemoteClash")


async def lives(harness: EngineHarness) -> None:
    """A pod with all that it uses comes, changes and goes; another one is lost at home."""
    harness.home.put(config_map("conf", data={"a": "1"}))
    harness.home.put(secret("key", data={"a": "MQ=="}))
    harness.home.put(service("web"))
    harness.home.put(slice_of("web", "web-taken"))
    harness.home.put(slice_of("web", "web-1"))
    harness.pod("a", uses=["cm/conf", "secret/key"], labels={"app": "web"})
    harness.pod("lost")
    harness.pod("brief", "empty")
    await harness.remote.until(lambda: harness.remote_pod("a") and harness.remote_pod("lost"))
    harness.report_running("a")
    await harness.home.until(lambda: harness.status("a").get("phase") == "Running")
    harness.home.update(CONFIG_MAPS, "conf", {"data": {"a": "2"}}, "default")
    harness.home.update(SECRETS, "key", {"data": {"a": "Mg=="}}, "default")
    harness.home.update(SERVICES, "web", {"metadata": {"labels": {"new": "1"}}}, "default")
    slice_name = endpoint_slice.remote_name("web-1", IDENTITY)
    await harness.remote.until(
        lambda: harness.remote.find(ENDPOINT_SLICES, slice_name, REMOTE_NAMESPACE)
    )
    harness.home.put(slice_of("web", "web-1", "10.0.0.2"))
    change = {
        "containers": [
            {**harness.home_pod()["spec"]["containers"][0], "resources": {"requests": {"cpu": "1"}}}
        ],
        "ephemeralContainers": [{"name": "debugger", "image": "busybox:1"}],
    }
    harness.home.update(
        PODS, "a", {"metadata": {"labels": {"new": "1"}}, "spec": change}, "default"
    )
    pods = ("pods/a", "pods/a/ephemeralcontainers", "pods/a/resize")
    slices = f"endpointslices/{slice_name}"
    for kind in ("configmaps/conf", "secrets/key", "services/web", slices, *pods):
        await harness.remote.until(partial(harness.remote.writes, f"*/{kind}"))


async def ends(harness: EngineHarness) -> None:
    """What `lives` made goes again."""
    harness.home.remove(SERVICES, "web", "default")
    harness.home.remove(PODS, "lost", "default")
    await harness.remote.until(lambda: harness.remote.find(NAMESPACES, "empty-h"))
    harness.home.remove(PODS, "brief", "empty")
    await harness.remote.until(lambda: harness.remote_pod("lost") is None)
    harness.home.delete(PODS, "a", "default")
    await harness.remote.until(
        lambda: "deletionTimestamp" in (harness.remote_pod("a") or {})["metadata"]
    )
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.home.until(lambda: harness.home.find(PODS, "a", "default") is None)
    for kind in (CONFIG_MAPS, SECRETS, SERVICES, ENDPOINT_SLICES):
        await harness.remote.until(partial(_has_no_copies, harness, kind))


def serve_empty_discovery(remote: FakeApi) -> None:
    """Serves no resources, so that an unneeded remote namespace counts as empty."""

    async def nothing(_: web.Request) -> web.Response:
        return web.json_response({"groups": [{"name": EVERY_GROUP}]})

    for path in ("/apis", "/api/v1"):
        remote.route("GET", path, nothing)


def _has_no_copies(harness: EngineHarness, kind: Resource) -> bool:
    """Whether no copy of a home object is left; token Secrets of waiting pods do not count."""
    return not any(map(origin_of, harness.remote.objects(kind, REMOTE_NAMESPACE)))


async def use_kubelet_api(run: RunningJoin, remote: FakeApi) -> None:
    """Reads the pod's log and metrics, and opens every kind of stream with both protocols."""

    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=403, text="not today")

    for subresource in ("log", "exec", "attach", "portforward"):
        remote.route("*", f"*/pods/a/{subresource}", refuse)
    upgrade = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
    async with kubelet_api_client(run) as session:
        for path in ("/containerLogs/default/a/main", "/metrics/resource"):
            async with session.get(path) as answer:
                await answer.read()
        for path in ("/exec/default/a/main", "/attach/default/a/main", "/portForward/default/a"):
            for method in ("GET", "POST"):
                query = "command=true&output=1" if path.startswith("/exec") else "output=1"
                async with session.request(method, f"{path}?{query}", headers=upgrade) as answer:
                    await answer.read()


async def test_tables_match_requests_of_the_bridge(
    two: Clusters, soon: None, no_linger: None, tmp_path: Path
) -> None:
    """Every request of a join is covered by a right, and every right is used by a request."""
    harness = EngineHarness(two.home, two.remote)
    serve_empty_discovery(two.remote)
    two.home.store.registry.add(Kind(SERVICE_CIDRS))
    # As `bridge rbac home` prints it.
    two.home.put(NAMESPACES.manifest({"name": lease_namespace.NAMESPACE}))
    await clashes_and_life(two, harness)
    two.home.update(NODES, NODE, {"metadata": {"labels": {"type": None}}})
    settings = two.but(
        accept_namespaces=("*",),
        serving="csr",
        cert_dir=tmp_path / "serving",
    )
    async with running_join(
        two, settings
    ):  # finds its own Node, and reports the obstacle once more
        await two.home.until(lambda: two.home.requests("PATCH", "*/events/*"))
        await two.remote.until(lambda: not two.remote.find(NAMESPACES, "empty-h"))
        await two.home.until(lambda: two.home.open_watches(CERTIFICATE_SIGNING_REQUESTS))
        standby = start_join(two.settings)
        await two.home.until(lambda: two.home.open_watches(LEASES))
        await standby.end()

    used: set[Use] = set()
    tables = {
        "home": (
            *required_at_home(settings, "service-account"),
            *for_home_namespaces(identity="service-account", network="flat"),
            *HOME_CLIENT_CA,
        ),
        "remote": (*REMOTE, *REMOTE_METRICS["kubelets"]),
    }
    for side, api in (("home", two.home), ("remote", two.remote)):
        table = tables[side]
        for use, entry, namespace, name in uses(side, api):
            used.add(use)
            granted = (*table, *HOME_KUBELET_PROXY, *HOME_RANGES) if side == "home" else table
            assert any(covers(right, use, namespace, name) for right in granted), entry
    rights = {
        (side, right.resource, right.subresource, verb)
        for side, table in tables.items()
        for right in table
        for verb in right.verbs
    }
    unused = rights - used
    assert not unused


async def life_in_prepared_namespace(two: Clusters, settings: JoinSettings) -> RunningJoin:
    """A join whose pod lives in a prepared namespace, while a pod of another namespace waits."""
    harness = EngineHarness(two.home, two.remote)
    async with running_join(two, settings) as run:
        await lives(harness)
        await use_kubelet_api(run, two.remote)
        await harness.events_with_reason("RemoteNamespaceMissing")
        harness.home.delete(PODS, "a", "default")
        await harness.remote.until(
            lambda: "deletionTimestamp" in (harness.remote_pod("a") or {})["metadata"]
        )
    return run


def assert_covered(table: Iterable[Permission], two: Clusters) -> None:
    granted = list(table)
    for use, entry, namespace, name in uses("remote", two.remote):
        assert any(covers(right, use, namespace, name) for right in granted), entry


async def test_prepared_namespaces_need_roles_in_them_alone(two: Clusters, soon: None) -> None:
    """Every request of a join whose credential has Roles in the prepared namespaces alone is
    covered by these."""
    settings = prepared(two, REMOTE_NAMESPACE)
    table = required_in_remote(settings)
    assert all(right.namespace == REMOTE_NAMESPACE for right in table)
    limit_to_roles(two, settings)
    run = await life_in_prepared_namespace(two, settings)
    assert_covered(table, two)
    status = two.home.get(NODES, NODE)["status"]
    assert status["capacity"] == CAPACITY
    (ready,) = (it for it in status["conditions"] if it["type"] == "Ready")
    assert ready["reason"] == "RemoteNodesUnknown"
    assert any(
        "no list of all nodes: the capacity is that of --limits" in text for text in run.reports
    )


async def test_prepared_namespaces_use_granted_reads_of_the_whole_remote(
    two: Clusters, soon: None
) -> None:
    settings = prepared(two, REMOTE_NAMESPACE, limits=NO_LIMITS)
    reads = (it for each in REMOTE_CLUSTER_READS.values() for it in each)
    table = (*required_in_remote(settings), *reads, *REMOTE_CLAIM)
    two.remote.api.authorize = granting(table)
    await life_in_prepared_namespace(two, settings)
    assert_covered(table, two)
    assert two.home.get(NODES, NODE)["status"]["capacity"]["cpu"] == "4"
    assert not any(right.resource is SECRETS and not right.namespace for right in table)
    assert two.remote.requests("POST", "*/namespaces/kube-node-lease/leases")


async def clashes_and_life(two: Clusters, harness: EngineHarness) -> None:
    """A first join, with everything that can happen in one."""
    async with running_join(two, two.but(accept_namespaces=("*",))) as run:
        await clashes(harness)
        await lives(harness)
        await use_kubelet_api(run, two.remote)
        put_worker(two.remote, "another")
        await two.home.until(lambda: two.home.get(NODES, NODE)["status"]["capacity"]["cpu"] == "8")
        await ends(harness)
