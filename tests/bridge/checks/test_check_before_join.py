"""`bridge check --pre`: each problem has its finding."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bridge.base.join_settings import JoinSettings, RelaySettings
from bridge.checks import check_runner, cluster_access
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, Report, Severity
from bridge.relay.forward import rtnetlink
from sync.kube.api_resources import NAMESPACES, NODES, Object
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests import objects
from tests.bridge import malformed_versions
from tests.bridge.checks.report_queries import finding_of, findings_of, worse_than
from tests.bridge.two_clusters import CANARY, Clusters, tls_api
from tests.fakeapi import CLOSED_PORT, Authority, FakeApi, Fault
from tests.fakeapi.account_tokens import NAME, NAMESPACE, account_token
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
    """Runs all checks before a join; asserts that no finding contains the credential."""
    found = await check_runner.check_before_join(settings)
    assert CANARY not in str(found.as_data())
    return found


async def test_precheck_passes_for_two_joinable_clusters(two: Clusters) -> None:
    found = await checked(two.settings)
    # A fake server speaks no TLS.
    assert worse_than(found) == {"BRG105"}
    assert not found.failed
    assert len({it.id for it in found.findings}) > 20
    assert two.writes() == []


@pytest.fixture
async def remote_api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    """An API server with TLS, which a kubeconfig's credential needs."""
    async with tls_api(tmp_path) as server:
        yield server


def _replaced(two: Clusters, user: Object, server: str = "") -> JoinSettings:
    path = two.settings.remote.path
    assert path is not None
    cluster = {"certificate-authority": "fake-ca.crt"}
    write(
        path,
        kubeconfig(server or two.remote.url, user=user, cluster=cluster, context="remote-context"),
    )
    return two.settings


def _token(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.{CANARY}"


def _ends(delta: timedelta) -> float:
    return (datetime.now(UTC) + delta).timestamp()


def _no_file(two: Clusters) -> JoinSettings:
    return two.but(remote=KubeconfigRef(Path("nowhere.yaml")))


def _unreachable(two: Clusters) -> JoinSettings:
    return _replaced(two, {"token": CANARY}, f"http://127.0.0.1:{CLOSED_PORT}")


def _revoked(two: Clusters) -> JoinSettings:
    two.remote.token = "another"
    return two.settings


def _expired(two: Clusters) -> JoinSettings:
    return _replaced(two, {"token": _token(exp=1)})


def _expires_soon(two: Clusters) -> JoinSettings:
    return _replaced(two, {"token": _token(exp=_ends(timedelta(hours=1)))})


def _old_remote_version(two: Clusters) -> JoinSettings:
    two.remote.api.version = "v1.26.9"
    return two.settings


def _newer_remote_version(two: Clusters) -> JoinSettings:
    two.remote.api.version = "v1.35.0"
    return two.settings


def _remote_is_home(two: Clusters) -> JoinSettings:
    return two.but(remote=two.settings.home)


def _missing_home_permissions(two: Clusters) -> JoinSettings:
    two.home.api.authorize = lambda spec: spec["resourceAttributes"]["resource"] != "nodes"
    return two.settings


def _missing_remote_permissions(two: Clusters) -> JoinSettings:
    two.remote.api.authorize = lambda spec: spec["resourceAttributes"]["resource"] != "secrets"
    return two.settings


def _home_name_taken(two: Clusters) -> JoinSettings:
    two.home.put(node(NODE))
    return two.settings


def _node_of_another_home(two: Clusters) -> JoinSettings:
    taken = node(NODE)
    taken["metadata"]["labels"] = {"cluster-bridge.io/remote": "another"}
    two.home.put(taken)
    return two.settings


def _no_nodes(two: Clusters) -> JoinSettings:
    two.remote.remove(NODES, "worker")
    return two.settings


def _namespace_clash(two: Clusters) -> JoinSettings:
    return two.but(template="{namespace}")


def _template(two: Clusters) -> JoinSettings:
    return two.but(template="fixed")


def _leftover_node(two: Clusters) -> JoinSettings:
    home = home_id_from_uid(_uid_of(two))
    left = pod("web")
    left["metadata"] |= _ours(home, "previous")
    two.remote.put(left)
    return two.settings


def _uid_of(two: Clusters) -> str:
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
    labels = {LABEL_HOME: home_id_from_uid(_uid_of(two)), LABEL_NODE: NODE}
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
    "not there": (_unreachable, "BRG101", Severity.ERROR, "onnect"),
    "revoked": (_revoked, "BRG103", Severity.ERROR, "does not accept"),
    "expired": (_expired, "BRG104", Severity.WARNING, "has expired, at 1970-01-01"),
    "expires soon": (_expires_soon, "BRG104", Severity.WARNING, "the token is valid until"),
    "old": (_old_remote_version, "BRG106", Severity.ERROR, "older than 1.27"),
    "newer": (_newer_remote_version, "BRG107", Severity.WARNING, "the remote is newer"),
    "itself": (_remote_is_home, "BRG109", Severity.ERROR, "is the home cluster itself"),
    "home's permissions": (_missing_home_permissions, "BRG201", Severity.ERROR, "patch nodes"),
    "the remote's permissions": (
        _missing_remote_permissions,
        "BRG202",
        Severity.ERROR,
        "create secrets",
    ),
    "taken": (_home_name_taken, "BRG301", Severity.ERROR, "is not a bridge's"),
    "another's": (_node_of_another_home, "BRG301", Severity.ERROR, "another remote"),
    "no nodes": (_no_nodes, "BRG501", Severity.ERROR, "no nodes"),
    "quota": (_quota, "BRG502", Severity.WARNING, "shop-h, quota few: pods"),
    "clash": (_namespace_clash, "BRG503", Severity.WARNING, "unmanaged namespaces: default"),
    "template": (_template, "BRG503", Severity.ERROR, "--namespace-template"),
    "left over": (_leftover_node, "BRG504", Severity.WARNING, "node previous (1 pods"),
    "metrics": (_no_metrics, "BRG505", Severity.WARNING, "no resource metrics"),
}


