"""A whole join between two fake clusters, until it stops or fails."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.app import kubelet_api_setup, replica_handover
from bridge.base.command_error import PreflightError
from bridge.base.consent import Consent
from bridge.certificates import home_client_ca
from bridge.certificates.tls_key_pair import CertificateError
from bridge.kubelet.server import ListenError
from bridge.node import node_object
from bridge.node.node_controller import NodeController, NodeTaken
from bridge.node.node_lease import LEASE_NAMESPACE
from sync.base.exception_summary import first_leaf
from sync.engine.engine import Engine
from sync.kube import in_cluster
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, LEASES, NODES, PODS
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.namespaces.remote_namespace_creation import NamespaceMappingError
from tests.bridge.bad_certificate_client import reject_certificate
from tests.bridge.kubelet.pki import Pki
from tests.bridge.running_join import (
    SOON,
    RunningJoin,
    kubelet_api_client,
    running_join,
    start_join,
)
from tests.bridge.two_clusters import CANARY, Clusters, put_worker
from tests.fakeapi import Authority, FakeApi
from tests.fakeapi.account_tokens import NAME, NAMESPACE, account_token
from tests.fakeapi.csr_signer import Signer
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.fakeapi.tokens import PREFIX
from tests.objects import config_map, node, pod, service_account
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE, EngineHarness
from translators.capacity.node_capacity import OfferLimits
from translators.ownership_labels import ANNOTATION_ACCEPTS
from translators.timestamps import parse_time

pytestmark = pytest.mark.usefixtures("soon")


def holder(api: FakeApi) -> str | None:
    """The holder of the node's Lease."""
    found: str | None = api.get(LEASES, NODE, LEASE_NAMESPACE)["spec"].get("holderIdentity")
    return found


