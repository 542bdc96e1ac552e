"""The checks of a join, and the error message of each."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import HomeIdentity, JoinSettings, MetricsChoice, MetricsSource
from bridge.base.progress_lines import Caveat
from bridge.checks import required_at_join
from bridge.checks.required_at_join import JoinFacts
from bridge.clusters import advertised_address, connection
from bridge.clusters.connection import connect
from bridge.home_identity.identity_selection import HomeClients
from bridge.rbac import permissions
from sync.kube.api_resources import CONFIG_MAPS, ENDPOINT_SLICES, NAMESPACES, NODES, Object
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.two_clusters import CANARY, Clusters
from tests.conftest import ClientFor
from tests.fakeapi import CLOSED_PORT, FakeApi, Fault
from tests.fakeapi.account_tokens import account_token
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.objects import config_map, node
from tests.sync.engine_harness import NODE
from translators.translation_options import HostPort
from translators.virtual_node_identity import home_id_from_uid

REVIEWS = "*/selfsubjectaccessreviews"
Break = Callable[[Clusters], JoinSettings]


async def check_join(
    settings: JoinSettings,
    messages: list[str] | None = None,
    *,
    identity: HomeIdentity = "service-account",
) -> JoinFacts:
    """Runs all checks as a join does; appends progress to ``messages``."""
    notified = messages if messages is not None else []
    async with (
        connect(settings.remote, side="remote", notify=notified.append) as remote,
        connect(settings.home, side="home", notify=notified.append) as home,
    ):
        return await required_at_join.check_join(
            settings,
            home=HomeClients(identity, "", home, home),
            remote=remote,
            notify=notified.append,
        )


async def error_of(settings: JoinSettings) -> str:
    """The message of the PreflightError; asserts that it and its causes do not contain the
    credential."""
    messages: list[str] = []
    with pytest.raises(PreflightError) as caught:
        await check_join(settings, messages)
    assert CANARY not in "".join(traceback.format_exception(caught.value)) + str(messages)
    return str(caught.value)


async def test_precheck_passes_for_two_joinable_clusters(two: Clusters) -> None:
    two.home.put(
        config_map(
            "extension-apiserver-authentication", "kube-system", data={"client-ca-file": "PEM"}
        )
    )
    messages: list[str] = []
    found = await check_join(two.settings, messages)
    ids = [home_id_from_uid(uid_of_kube_system(api)) for api in (two.home, two.remote)]
    assert [found.identity.home_id, found.remote_id] == ids
    assert (found.identity.home_name, found.identity.node) == ("h", "virtual")
    assert (found.address, found.client_ca) == ("127.0.0.1", "PEM")
    assert messages == [
        f"remote: {two.remote.url} (context remote-context), v1.34.4",
        f"home: {two.home.url} (context home-context), v1.34.4",
        "home: all required permissions are granted",
        "remote: all required permissions are granted",
        "home: pods of all namespaces may run",
        "both: home and remote are two clusters",
        "home: its API server will dial this bridge at 127.0.0.1",
        "remote: pods find home's API server at 192.0.2.1:6443",
        (
            "home: any pod IP that the remote reports is copied, except home's own addresses; "
            "--remote-pod-cidr limits them to the remote's pod networks"
        ),
        "both: pods use the remote's PersistentVolumeClaims of the same names (by --storage)",
        "remote: its kubelets serve resource metrics",
    ]
    assert two.writes() == []


def uid_of_kube_system(api: FakeApi) -> str:
    return str(api.get(NAMESPACES, "kube-system")["metadata"]["uid"])


async def test_home_with_access_per_namespace_can_be_joined(two: Clusters) -> None:
    two.home.api.authorize = lambda spec: spec["resourceAttributes"]["resource"] != "secrets"
    messages: list[str] = []
    await check_join(two.settings, messages)
    [line] = [line for line in messages if "bridge rbac namespace NAME" in line]
    assert line.startswith("home: access is granted per namespace")


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_join_as_the_node_reports_whether_noderestriction_is_enabled(
    two: Clusters, is_enabled: bool
) -> None:
    """A dry run determines it; a home without the plugin is a warning, and no error."""
    if is_enabled:
        two.home.fail(Fault("POST", NODES.path(), code=403, times=None))
    messages: list[str] = []
    found = await check_join(two.settings, messages, identity="node")
    assert found.node_restriction is is_enabled
    (line,) = [line for line in messages if "NodeRestriction" in line]
    assert isinstance(line, Caveat) is not is_enabled
    assert ("add NodeRestriction to --enable-admission-plugins" in line) is not is_enabled
    assert [it.query for it in two.writes()] == [{"dryRun": "All"}]


async def test_requests_follow_the_stages(two: Clusters) -> None:
    await check_join(two.settings)
    attributes = [entry.path.rpartition("/")[2] for entry in two.home.log]
    order = ["version", "selfsubjectaccessreviews", "kube-system"]
    others = ["extension-apiserver-authentication", "kubernetes", NODE]
    assert list(dict.fromkeys(attributes)) == [*order, *others]
    attributes = [entry.path.rpartition("/")[2] for entry in two.remote.log]
    assert list(dict.fromkeys(attributes)) == order


async def test_default_names_come_from_clusters(two: Clusters) -> None:
    found = await check_join(two.but(name=None, home_name=None))
    assert found.identity.node == "remote-context"
    assert found.identity.home_name == found.identity.home_id[:8]


@pytest.mark.parametrize("fault", [None, 403], ids=["missing", "not ours to read"])
async def test_home_without_readable_client_ca_can_be_joined(
    two: Clusters, fault: int | None
) -> None:
    if fault:
        two.home.fail(Fault("GET", "*/extension-apiserver-authentication", code=fault))
    assert (await check_join(two.settings)).client_ca == ""


async def test_a_client_ca_config_map_without_one(two: Clusters) -> None:
    two.home.put(config_map("extension-apiserver-authentication", "kube-system"))
    two.home.update(
        CONFIG_MAPS, "extension-apiserver-authentication", {"data": None}, "kube-system"
    )
    assert (await check_join(two.settings)).client_ca == ""


async def test_the_address_of_homes_api_server_is_the_one_given(two: Clusters) -> None:
    found = await check_join(two.but(home_api=HostPort("api.example.com", 443)))
    assert found.home_api == HostPort("api.example.com", 443)


async def test_home_api_is_not_looked_up_without_tokens(two: Clusters) -> None:
    assert (await check_join(two.but(service_accounts="none"))).home_api is None
    assert two.home.requests(path="*/endpointslices/*") == []


async def test_home_without_usable_api_address_is_rejected(two: Clusters) -> None:
    two.home.remove(ENDPOINT_SLICES, "kubernetes", "default")
    assert "--home-api-address HOST:PORT" in await error_of(two.settings)


def _missing_file(two: Clusters) -> JoinSettings:
    return two.but(remote=KubeconfigRef(Path("nowhere.yaml")))


def _other_context(two: Clusters) -> JoinSettings:
    return two.but(remote=KubeconfigRef(two.settings.remote.path, "nope"))


def _unreachable(two: Clusters) -> JoinSettings:
    path = two.settings.remote.path
    assert path is not None
    write(path, kubeconfig(f"http://127.0.0.1:{CLOSED_PORT}", user={"token": CANARY}))
    return two.settings


def _expired(two: Clusters) -> JoinSettings:
    two.remote.token = "another"
    return two.settings


def _broken(two: Clusters) -> JoinSettings:
    two.remote.fail(Fault("GET", "/version", code=500, times=None))
    return two.settings


def _not_an_api_server(two: Clusters) -> JoinSettings:
    two.remote.fail(Fault("GET", "/version", raw=f"<html>{CANARY}".encode(), times=None))
    return two.settings


def _reviews_forbidden(two: Clusters) -> JoinSettings:
    two.remote.fail(Fault("POST", REVIEWS, code=403, times=None))
    return two.settings


def _no_permissions(two: Clusters) -> JoinSettings:
    two.remote.api.authorize = lambda _: False
    return two.settings


def _remote_is_home(two: Clusters) -> JoinSettings:
    return two.but(remote=two.settings.home)


def _template(two: Clusters) -> JoinSettings:
    return two.but(template="fixed")


def _broken_connection(two: Clusters) -> JoinSettings:
    two.home.fail(Fault("GET", "*/kube-system", drop="before", times=None))
    return two.settings


async def test_expired_account_token_names_the_command_for_another(
    tls_two: Clusters, tmp_path: Path
) -> None:
    tls_two.remote.token = "another"
    token = account_token(datetime(2020, 1, 1, tzinfo=UTC), timedelta(hours=1))
    cluster = {"certificate-authority": "fake-ca.crt"}
    content = kubeconfig(
        tls_two.remote.url, user={"token": token}, cluster=cluster, context="remote-context"
    )
    write(tmp_path / "remote.yaml", content)
    message = await error_of(tls_two.settings)
    assert "remote: the token of ServiceAccount cluster-bridge/cluster-bridge expired" in message
    assert "at 2020-01-01T01:00:00Z" in message
    assert "`kubectl create token cluster-bridge -n cluster-bridge --duration 24h`" in message
    assert "\n" not in message
    assert tls_two.writes() == []


@pytest.mark.parametrize(
    ("change", "notified"),
    [
        (_missing_file, ["remote: kubeconfig nowhere.yaml: no such file", "--kubeconfig"]),
        (_other_context, ["remote: ", "no context named 'nope'", "kubectl config view"]),
        (_unreachable, ["remote: ", "check that the server in the kubeconfig is up"]),
        (_expired, ["remote: ", "does not accept the kubeconfig's credential", "get a new one"]),
        (_broken, ["remote: GET /version", "500", "kubectl get --raw /readyz"]),
        (_not_an_api_server, ["remote: GET /version", "is not a JSON object"]),
        (_reviews_forbidden, ["remote: ", "ask the cluster's administrator for that permission"]),
        (
            _no_permissions,
            ["remote: the credential may not list nodes", "or use another credential"],
        ),
        (_remote_is_home, ["is the home cluster itself", "--kubeconfig or --context"]),
        (_template, ["--namespace-template 'fixed'", "{namespace}"]),
        (
            _broken_connection,
            ["home: GET /api/v1/namespaces/kube-system", "connection broke", "check that"],
        ),
    ],
    ids=[
        "no such file",
        "no such context",
        "no server listens",
        "credential of another cluster",
        "a server that fails",
        "not an API server",
        "access reviews forbidden",
        "no permissions",
        "the same cluster",
        "a template without namespaces",
        "a connection that breaks",
    ],
)
async def test_each_error_is_one_sentence_and_writes_nothing(
    two: Clusters, change: Break, notified: list[str]
) -> None:
    sentence = await error_of(change(two))
    for words in notified:
        assert words in sentence
    assert "\n" not in sentence
    assert two.writes() == []


def grant(two: Clusters, there: set[str]) -> None:
    """Sets the credential's permissions for ``kubelets`` and ``api``; ``served`` adds a metrics
    API."""

    def authorize(spec: Object) -> bool:
        attributes: Object = spec["resourceAttributes"]
        if attributes.get("subresource") == "proxy":
            return "kubelets" in there
        return "api" in there or attributes["group"] != "metrics.k8s.io"

    async def serve(_: web.Request) -> web.Response:
        return web.json_response({})

    two.remote.api.authorize = authorize
    if "served" in there:
        two.remote.route("GET", "/apis/metrics.k8s.io/v1beta1", serve)


@pytest.mark.parametrize(
    ("choice", "there", "source"),
    [
        ("auto", {"kubelets", "api", "served"}, "kubelets"),
        ("auto", {"api", "served"}, "api"),
        ("auto", {"api"}, "none"),
        ("auto", {"served"}, "none"),
        ("kubelets", {"kubelets"}, "kubelets"),
        ("api", {"kubelets", "api", "served"}, "api"),
        ("none", {"kubelets", "api", "served"}, "none"),
    ],
)
async def test_metrics_source_follows_permissions(
    two: Clusters, choice: MetricsChoice, there: set[str], source: MetricsSource
) -> None:
    grant(two, there)
    messages: list[str] = []
    assert (await check_join(two.but(metrics=choice), messages)).metrics == source
    notified = {
        "kubelets": "its kubelets serve resource metrics",
        "api": "its metrics API serves resource metrics",
        "none": "no resource metrics",
    }
    assert notified[source] in messages[-1]
    is_lost = source == "none" != choice
    assert isinstance(messages[-1], Caveat) is is_lost


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("kubelets", "--metrics kubelets needs the permission to get nodes/proxy"),
        ("api", "permission to list pods.metrics.k8s.io"),
    ],
)
async def test_unusable_configured_metrics_source_is_an_error(
    two: Clusters, choice: MetricsChoice, words: str
) -> None:
    grant(two, {"served"})
    sentence = await error_of(two.but(metrics=choice))
    assert words in sentence
    assert "--metrics auto" in sentence
    assert two.writes() == []


@pytest.mark.parametrize("side", ["home", "remote"])
@pytest.mark.parametrize("path", ["/version", REVIEWS, "*/kube-system"])
async def test_unresponsive_server_is_named_within_limit(
    two: Clusters, side: str, path: str
) -> None:
    api = two.home if side == "home" else two.remote
    api.fail(Fault(path=path, delay=60, times=None))
    async with asyncio.timeout(connection.CONNECT_SECONDS):
        sentence = await error_of(two.settings)
    assert sentence.startswith(f"{side}: ")
    assert f"no answer from {api.url} in time" in sentence
    assert two.writes() == []


async def test_slow_requests_end_within_limit(
    two: Clusters, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions, "REQUEST_SECONDS", 10 * connection.CONNECT_SECONDS)
    home, remote = await client_for(two.home, "home"), await client_for(two.remote, "remote")
    two.remote.fail(Fault(path="*/kube-system", delay=60, times=None))
    limit = f"no answer in {connection.CONNECT_SECONDS:.0f} s, from an API server"
    with pytest.raises(PreflightError, match=limit):
        async with asyncio.timeout(connection.CONNECT_SECONDS + 1):
            await required_at_join.check_join(
                two.settings,
                home=HomeClients.of_account(home, ""),
                remote=remote,
                notify=lambda _: None,
            )


async def test_unresponsive_credential_plugin_names_its_side(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(*_: Any, **__: Any) -> None:
        await asyncio.sleep(10 * connection.CONNECT_SECONDS)

    monkeypatch.setattr(connection, "load", load)
    async with asyncio.timeout(connection.CONNECT_SECONDS + 1):
        sentence = await error_of(two.settings)
    assert sentence.startswith(f"remote: no answer in {connection.CONNECT_SECONDS:.0f} s")
    assert "credential plugin" in sentence
    assert two.home.log == []


def routes(monkeypatch: pytest.MonkeyPatch, known: dict[str, str]) -> None:
    """Sets the local address of this host's route to each host."""
    monkeypatch.setattr(advertised_address, "local_address", known.get)


