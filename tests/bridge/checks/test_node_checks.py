"""`bridge check` of existing nodes."""

from __future__ import annotations

import asyncio
import json
import re
import ssl

import pytest
from aiohttp import web

from bridge.certificates import x509_builder
from bridge.certificates.certificate_kinds import SERVING
from bridge.certificates.signing_request import build_csr, generate_key
from bridge.certificates.tls_key_pair import TlsKeyPair, server_context
from bridge.checks import check_runner
from bridge.checks.check_runner import NodeCheckSettings
from bridge.checks.findings import Report, Severity
from bridge.node import node_object
from sync.kube.api_resources import LEASES, NODES, PODS, Object
from tests.bridge.checks.report_queries import finding_of, findings_of, worse_than
from tests.bridge.running_join import running_join
from tests.bridge.two_clusters import CANARY, Clusters
from tests.fakeapi import CLOSED_PORT, Fault
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.objects import node
from tests.sync.engine_harness import NODE, EngineHarness

pytestmark = pytest.mark.usefixtures("soon")


async def health(two: Clusters, name: str = "") -> Report:
    """Checks all nodes or one; asserts that no finding contains the credential."""
    found = await check_runner.check_nodes(NodeCheckSettings(two.settings.home, name))
    assert CANARY not in str(found.as_data())
    return found


def set_proxy_response(two: Clusters, code: int = 200, why: str = "dial") -> None:
    """Sets home's response to requests that it proxies to the node's kubelet."""

    async def answer(_: web.Request) -> web.Response:
        if code == 200:
            return web.Response(text="ok")
        status = {
            "kind": "Status",
            "code": code,
            "message": f"error trying to reach service: {why}",
            "reason": "Forbidden" if code == 403 else "ServiceUnavailable",
        }
        return web.json_response(status, status=code)

    two.home.route("GET", f"*/nodes/{NODE}/proxy/healthz", answer)


async def test_healthy_node_passes(two: Clusters) -> None:
    set_proxy_response(two)
    async with running_join(two) as run:
        await two.home.until(lambda: ready(two))
        found = await health(two)
    assert worse_than(found) == {"BRG105"}, found.rows()
    assert finding_of(found, "BRG302").severity is Severity.OK
    assert finding_of(found, "BRG303").found.startswith("served by ")
    assert finding_of(found, "BRG304").severity is Severity.OK
    assert finding_of(found, "BRG305").severity is Severity.OK
    assert finding_of(found, "BRG401").found.endswith(f"127.0.0.1:{run.port}")
    assert finding_of(found, "BRG402").severity is Severity.OK
    assert finding_of(found, "BRG403").severity is Severity.OK
    assert finding_of(found, "BRG506").found == "0 of 0 pod(s) are accepted"
    assert {it.node for it in findings_of(found, "BRG302")} == {NODE}


def ready(two: Clusters) -> bool:
    status = (two.home.find(NODES, NODE) or {}).get("status") or {}
    conditions = status.get("conditions") or ()
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)


async def test_health_checks_with_the_settings_that_the_node_records(two: Clusters) -> None:
    """The credential has all permissions; no remote node matches the selector."""
    set_proxy_response(two)
    settings = two.but(node_selector={"pool": "burst"}, metrics="none", service_accounts="none")
    async with running_join(two, settings):
        found = await health(two)
    nodes = finding_of(found, "BRG501")
    assert (nodes.severity, "--node-selector selects" in nodes.found) == (Severity.ERROR, True)
    assert finding_of(found, "BRG505").found == "--metrics none: no resource metrics"
    assert "--service-accounts none" in finding_of(found, "BRG407").found


async def test_health_requires_the_permissions_of_the_recorded_certificate_source(
    two: Clusters,
) -> None:
    record = {"servingCertificate": "csr", "network": "relay", "homeIdentity": "service-account"}
    put_node(two, record=record)
    two.home.api.authorize = lambda spec: (
        spec["resourceAttributes"]["resource"] != "certificatesigningrequests"
    )
    its = finding_of(await health(two), "BRG201")
    assert "create certificatesigningrequests" in its.found
    options = "--home-identity service-account --serving-certificate csr --network relay"
    assert f"bridge rbac home --name {NODE} {options}" in its.advice


async def test_identity_of_an_installed_bridge_is_reported(two: Clusters) -> None:
    for identity, found, hint in (
        ("node", "certificate in Secret bridges/bridge-state-virtual", ""),
        ("service-account", "acts as its own account", "upgrade virtual --home-identity node"),
    ):
        put_node(two, record={"homeIdentity": identity})
        meta = {"annotations": {node_object.ANNOTATION_INSTALLATION: "bridges"}}
        two.home.update(NODES, NODE, {"metadata": meta})
        its = finding_of(await health(two), "BRG206")
        assert found in its.found
        assert hint in its.hint