def sockets() -> set[str]:
    """The open sockets of this process."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # for example the descriptor of the folder itself
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


async def ended(two: Clusters, **changes: Any) -> BaseException:
    """The error of a join that fails."""
    run = start_join(two.but(**changes))
    with pytest.raises((Exception, ExceptionGroup)) as caught:
        async with asyncio.timeout(SOON):
            await run.task
    return first_leaf(caught.value)


async def test_join_registers_the_node_and_runs_and_serves_its_pods(two: Clusters) -> None:
    harness = EngineHarness(two.home, two.remote)
    async with running_join(two) as run:
        made = two.home.get(NODES, NODE)
        assert made["status"]["capacity"]["cpu"] == "4"
        assert made["status"]["addresses"][0] == {"type": "InternalIP", "address": "127.0.0.1"}
        assert made["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == run.port
        assert holder(two.home) == NODE
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        harness.report_running("web")
        await two.home.until(lambda: harness.status("web").get("phase") == "Running")
        async with kubelet_api_client(run) as session, session.get("/pods") as answer:
            (listed,) = (await answer.json())["items"]
        assert listed["metadata"]["name"] == "web"
        assert run.reports[-1].startswith(f"home: node {NODE} is registered")
    assert CANARY not in str(run.reports)


async def test_kubelet_api_listens_before_the_node_has_its_port(two: Clusters) -> None:
    async with running_join(two) as run:
        pass
    steps = [line.partition(" ")[2].split(" ")[0] for line in run.reports]
    assert steps == [
        two.remote.url,
        two.home.url,
        "the",
        "all",
        "all",
        "pods",
        "home",
        "its",
        "pods",
        "any",
        "pods",
        "its",
        "kubelet",
        "the",
        "node",
    ]


async def test_kubeconfig_annotation_is_absolute(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two.settings.remote.path
    assert path is not None
    monkeypatch.chdir(path.parent)
    async with running_join(two, two.but(remote=KubeconfigRef(Path(path.name)))):
        pass
    remembered = two.home.get(NODES, NODE)["metadata"]["annotations"]
    assert remembered[node_object.ANNOTATION_KUBECONFIG] == str(path)
    assert remembered[node_object.ANNOTATION_CONTEXT] == "remote-context"


async def test_node_has_the_namespace_of_the_installation(
    two: Clusters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(CANARY)
    (folder / "namespace").write_text("bridges\n")
    Authority(folder, "ca")
    monkeypatch.setattr(in_cluster, "FOLDER", folder)
    monkeypatch.setattr(in_cluster, "server", lambda: two.home.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    async with running_join(two, two.but(home=KubeconfigRef())):
        pass
    recorded = two.home.get(NODES, NODE)["metadata"]["annotations"]
    assert recorded[node_object.ANNOTATION_INSTALLATION] == "bridges"
    async with running_join(two):
        pass
    recorded = two.home.get(NODES, NODE)["metadata"]["annotations"]
    assert recorded[node_object.ANNOTATION_INSTALLATION] == ""


async def test_two_virtual_nodes_represent_two_node_pools(two: Clusters) -> None:
    for name, cpu in (("worker", "4"), ("other", "8"), ("no-pool", "16")):
        put_worker(two.remote, name, cpu=cpu)
    two.remote.update(NODES, "worker", {"metadata": {"labels": {"pool": "a"}}})
    two.remote.update(NODES, "other", {"metadata": {"labels": {"pool": "b"}}})
    settings = [two.but(name=f"node-{pool}", node_selector={"pool": pool}) for pool in ("a", "b")]
    async with running_join(two, settings[0]), running_join(two, settings[1]):
        for node_name, cpu in (("node-a", "4"), ("node-b", "8")):
            assert two.home.get(NODES, node_name)["status"]["capacity"]["cpu"] == cpu
            two.home.put(pod(f"on-{node_name}", node=node_name))
        for pool in ("a", "b"):
            name = f"on-node-{pool}"
            await two.remote.until(partial(two.remote.find, PODS, name, REMOTE_NAMESPACE))
            spec = two.remote.get(PODS, name, REMOTE_NAMESPACE)["spec"]
            assert spec["nodeSelector"] == {"pool": pool}
        two.remote.update(NODES, "other", {"metadata": {"labels": {"pool": "a"}}})
        await two.home.until(
            lambda: two.home.get(NODES, "node-a")["status"]["capacity"]["cpu"] == "12"
        )
        await two.home.until(lambda: not two.home.get(NODES, "node-b")["status"].get("capacity"))


async def test_node_capacity_follows_quotas_and_unmanaged_pods(two: Clusters) -> None:
    theirs = pod("theirs", node="worker")
    theirs["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    two.remote.put(theirs)
    two.remote.put(pod("ended", node="worker"))
    two.remote.update(PODS, "ended", {"status": {"phase": "Failed"}}, "default")
    async with running_join(
        two, two.but(limits=OfferLimits(share=Fraction(1, 2)), accept_namespaces=("x",))
    ):
        status = two.home.get(NODES, NODE)["status"]
        assert (status["capacity"]["cpu"], status["allocatable"]["cpu"]) == ("4", "1500m")
        assert status["allocatable"]["pods"] == "54"
        two.remote.remove(PODS, "theirs", "default")
        await two.home.until(
            lambda: two.home.get(NODES, NODE)["status"]["allocatable"]["cpu"] == "2"
        )
        accepts = {"name": "x", "annotations": {ANNOTATION_ACCEPTS: "*"}}
        two.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": accepts})
        quota = {"name": "q", "namespace": "x"}
        two.remote.put(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": quota,
                "spec": {"hard": {"pods": "3"}},
            }
        )
        await two.home.until(
            lambda: two.home.get(NODES, NODE)["status"]["allocatable"]["pods"] == "3"
        )
        kinds = [it["type"] for it in two.home.get(NODES, NODE)["status"]["conditions"]]
        assert node_object.CONDITION_QUOTA in kinds


async def test_annotation_has_all_files_of_the_kubeconfig_variable(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two.settings.remote.path
    assert path is not None
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([path.name, "absent.yaml"]))
    async with running_join(two, two.but(remote=KubeconfigRef())):
        pass
    remembered = two.home.get(NODES, NODE)["metadata"]["annotations"]
    files = [str(path), str(path.with_name("absent.yaml"))]
    assert remembered[node_object.ANNOTATION_KUBECONFIG] == os.pathsep.join(files)


async def test_stop_leaves_no_task_socket_or_held_lease(two: Clusters) -> None:
    harness = EngineHarness(two.home, two.remote)
    tasks, open_before = asyncio.all_tasks(), sockets()
    async with running_join(two) as run:
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        port = run.port
    # The fake servers' tasks remain, for connections that were closed just now.
    await two.home.until(lambda: asyncio.all_tasks() <= tasks | {asyncio.current_task()})
    await two.home.until(lambda: sockets() <= open_before)
    assert holder(two.home) is None
    assert harness.remote_pod("web")
    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_stop_does_not_wait_for_an_unreachable_home(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_handover, "RELEASE_SECONDS", 0.1)
    async with running_join(two):
        two.home.pause()
    two.home.resume()


async def test_stop_does_not_wait_for_an_open_stream(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_api_setup, "STREAMS_SECONDS", 0.1)
    harness = EngineHarness(two.home, two.remote)
    following = asyncio.Event()

    async def log(request: Any) -> Any:
        following.set()
        await asyncio.sleep(60)

    two.remote.route("GET", "*/pods/web/log", log)
    async with running_join(two) as run:
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        async with kubelet_api_client(run) as session:
            path = "/containerLogs/default/web/main?follow=true"
            request = asyncio.ensure_future(session.get(path))
            async with asyncio.timeout(SOON):
                await following.wait()
            await run.end()
            await asyncio.gather(request, return_exceptions=True)


async def test_stop_before_registration_creates_no_node(two: Clusters) -> None:
    run = start_join(two.settings)
    await run.end()
    assert two.writes() == []


async def test_rejoin_adopts_running_pods(two: Clusters) -> None:
    harness = EngineHarness(two.home, two.remote)
    async with running_join(two):
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        harness.report_running("web")
        await two.home.until(lambda: harness.status("web").get("phase") == "Running")
    before = harness.remote_pod("web")
    harness.clear_logs()
    async with running_join(two):
        assert holder(two.home) == NODE
        await asyncio.sleep(0.05)
    assert harness.remote_pod("web") == before
    assert [it for it in two.remote.writes() if "/leases" not in it.path] == []


async def test_certificate_signed_by_home_is_used_without_a_restart(
    two: Clusters, tmp_path: Path
) -> None:
    signer = Signer(two.home)
    settings = two.but(serving="csr", cert_dir=tmp_path / "serving")
    async with running_join(two, settings) as run:
        assert any("self-signed until home has signed one" in line for line in run.reports)
        signer.approve(await signer.requested())
        await run.wait_for_report("certificate is signed by home")
        context = ssl.create_default_context(cadata=signer.ca)
        context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
        for name in ("127.0.0.1", NODE):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", run.port, ssl=context, server_hostname=name
            )
            writer.close()
    async with running_join(two, settings) as run:
        assert any("certificate is signed by home" in line for line in run.reports)


def recorded_certificate(two: Clusters) -> object:
    annotations = two.home.get(NODES, NODE)["metadata"]["annotations"]
    return (
        json.loads(annotations["cluster-bridge.io/options"])["servingCertificate"],
        annotations.get("cluster-bridge.io/cert-dir"),
    )


async def test_rejected_certificate_is_replaced_by_one_of_home(
    two: Clusters, tmp_path: Path
) -> None:
    signer, folder = Signer(two.home), tmp_path / "serving"
    settings = two.but(cert_dir=folder)
    async with running_join(two, settings) as run:
        assert recorded_certificate(two) == ("auto", None)
        assert not signer.requests()
        await reject_certificate(run.port)
        name = await signer.requested()
        await run.wait_for_report(f"kubectl certificate approve {name}")
        await two.home.until(lambda: recorded_certificate(two) == ("csr", str(folder)))
        signer.approve(name)
        await run.wait_for_report("certificate is signed by home")
    async with running_join(two, settings) as run:
        assert any("certificate is signed by home" in line for line in run.reports)
        await two.home.until(lambda: recorded_certificate(two) == ("csr", str(folder)))


async def test_recorded_certificate_of_home_is_requested_by_another_machine(
    two: Clusters, tmp_path: Path
) -> None:
    signer = Signer(two.home)
    async with running_join(two, two.but(cert_dir=tmp_path / "one")) as run:
        await reject_certificate(run.port)
        first = await signer.requested()
        await two.home.until(lambda: recorded_certificate(two) == ("csr", str(tmp_path / "one")))
    two.home.remove(CERTIFICATE_SIGNING_REQUESTS, first)
    async with running_join(two, two.but(cert_dir=tmp_path / "other")) as run:
        await run.wait_for_report("an earlier bridge of this node needed a certificate")
        assert await signer.requested() != first


async def test_join_of_an_administrator_approves_after_one_question(
    two: Clusters, tmp_path: Path
) -> None:
    questions: list[str] = []

    async def ask(question: str) -> bool:
        questions.append(question)
        return True

    signer, settings = Signer(two.home), two.but(cert_dir=tmp_path / "serving")
    async with running_join(two, settings, consent=Consent(ask=ask)) as run:
        await reject_certificate(run.port)
        await run.wait_for_report("approved certificate signing request")
        (name,) = [it["metadata"]["name"] for it in two.home.objects(CERTIFICATE_SIGNING_REQUESTS)]
        signer.sign(name)
        await run.wait_for_report("certificate is signed by home")
    assert len(questions) == 1
    assert not any("kubectl certificate approve" in line for line in run.reports)


async def test_home_api_server_connects_once_where_the_credential_permits_it(two: Clusters) -> None:
    path = NODES.path(NODE, subresource="proxy/healthz")
    async with running_join(two):
        await two.home.until(lambda: two.home.requests("GET", path))
        await asyncio.sleep(0.05)
    assert len(two.home.requests("GET", path)) == 1
    two.home.clear_log()
    two.home.api.authorize = lambda spec: spec["resourceAttributes"].get("subresource") != "proxy"
    async with running_join(two):
        await asyncio.sleep(0.05)
    assert not two.home.requests("GET", path)


async def test_new_client_ca_is_used_without_a_restart(two: Clusters, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    context = pki.client_context("apiserver")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async def status(run: RunningJoin) -> int:
        url = f"https://127.0.0.1:{run.port}/healthz/ping"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
            return answer.status

    async with running_join(two) as run:
        assert await status(run) == 401
        two.home.put(
            config_map(home_client_ca.NAME, "kube-system", data={"client-ca-file": pki.ca_text})
        )
        async with asyncio.timeout(SOON):
            while await status(run) != 200:  # noqa: ASYNC110  # the server does not report when it uses the CA
                await asyncio.sleep(0.01)


async def test_failed_check_creates_nothing(two: Clusters) -> None:
    two.remote.api.authorize = lambda _: False
    assert isinstance(await ended(two), PreflightError)
    assert two.writes() == []


async def test_used_port_fails_before_anything_is_created(two: Clusters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = await ended(two, port=taken.getsockname()[1])
    assert isinstance(error, ListenError)
    assert "--port" in str(error)
    assert two.writes() == []


async def test_unreadable_certificate_is_named_in_the_error(two: Clusters, tmp_path: Path) -> None:
    error = await ended(two, certificate=tmp_path / "absent.crt", key=tmp_path / "absent.key")
    assert isinstance(error, CertificateError)
    assert "absent.crt" in str(error)
    assert two.writes() == []


async def test_unmanaged_node_of_the_same_name_is_left_alone(two: Clusters) -> None:
    before = two.home.put(node(NODE))
    assert isinstance(await ended(two), NodeTaken)
    assert two.home.get(NODES, NODE) == before
    assert two.remote.writes() == []


async def test_changed_namespace_mapping_is_rejected_before_registration(two: Clusters) -> None:
    harness = EngineHarness(two.home, two.remote)
    async with running_join(two):
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
    harness.clear_logs()
    error = await ended(two, home_name="other")
    assert isinstance(error, NamespaceMappingError)
    assert f"{REMOTE_NAMESPACE}" in str(error)
    assert two.writes() == []


async def _fails(self: object) -> None:
    raise ZeroDivisionError("a defect")


@pytest.mark.parametrize(
    ("part", "name"),
    [(Engine, "watch"), (Engine, "work"), (NodeController, "run")],
    ids=["the caches", "the controllers", "the node"],
)
async def test_failed_part_ends_the_join_with_its_error(
    two: Clusters, monkeypatch: pytest.MonkeyPatch, part: type, name: str
) -> None:
    monkeypatch.setattr(part, name, _fails)
    monkeypatch.setattr(Engine, "synced", _at_once)
    assert isinstance(await ended(two), ZeroDivisionError)


async def _at_once(self: object) -> None:
    return None


async def test_failed_part_releases_the_lease(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A held lease would make the next `bridge leave` wait for its expiry."""
    monkeypatch.setattr(NodeController, "run", _fails)
    assert isinstance(await ended(two), ZeroDivisionError)
    assert holder(two.home) is None