@pytest.mark.parametrize("case", sorted(CASES))
async def test_each_problem_has_its_finding(two: Clusters, case: str) -> None:
    change, check, severity, message = CASES[case]
    found = await checked(change(two))
    bad = [it for it in findings_of(found, check) if it.severity is severity]
    assert bad, found.rows()
    assert message in bad[0].found
    assert bad[0].advice
    assert found.failed == any(it.severity is Severity.ERROR for it in found.findings)


async def test_unreachable_side_is_not_checked_and_the_other_is(two: Clusters) -> None:
    found = await checked(_unreachable(two))
    assert finding_of(found, "BRG202").found == "not checked: remote was not reached"
    assert finding_of(found, "BRG201").severity is Severity.OK
    assert {it.severity for it in findings_of(found, "BRG202")} == {Severity.INFO}


async def test_failing_check_hides_no_other(two: Clusters) -> None:
    two.remote.fail(Fault("GET", "*/nodes", code=500, times=None))
    two.remote.fail(Fault("GET", "*/namespaces", code=403, times=None))
    found = await checked(two.settings)
    assert finding_of(found, "BRG501").severity is Severity.WARNING
    assert "not checked" in finding_of(found, "BRG501").found
    assert "the credential may not" in finding_of(found, "BRG502").found
    assert "have it granted" in finding_of(found, "BRG502").advice
    assert "quota" not in finding_of(found, "BRG502").advice
    assert "check again" in finding_of(found, "BRG501").advice
    assert finding_of(found, "BRG202").severity is Severity.OK