@pytest.mark.parametrize("value", ["nonsense", 7, None, ["a"], {"a": {"b": "c"}}])
@pytest.mark.parametrize(
    "key", ["network", "metrics", "servingCertificate", "nodeSelector", "homeApiAddress"]
)
async def test_malformed_join_record_counts_as_absent(
    two: Clusters, key: str, value: object
) -> None:
    put_node(two, record={key: value})
    found = await health(two)
    assert finding_of(found, "BRG407").found == "pods find home's API server at 192.0.2.1:6443"
    assert finding_of(found, "BRG501").severity is Severity.OK


def put_node(
    two: Clusters,
    *,
    remote: str = "another",
    image: str = "",
    path: str = "",
    record: Object | None = None,
) -> None:
    its = node(NODE)
    its["metadata"]["labels"] = {"cluster-bridge.io/remote": remote}
    its["metadata"]["annotations"] = {
        "cluster-bridge.io/kubeconfig": path or str(two.settings.remote.path),
        "cluster-bridge.io/context": "remote-context",
        "cluster-bridge.io/home-name": "h",
        "cluster-bridge.io/options": json.dumps(record or {}),
    }
    its["status"] = {
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "RemoteUnreachable", "message": "gone"}
        ],
        "nodeInfo": {"osImage": image},
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
    }
    two.home.put(its)


@pytest.mark.parametrize(
    ("recorded", "severity"),
    [(True, Severity.OK), (False, Severity.WARNING), (None, None), ("no", None)],
)
async def test_noderestriction_is_reported_as_the_join_recorded_it(
    two: Clusters, recorded: object, severity: Severity | None
) -> None:
    put_node(two, record={"homeIdentity": "node", "nodeRestriction": recorded})
    found = findings_of(await health(two), "BRG207")
    assert [it.severity for it in found] == ([severity] if severity else [])


async def test_node_without_serving_bridge(two: Clusters) -> None:
    put_node(two, image="cluster-bridge 0.0.1")
    set_proxy_response(two, 503)
    found = await health(two)
    assert finding_of(found, "BRG302").found == "NotReady, RemoteUnreachable: gone"
    assert finding_of(found, "BRG303").found == "no bridge has an election Lease for the node"
    assert "the bridge is 0.0.1" in finding_of(found, "BRG304").found
    assert "is not the cluster of this node" in finding_of(found, "BRG305").found
    assert "error trying to reach service" in finding_of(found, "BRG401").found
    assert "this machine does not reach" in finding_of(found, "BRG402").found
    assert found.errors == ["BRG302", "BRG303", "BRG305", "BRG401"]


async def test_failed_search_for_the_kubeconfig_hides_no_other_finding(two: Clusters) -> None:
    put_node(two, path="/gone")
    two.home.fail(Fault("GET", "*/clusterrolebindings", code=500, times=None))
    found = await health(two)
    assert any(each.found.startswith("not checked: ") for each in findings_of(found, "BRG102"))
    assert finding_of(found, "BRG302").found == "NotReady, RemoteUnreachable: gone"


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("GET", "*/validatingadmissionpolicybindings", {"items": [{"spec": [1]}]}),
        ("GET", "*/validatingadmissionpolicybindings", {"items": [{"spec": {"policyName": [1]}}]}),
        (
            "GET",
            "*/validatingadmissionpolicybindings",
            {"items": [{"spec": {"validationActions": 1}}]},
        ),
        ("GET", "*/validatingadmissionpolicies", {"items": [{"spec": [1], "status": [1]}]}),
        ("POST", "*/selfsubjectaccessreviews", {"status": [1]}),
        ("POST", "*/selfsubjectaccessreviews", {"status": {"allowed": [1]}}),
    ],
)
async def test_malformed_answer_of_the_remote_hides_no_other_finding(
    two: Clusters, method: str, path: str, answer: Object
) -> None:
    put_node(two)
    for item in answer.get("items", ()):
        item["metadata"] = {"name": "a"}
    raw = json.dumps({"metadata": {}, **answer}).encode()
    two.remote.fail(Fault(method, path, raw=raw, times=None))
    found = await health(two)
    assert findings_of(found, "BRG205")
    assert finding_of(found, "BRG302").found == "NotReady, RemoteUnreachable: gone"