async def test_lease_of_a_node_taken_over_is_not_released(two: Clusters) -> None:
    run = start_join(two.settings)
    await run.wait_for_report("is registered")
    await two.home.until(lambda: two.home.open_watches(NODES))
    two.home.remove(NODES, NODE)
    two.home.put(node(NODE))
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(SOON):
            await run.task
    assert isinstance(first_leaf(caught.value), NodeTaken)
    assert holder(two.home) == NODE


async def test_short_lived_token_of_the_remote_is_renewed_before_the_join_serves(
    tls_two: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    tls_two.remote.put(service_account(NAME, namespace=NAMESPACE))
    token = account_token(datetime.now(UTC), timedelta(minutes=10))
    cluster = {"certificate-authority": "fake-ca.crt"}
    content = kubeconfig(tls_two.remote.url, user={"token": token}, cluster=cluster)
    write(tmp_path / "remote.yaml", content)
    async with running_join(tls_two) as run:
        [line] = [it for it in run.reports if "the bridge renews it" in it]
        end = parse_time(line.partition("valid until ")[2].partition(",")[0])
        assert timedelta(minutes=50) < end - datetime.now(UTC) <= timedelta(hours=1)
        last = tls_two.remote.log[-1].authorization
        assert last.startswith(f"Bearer {PREFIX}")
    assert not any(PREFIX in line for line in run.reports)
    tls_two.remote.clear_log()
    async with running_join(tls_two):
        used = {entry.authorization for entry in tls_two.remote.log}
        assert used == {last}, "the next start begins with the renewed token"