async def test_defect_of_one_check_hides_no_other(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: CheckContext) -> list[Finding]:
        raise KeyError(CANARY)

    implementations = (Implementation("BRG601", broken, ("remote",)), *check_runner.IMPLEMENTATIONS)
    monkeypatch.setattr(check_runner, "IMPLEMENTATIONS", implementations)
    found = await checked(two.settings)
    [its] = [finding for finding in findings_of(found, "BRG601") if "defect" in finding.found]
    assert its.severity is Severity.WARNING
    assert its.found.startswith("not checked: a defect in the bridge: KeyError in ")
    assert its.advice == "please report it"
    assert finding_of(found, "BRG202").severity is Severity.OK


@pytest.mark.parametrize("version", malformed_versions.JSON, ids=malformed_versions.IDS)
async def test_malformed_version_counts_as_unknown(two: Clusters, version: bytes) -> None:
    raw = b'{"gitVersion":%s}' % version
    two.remote.fail(Fault("GET", "/version", raw=raw, times=None))
    found = await checked(two.settings)
    [its] = [finding for finding in findings_of(found, "BRG106") if finding.side == "remote"]
    assert its.severity is Severity.WARNING
    assert its.found == "no version: an unknown version, not tested"
    assert "a version is unknown" in finding_of(found, "BRG107").found


async def test_check_without_response_times_out(two: Clusters) -> None:
    seconds = check_runner.CHECK_SECONDS
    two.remote.fail(Fault("GET", "*/nodes", delay=2 * seconds, times=None))
    found = await checked(two.settings)
    assert finding_of(found, "BRG501").found == f"not checked: no answer in {seconds:.0f} s"
    assert finding_of(found, "BRG301").severity is Severity.OK


async def test_clock_skew_is_an_error(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_access, "seconds_ahead", lambda *_: -3700.0)
    found = await checked(two.settings)
    assert {it.severity for it in findings_of(found, "BRG108")} == {Severity.ERROR}
    assert "is 3700 s behind this machine's" in findings_of(found, "BRG108")[0].found


@pytest.mark.parametrize(
    ("date", "ahead"),
    [("Thu, 01 Jan 1970 00:01:40 GMT", 0.5), (None, None), ("yesterday", None)],
    ids=["a date", "none", "no date"],
)
def test_clock_skew_from_date_header(date: str | None, ahead: float | None) -> None:
    assert cluster_access.seconds_ahead(date, 100.0) == ahead


async def test_short_lived_plugin_token_is_no_finding(two: Clusters, tmp_path: Path) -> None:
    token = _token(exp=_ends(timedelta(minutes=10)))
    two.remote.token = token
    user = plugin(tmp_path / "plugin", credential({"token": token}))
    found = await checked(_replaced(two, user))
    [its] = [it for it in findings_of(found, "BRG104") if it.side == "remote"]
    assert its.severity is Severity.OK
    assert its.found.endswith("and renews itself")


@pytest.mark.parametrize("may_renew", [True, False])
async def test_short_lived_account_token_is_no_finding_where_the_bridge_may_renew_it(
    two: Clusters, may_renew: bool
) -> None:
    two.remote.api.authorize = lambda spec: (
        may_renew or spec["resourceAttributes"].get("subresource") != "token"
    )
    two.remote.put(objects.service_account(NAME, namespace=NAMESPACE))
    token = account_token(datetime.now(UTC), timedelta(hours=1))
    found = await checked(_replaced(two, {"token": token}))
    [its] = [it for it in findings_of(found, "BRG104") if it.side == "remote"]
    assert its.severity is (Severity.OK if may_renew else Severity.WARNING)
    assert its.found.endswith("and the bridge renews it") is may_renew
    assert two.remote.writes() == []


async def test_account_token_that_never_expires_is_a_warning_in_the_remote(two: Clusters) -> None:
    found = await checked(_replaced(two, {"token": account_token()}))
    [its] = [it for it in findings_of(found, "BRG104") if it.side == "remote"]
    assert its.severity is Severity.WARNING
    assert its.found == "the token of ServiceAccount cluster-bridge/cluster-bridge never expires"
    assert "`kubectl create token cluster-bridge -n cluster-bridge --duration 24h`" in its.advice