@pytest.mark.parametrize(
    ("part", "replacement"),
    [
        (b"malformed.example", b"\xff" * 17),
        # Two extensions get the same unknown object identifier.
        (b"\x06\x03\x55\x1d[\x11\x25]", b"\x06\x03\x55\x1d\x7f"),
    ],
    ids=["name", "duplicate"],
)
async def test_malformed_certificate_hides_no_other_finding(
    two: Clusters, part: bytes, replacement: bytes
) -> None:
    """The server at the node's address chose it."""
    put_node(two)
    pair = x509_builder.self_signed("n", ["malformed.example"])
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.decode())
    der = re.sub(part, replacement, der)
    malformed = ssl.DER_cert_to_PEM_cert(der).encode()
    context = server_context(TlsKeyPair(malformed, pair.key), client_ca="")
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        status = {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        two.home.update(NODES, NODE, {"status": status})
        found = await health(two)
    assert "extensions are malformed" in finding_of(found, "BRG402").found
    assert finding_of(found, "BRG402").severity is Severity.ERROR
    assert finding_of(found, "BRG302").found == "NotReady, RemoteUnreachable: gone"


async def test_address_that_no_host_can_have_is_not_reached(two: Clusters) -> None:
    put_node(two)
    addresses = [{"type": "InternalIP", "address": "a..b"}]
    two.home.update(NODES, NODE, {"status": {"addresses": addresses}})
    found = await health(two)
    assert finding_of(found, "BRG402").found == "not checked: this machine does not reach a..b:1"


async def test_each_node_without_a_bridge_is_reported_with_the_ways_out(two: Clusters) -> None:
    """Such as one whose Deployment was removed; nothing of its bridge is left but the Node."""
    dropped = node("dropped")
    dropped["metadata"]["labels"] = {"cluster-bridge.io/remote": "another"}
    dropped["metadata"]["annotations"] = {
        "cluster-bridge.io/kubeconfig": "/etc/cluster-bridge/kubeconfig"
    }
    dropped["status"] = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    two.home.put(dropped)
    set_proxy_response(two)
    async with running_join(two):
        await two.home.until(lambda: ready(two))
        found = await health(two)
    served, unserved = sorted(
        findings_of(found, "BRG303"), key=lambda finding: finding.node == "dropped"
    )
    assert (served.node, served.severity) == (NODE, Severity.OK)
    assert (unserved.node, unserved.severity) == ("dropped", Severity.ERROR)
    assert "to the chart's list" in unserved.advice
    assert "`bridge leave NODE`" in unserved.advice


UNTRUSTED = "tls: failed to verify certificate: x509: certificate signed by unknown authority"


async def test_node_that_a_cloud_controller_would_delete(two: Clusters) -> None:
    async with running_join(two):
        assert finding_of(await health(two), "BRG307").severity is Severity.OK
    for provider, text in ((None, "no provider id"), ("aws:///zone/i-1", "aws:///zone/i-1")):
        two.home.update(NODES, NODE, {"spec": {"providerID": provider}})
        found = finding_of(await health(two), "BRG307")
        assert found.severity is Severity.WARNING
        assert text in found.found


async def test_rejected_self_signed_certificate_has_a_remedy(two: Clusters) -> None:
    """BRG404 agrees with BRG401: home's API server verifies the certificate."""
    set_proxy_response(two, 503, UNTRUSTED)
    async with running_join(two, two.but(serving="self-signed")):
        found = await health(two)
    its = finding_of(found, "BRG401")
    assert its.severity is Severity.ERROR
    assert "verifies the certificate" in its.found
    assert "signed by unknown authority" in its.found
    assert "join without --serving-certificate self-signed" in its.advice
    assert "firewall" not in its.advice
    its = finding_of(found, "BRG404")
    assert (its.severity, its.found) == (
        Severity.ERROR,
        "it is self-signed, and home's API server verifies it",
    )


async def test_accepted_self_signed_certificate_is_reported_as_unverified(two: Clusters) -> None:
    set_proxy_response(two)
    async with running_join(two):
        found = await health(two)
    assert finding_of(found, "BRG404").found.endswith("home's API server does not verify it")


@pytest.mark.parametrize("may_list", [True, False])
@pytest.mark.parametrize("source", ["auto", "csr"])
async def test_pending_certificate_names_the_approve_command(
    two: Clusters, may_list: bool, source: str
) -> None:
    put_node(two, record={"servingCertificate": source})
    set_proxy_response(two, 503, UNTRUSTED)
    for name in (NODE, "another"):
        two.home.put(build_csr(SERVING, generate_key(), name, ["127.0.0.1"]))
    if not may_list:
        two.home.fail(Fault("GET", "*/certificatesigningrequests", code=403, times=None))
    advice = finding_of(await health(two), "BRG401").advice
    expected = f"kubectl certificate approve kubelet-serving-{NODE}-" if may_list else "get csr"
    assert expected in advice
    assert "another" not in advice


async def test_rejected_certificate_files_have_a_remedy(two: Clusters) -> None:
    put_node(two, record={"servingCertificate": "files"})
    set_proxy_response(two, 503, UNTRUSTED)
    assert "replace --tls-cert-file" in finding_of(await health(two), "BRG401").advice


async def test_missing_permission_for_node_proxy_is_not_checked(two: Clusters) -> None:
    put_node(two)
    set_proxy_response(two, 403)
    its = finding_of(await health(two), "BRG401")
    assert (its.severity, "may not get nodes/proxy" in its.found) == (Severity.INFO, True)


async def test_home_is_checked_without_the_remote_kubeconfig(two: Clusters) -> None:
    put_node(two, path="/nowhere/remote.yaml")
    found = await health(two)
    [its] = [it for it in findings_of(found, "BRG102") if it.side == "remote"]
    assert its.severity is Severity.INFO
    assert its.advice == "name it with --kubeconfig"
    assert finding_of(found, "BRG501").found == "not checked: remote was not reached"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("", "home has no virtual node"), ("other", "home has no node other")],
    ids=["none", "not this one"],
)
async def test_home_without_the_node_is_an_error(two: Clusters, name: str, expected: str) -> None:
    its = finding_of(await health(two, name), "BRG301")
    assert (its.severity, its.found) == (Severity.ERROR, expected)