def put_nodes(api: FakeApi, *addresses: str) -> None:
    for number, address in enumerate(addresses):
        status = {
            "addresses": [
                {"type": "Hostname", "address": f"n{number}"},
                {"type": "InternalIP", "address": address},
            ]
        }
        api.put({**node(f"n{number}"), "status": status})
    api.put(node("silent"))


async def test_bridge_address_is_local_end_of_route_to_home(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes(monkeypatch, {"127.0.0.1": "192.0.2.7"})
    assert (await check_join(two.but(address=None))).address == "192.0.2.7"
    assert two.home.requests("GET", "/api/v1/nodes") == []


async def test_an_api_server_on_loopback_is_in_the_network_of_its_nodes(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_nodes(two.home, "198.51.100.1", "198.51.100.2")
    routes(monkeypatch, {"198.51.100.2": "198.51.100.9"})
    assert (await check_join(two.but(address=None))).address == "198.51.100.9"


async def test_without_list_nodes_the_endpoint_of_the_api_server_is_in_its_network(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes(monkeypatch, {"192.0.2.1": "192.0.2.9"})
    two.home.fail(Fault("GET", "/api/v1/nodes", code=403))
    assert (await check_join(two.but(address=None))).address == "192.0.2.9"


async def test_without_list_nodes_and_endpoints_the_address_is_required(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes(monkeypatch, {})
    two.home.fail(Fault("GET", "/api/v1/nodes", code=403))
    two.home.fail(Fault("GET", "*/endpointslices/kubernetes", code=403))
    assert "name it with --address IP" in await error_of(two.but(address=None))


@pytest.mark.parametrize("addresses", [(), ("198.51.100.1",)], ids=["no nodes", "no route"])
async def test_undeterminable_address_is_an_error(
    two: Clusters, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    put_nodes(two.home, *addresses)
    routes(monkeypatch, {})
    sentence = await error_of(two.but(address=None))
    assert "the API server at 127.0.0.1 reaches this machine" in sentence
    assert "--address IP" in sentence
    assert two.writes() == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "empty..label"])
def test_no_local_address(host: str) -> None:
    assert advertised_address.local_address(host) is None


def test_unknown_host_has_no_local_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert advertised_address.local_address("home.example.test") is None


def test_the_local_end_of_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    class Routed(socket.socket):
        def connect(self, target: Any) -> None:
            assert target == ("198.51.100.1", 9)

        def getsockname(self) -> tuple[str, int]:
            return "198.51.100.9", 40000

    monkeypatch.setattr(socket, "socket", Routed)
    assert advertised_address.local_address("198.51.100.1") == "198.51.100.9"