async def test_expiry_of_client_certificate(two: Clusters, authority: Authority) -> None:
    pair = authority.issue("client")
    user = {"client-certificate": str(pair.cert), "client-key": str(pair.key)}
    found = await checked(_replaced(two, user))
    [its] = [it for it in findings_of(found, "BRG104") if it.side == "remote"]
    assert its.severity is Severity.WARNING
    assert its.found.startswith("the client certificate is valid until")


async def test_port_in_use_is_an_error(two: Clusters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        found = await checked(two.but(port=sock.getsockname()[1]))
    assert finding_of(found, "BRG406").severity is Severity.ERROR


async def test_relay_cidr_is_checked(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await checked(two.settings)
    assert findings_of(found, "BRG408") == [], "no relay is requested"
    relay = RelaySettings(address="192.0.2.1", cidr="198.51.100.0/24")
    settings = two.but(network="relay", relay=relay)
    monkeypatch.setattr(rtnetlink, "routes", lambda _: [])
    monkeypatch.setattr(rtnetlink, "can_change_routes", lambda _: True)
    assert "route that range to 192.0.2.1" in finding_of(await checked(settings), "BRG408").found
    monkeypatch.setattr(rtnetlink, "can_change_routes", lambda _: False)
    refused = finding_of(await checked(settings), "BRG408")
    assert refused.severity is Severity.ERROR
    assert "CAP_NET_ADMIN" in refused.found
    assert two.writes() == []


async def test_certificate_files_are_checked(two: Clusters, authority: Authority) -> None:
    good = authority.issue("127.0.0.1", address="127.0.0.1")
    found = await checked(two.but(certificate=good.cert, key=good.key))
    # It expires within a day, has the address but not the node's name, and has an unknown issuer.
    assert finding_of(found, "BRG402").severity is Severity.WARNING
    assert finding_of(found, "BRG403").found == f"it is not valid for {NODE}"
    assert finding_of(found, "BRG404").found == "signed by CN=fake-ca"
    found = await checked(two.but(certificate=good.key, key=good.cert))
    assert finding_of(found, "BRG402").severity is Severity.ERROR


async def test_pod_network_is_probed_by_dialing_pods(two: Clusters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        _runs(two, "near", "127.0.0.1", port)
        assert finding_of(await checked(two.settings), "BRG405").severity is Severity.OK
    its = finding_of(await checked(two.settings), "BRG405")
    assert (its.severity, "refuse" in its.found) == (Severity.INFO, True)
    _runs(two, "far", "224.0.0.1", 80)  # no address of one machine
    its = finding_of(await checked(two.settings), "BRG405")
    assert its.severity is Severity.WARNING
    assert "no response from 1 of 2 dialed pods: default/far at 224.0.0.1" in its.found
    for network in ("none", "relay", "auto"):
        its = finding_of(await checked(two.but(network=network)), "BRG405")
        assert its.severity is Severity.INFO, network
    assert "pod networks: none (not probed: no response from" in its.found


async def test_flat_network_without_a_limit_suggests_the_option(two: Clusters) -> None:
    its = finding_of(await checked(two.settings), "BRG409")
    assert (its.severity, "--remote-pod-cidr limits" in its.found) == (Severity.INFO, True)
    its = finding_of(await checked(two.but(remote_pod_cidrs=("10.1.0.0/16",))), "BRG409")
    assert (its.severity, "outside of 10.1.0.0/16" in its.found) == (Severity.OK, True)
    assert findings_of(await checked(two.but(network="none")), "BRG409") == []


def _runs(two: Clusters, name: str, address: str, port: int) -> None:
    its = objects.pod(name, node="worker")
    its["spec"]["containers"][0]["ports"] = [{"containerPort": port}]
    ready = {"type": "Ready", "status": "True"}
    its["status"] = {"phase": "Running", "podIP": address, "conditions": [ready]}
    two.remote.put(its)