async def test_credential_that_may_read_one_node_gets_the_hint_to_name_it(two: Clusters) -> None:
    """As a bridge's own account at home."""
    put_node(two)
    two.home.fail(Fault("GET", NODES.path(), code=403, times=None))
    its = finding_of(await health(two), "BRG301")
    assert its.skipped.startswith("the credential may not list nodes at home")
    assert its.advice == "name the virtual node: `bridge check NODE`"
    named = finding_of(await health(two, NODE), "BRG301")
    assert named.severity is Severity.OK


async def test_unmanaged_node_is_an_error(two: Clusters) -> None:
    two.home.put(node("machine"))
    assert "is not a bridge's" in finding_of(await health(two, "machine"), "BRG301").found


async def test_unreachable_home_is_the_only_finding(two: Clusters) -> None:
    path = two.settings.home.path
    assert path is not None
    write(path, kubeconfig(f"http://127.0.0.1:{CLOSED_PORT}", user={"token": CANARY}))
    found = await health(two)
    assert found.errors == ["BRG101"]


async def test_waiting_pods_are_grouped_by_reason(two: Clusters) -> None:
    put_node(two)
    harness = EngineHarness(two.home, two.remote)
    waiting = {"a": "FieldRefused", "b": "RemoteClash", "c": "", "proxy": "DaemonSetSkipped"}
    for name, reason in waiting.items():
        harness.pod(name)
        if reason:
            two.home.update(PODS, name, {"status": _waits(reason)}, "default")
    two.home.put(_event("FieldDropped", "c"))
    two.home.put(_event("Scheduled", "a"))
    found = await health(two)
    pods = {(it.severity, it.found) for it in findings_of(found, "BRG506")}
    assert pods == {
        (Severity.WARNING, "1 pod(s) wait, FieldRefused: default/a: do this"),
        (Severity.INFO, "FieldDropped: default/c; see kubectl describe pod"),
        (Severity.INFO, "1 pod(s) of DaemonSets are skipped, see BRG507: default/proxy"),
        (Severity.INFO, "1 of 4 pod(s) are accepted"),
    }
    clash = finding_of(found, "BRG503")
    assert (clash.severity, "default/b" in clash.found) == (Severity.ERROR, True)


def _waits(reason: str) -> Object:
    accepted = {"type": "cluster-bridge.io/Accepted", "status": "False"}
    return {"reason": reason, "message": "do this", "conditions": [accepted]}


def _event(reason: str, name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{reason.lower()}", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": name},
        "reason": reason,
        "source": {"component": "cluster-bridge", "host": NODE},
    }


async def test_bridge_clock_ahead_is_a_warning(two: Clusters) -> None:
    put_node(two)
    two.home.put(
        {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": NODE, "namespace": "kube-node-lease"},
            "spec": {"renewTime": "2099-01-01T00:00:00.000000Z"},
        }
    )
    bad = [it for it in findings_of(await health(two), "BRG108") if it.severity is Severity.WARNING]
    assert "the clock of the bridge's machine is" in bad[0].found
