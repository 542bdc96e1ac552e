"""`bridge check --pre`: each problem has its finding."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bridge.base.join_settings import JoinSettings, RelaySettings
from bridge.checks import check_runner, cluster_access
from bridge.checks.findings import Report, Severity
from bridge.clusters import pod_network_probe
from bridge.relay.forward import rtnetlink
from sync.kube.credentials import KubeconfigRef
from sync.kube.resources import NAMESPACES, NODES, Object
from tests import objects
from tests.bridge.checks.report_queries import of, one, worse
from tests.bridge.two_clusters import CANARY, Clusters
from tests.fakeapi import Authority, Fault
from tests.fakeapi.kubeconfig import credential, kubeconfig, plugin, write
from tests.objects import node, pod
from tests.sync.engine_harness import NODE
from translators.ownership_labels import (
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    LABEL_HOME,
    LABEL_NODE,
)
from translators.virtual_node_identity import home_id_from_uid

Break = Callable[[Clusters], JoinSettings]


async def checked(settings: JoinSettings) -> Report:
    """All checks before a join; nothing that they say has the credential."""
    found = await check_runner.check_before_join(settings)
    assert CANARY not in str(found.as_data())
    return found


async def test_precheck_passes_for_two_joinable_clusters(two: Clusters) -> None:
    found = await checked(two.settings)
    # A fake server speaks no TLS.
    assert worse(found) == {"BRG105"}
    assert not found.failed
    assert len({it.id for it in found.findings}) > 20
    assert two.writes() == []


# -- what is wrong -------------------------------------------------------------------------


def _replaced(two: Clusters, user: Object, server: str = "") -> JoinSettings:
    path = two.settings.remote.path
    assert path is not None
    write(path, kubeconfig(server or two.remote.url, user=user, context="remote-context"))
    return two.settings


def _token(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.{CANARY}"


def _ends(delta: timedelta) -> float:
    return (datetime.now(UTC) + delta).timestamp()


def _no_file(two: Clusters) -> JoinSettings:
    return two.but(remote=KubeconfigRef(Path("nowhere.yaml")))


def _elsewhere(two: Clusters) -> JoinSettings:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    return _replaced(two, {"token": CANARY}, f"http://127.0.0.1:{port}")


def _revoked(two: Clusters) -> JoinSettings:
    two.remote.token = "another"
    return two.settings


def _expired(two: Clusters) -> JoinSettings:
    return _replaced(two, {"token": _token(exp=1)})


def _expires_soon(two: Clusters) -> JoinSettings:
    return _replaced(two, {"token": _token(exp=_ends(timedelta(hours=1)))})


def _old(two: Clusters) -> JoinSettings:
    two.remote.api.version = "v1.26.9"
    return two.settings


def _newer(two: Clusters) -> JoinSettings:
    two.remote.api.version = "v1.35.0"
    return two.settings


def _itself(two: Clusters) -> JoinSettings:
    return two.but(remote=two.settings.home)


def _not_at_home(two: Clusters) -> JoinSettings:
    two.home.api.authorize = lambda spec: spec["resourceAttributes"]["resource"] != "nodes"
    return two.settings


def _not_in_remote(two: Clusters) -> JoinSettings:
    two.remote.api.authorize = lambda spec: spec["resourceAttributes"]["resource"] != "secrets"
    return two.settings


def _taken(two: Clusters) -> JoinSettings:
    two.home.put(node(NODE))
    return two.settings


def _anothers(two: Clusters) -> JoinSettings:
    taken = node(NODE)
    taken["metadata"]["labels"] = {"cluster-bridge.io/remote": "another"}
    two.home.put(taken)
    return two.settings


def _no_nodes(two: Clusters) -> JoinSettings:
    two.remote.remove(NODES, "worker")
    return two.settings


def _clash(two: Clusters) -> JoinSettings:
    return two.but(template="{namespace}")


def _template(two: Clusters) -> JoinSettings:
    return two.but(template="fixed")


def _left(two: Clusters) -> JoinSettings:
    home = home_id_from_uid(_uid(two))
    left = pod("web")
    left["metadata"] |= _ours(home, "former")
    two.remote.put(left)
    return two.settings


def _uid(two: Clusters) -> str:
    return str(two.home.get(NAMESPACES, "kube-system")["metadata"]["uid"])


def _ours(home: str, node_name: str) -> Object:
    return {
        "labels": {LABEL_HOME: home, LABEL_NODE: node_name},
        "annotations": {
            ANNOTATION_HOME_NAMESPACE: "default",
            ANNOTATION_HOME_NAME: "web",
            ANNOTATION_HOME_UID: "1",
        },
    }


def _no_metrics(two: Clusters) -> JoinSettings:
    two.remote.api.authorize = lambda spec: spec["resourceAttributes"].get("subresource") != "proxy"
    return two.settings


def _quota(two: Clusters) -> JoinSettings:
    labels = {LABEL_HOME: home_id_from_uid(_uid(two)), LABEL_NODE: NODE}
    meta: Object = {"name": "shop-h", "labels": labels, "annotations": {}}
    two.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    two.remote.put(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few", "namespace": "shop-h"},
            "spec": {"hard": {"pods": "1"}},
            "status": {"hard": {"pods": "1"}, "used": {"pods": "1"}},
        }
    )
    return two.settings


CASES: dict[str, tuple[Break, str, Severity, str]] = {
    "no file": (_no_file, "BRG102", Severity.ERROR, "no such file"),
    "not there": (_elsewhere, "BRG101", Severity.ERROR, "onnect"),
    "revoked": (_revoked, "BRG103", Severity.ERROR, "does not accept"),
    "expired": (_expired, "BRG104", Severity.WARNING, "has expired, at 1970-01-01"),
    "expires soon": (_expires_soon, "BRG104", Severity.WARNING, "the token is valid until"),
    "old": (_old, "BRG106", Severity.ERROR, "older than 1.27"),
    "newer": (_newer, "BRG107", Severity.WARNING, "the remote is newer"),
    "itself": (_itself, "BRG109", Severity.ERROR, "is the home cluster itself"),
    "home's rights": (_not_at_home, "BRG201", Severity.ERROR, "create nodes"),
    "the remote's rights": (_not_in_remote, "BRG202", Severity.ERROR, "create secrets"),
    "taken": (_taken, "BRG301", Severity.ERROR, "is not a bridge's"),
    "another's": (_anothers, "BRG301", Severity.ERROR, "another remote"),
    "no nodes": (_no_nodes, "BRG501", Severity.ERROR, "no nodes"),
    "quota": (_quota, "BRG502", Severity.WARNING, "shop-h, quota few: pods"),
    "clash": (_clash, "BRG503", Severity.WARNING, "unmanaged namespaces: default"),
    "template": (_template, "BRG503", Severity.ERROR, "--namespace-template"),
    "left over": (_left, "BRG504", Severity.WARNING, "node former (1 pods"),
    "metrics": (_no_metrics, "BRG505", Severity.WARNING, "no resource metrics"),
}


@pytest.mark.parametrize("case", sorted(CASES))
async def test_each_problem_has_its_finding(two: Clusters, case: str) -> None:
    change, check, severity, said = CASES[case]
    found = await checked(change(two))
    bad = [it for it in of(found, check) if it.severity is severity]
    assert bad, found.rows()
    assert said in bad[0].found
    assert bad[0].advice
    assert found.failed == any(it.severity is Severity.ERROR for it in found.findings)


async def test_unreachable_side_is_not_checked_and_the_other_is(two: Clusters) -> None:
    found = await checked(_elsewhere(two))
    assert one(found, "BRG202").found == "not checked: remote was not reached"
    assert one(found, "BRG201").severity is Severity.OK
    assert {it.severity for it in of(found, "BRG202")} == {Severity.INFO}


async def test_a_check_that_fails_hides_no_other(two: Clusters) -> None:
    two.remote.fail(Fault("GET", "*/nodes", code=500, times=None))
    two.remote.fail(Fault("GET", "*/namespaces", code=403, times=None))
    found = await checked(two.settings)
    assert one(found, "BRG501").severity is Severity.WARNING
    assert "not checked" in one(found, "BRG501").found
    assert "the credential may not" in one(found, "BRG502").found
    assert "have it granted" in one(found, "BRG502").advice
    assert "quota" not in one(found, "BRG502").advice
    assert "check again" in one(found, "BRG501").advice
    assert one(found, "BRG202").severity is Severity.OK


async def test_check_without_response_times_out(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_runner, "CHECK_SECONDS", 0.3)
    two.remote.fail(Fault("GET", "*/nodes", delay=5, times=None))
    found = await checked(two.settings)
    assert one(found, "BRG501").found == "not checked: no answer in 0 s"
    assert one(found, "BRG301").severity is Severity.OK


async def test_clock_skew_is_an_error(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_access, "seconds_ahead", lambda *_: -3700.0)
    found = await checked(two.settings)
    assert {it.severity for it in of(found, "BRG108")} == {Severity.ERROR}
    assert "is 3700 s behind this machine's" in of(found, "BRG108")[0].found


@pytest.mark.parametrize(
    ("date", "ahead"),
    [("Thu, 01 Jan 1970 00:01:40 GMT", 0.5), ("", None), ("yesterday", None)],
    ids=["a date", "none", "no date"],
)
def test_clock_skew_from_date_header(date: str, ahead: float | None) -> None:
    assert cluster_access.seconds_ahead(date, 100.0) == ahead


async def test_a_plugin_s_short_token_renews_itself(two: Clusters, tmp_path: Path) -> None:
    token = _token(exp=_ends(timedelta(minutes=10)))
    two.remote.token = token
    user = plugin(tmp_path / "plugin", credential({"token": token}))
    found = await checked(_replaced(two, user))
    [its] = [it for it in of(found, "BRG104") if it.side == "remote"]
    assert its.severity is Severity.OK
    assert its.found.endswith("and renews itself")


async def test_expiry_of_client_certificate(two: Clusters, authority: Authority) -> None:
    pair = authority.issue("client")
    user = {"client-certificate": str(pair.cert), "client-key": str(pair.key)}
    # Over plain http nobody asks for it, so it is not read either.
    server = two.remote.url.replace("http://", "https://")
    found = await checked(_replaced(two, user, server))
    [its] = [it for it in of(found, "BRG104") if it.side == "remote"]
    assert its.severity is Severity.WARNING
    assert its.found.startswith("the client certificate is valid until")


# -- the network ---------------------------------------------------------------------------


async def test_port_in_use_is_an_error(two: Clusters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        found = await checked(two.but(port=sock.getsockname()[1]))
    assert one(found, "BRG406").severity is Severity.ERROR


async def test_a_range_for_pods(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await checked(two.settings)
    assert of(found, "BRG408") == [], "it is not asked for"
    relay = RelaySettings(address="192.0.2.1", cidr="198.51.100.0/24")
    asked = two.but(network="relay", relay=relay)
    monkeypatch.setattr(rtnetlink, "routes", lambda _: [])
    monkeypatch.setattr(rtnetlink, "can_change_routes", lambda _: True)
    assert "route that range to 192.0.2.1" in one(await checked(asked), "BRG408").found
    monkeypatch.setattr(rtnetlink, "can_change_routes", lambda _: False)
    refused = one(await checked(asked), "BRG408")
    assert refused.severity is Severity.ERROR
    assert "CAP_NET_ADMIN" in refused.found
    assert two.writes() == []


async def test_files_of_a_certificate(two: Clusters, authority: Authority) -> None:
    good = authority.issue("127.0.0.1", address="127.0.0.1")
    found = await checked(two.but(certificate=good.cert, key=good.key))
    # It ends within a day, has the address and not the node's name, and is signed by somebody.
    assert one(found, "BRG402").severity is Severity.WARNING
    assert one(found, "BRG403").found == f"it is not valid for {NODE}"
    assert one(found, "BRG404").found == "signed by CN=fake-ca"
    found = await checked(two.but(certificate=good.key, key=good.cert))
    assert one(found, "BRG402").severity is Severity.ERROR


async def test_pods_are_dialed(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_network_probe, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        _runs(two, "near", "127.0.0.1", port)
        assert one(await checked(two.settings), "BRG405").severity is Severity.OK
    its = one(await checked(two.settings), "BRG405")
    assert (its.severity, "refuse" in its.found) == (Severity.INFO, True)
    _runs(two, "far", "224.0.0.1", 80)  # no address of one machine
    its = one(await checked(two.settings), "BRG405")
    assert its.severity is Severity.WARNING
    assert "no response from 1 of 2 dialed pods: default/far at 224.0.0.1" in its.found
    for asked in ("none", "relay", "auto"):
        its = one(await checked(two.but(network=asked)), "BRG405")
        assert its.severity is Severity.INFO, asked
    assert "--network auto selects relay" in its.found


def _runs(two: Clusters, name: str, address: str, port: int) -> None:
    its = objects.pod(name, node="worker")
    its["spec"]["containers"][0]["ports"] = [{"containerPort": port}]
    ready = {"type": "Ready", "status": "True"}
    its["status"] = {"phase": "Running", "podIP": address, "conditions": [ready]}
    two.remote.put(its)
