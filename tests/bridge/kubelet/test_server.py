"""The server as a whole: listening, certificates, endpoints, limits and shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509

from bridge.certificates.tls_key_pair import CertificateError, read_files, server_context
from bridge.certificates.x509_builder import self_signed
from bridge.kubelet.routing import Route, RoutedRequest
from bridge.kubelet.server import MAX_LINE, KubeletServer, ListenError
from sync.kube.api_resources import Object
from sync.kube.client import KubeClient
from tests.bridge.bad_certificate_client import reject_certificate
from tests.bridge.kubelet.conftest import KubeletHarness
from tests.bridge.kubelet.fake_api_servers import access_for, wait_until
from tests.bridge.kubelet.pki import Pki


async def test_used_port_is_named_in_the_error(harness: KubeletHarness) -> None:
    with pytest.raises(ListenError, match=rf"port {harness.server.port}: .*--port") as refused:
        await _another(harness).start("127.0.0.1", harness.server.port)
    assert isinstance(refused.value.__cause__, OSError)


def _another(
    harness: KubeletHarness, *routes: Route, problem: str = "", client: KubeClient | None = None
) -> KubeletServer:
    client = client or KubeClient(access_for(harness.home.url, "home"))
    return KubeletServer(
        home=client,
        remote=client,
        directory=harness.directory,
        node_name="virtual",
        certificate=self_signed("virtual", ["127.0.0.1"]),
        client_ca=harness.pki.ca_text,
        routes=routes,
        problem=lambda: problem,
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=str)
async def test_bad_certificate_alert_of_a_client_is_reported(
    harness: KubeletHarness, version: ssl.TLSVersion
) -> None:
    await reject_certificate(harness.server.port, version=version)
    await wait_until(lambda: bool(harness.rejections))
    assert harness.rejections == ["127.0.0.1"]


async def test_other_failed_handshakes_are_not_reported(harness: KubeletHarness) -> None:
    strict = ssl.create_default_context()  # rejects an unknown CA with unknown_ca

    def connect() -> None:
        with (
            socket.create_connection(("127.0.0.1", harness.server.port)) as connection,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            strict.wrap_socket(connection, server_hostname="127.0.0.1")

    await asyncio.to_thread(connect)
    _, writer = await asyncio.open_connection("127.0.0.1", harness.server.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    writer.close()
    async with harness.session() as session, session.get("/healthz") as response:
        assert response.status == 200
    assert harness.rejections == []


async def test_stop_is_quick_and_idempotent(harness: KubeletHarness) -> None:
    async with harness.session() as session:
        async with session.get("/healthz") as response:
            assert response.status == 200
        await harness.server.stop(5.0)
        await harness.server.stop(5.0)
        with pytest.raises(aiohttp.ClientError):
            await session.get("/healthz")


async def test_unfinished_handshake_does_not_delay_the_stop(harness: KubeletHarness) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.server.port)
    await asyncio.sleep(0.05)
    await harness.server.stop(1.0)
    assert await reader.read() == b""
    writer.close()


async def test_healthz_is_ok(harness: KubeletHarness) -> None:
    async with harness.session() as session:
        for path in ("/healthz", "/healthz/ping", "/healthz/syncloop", "/healthz/"):
            async with session.get(path) as response:
                assert (response.status, await response.text()) == (200, "ok")


async def test_additional_routes_and_healthz_problem(harness: KubeletHarness) -> None:
    async def metrics(_: RoutedRequest) -> web.StreamResponse:
        return web.Response(text="up 1\n")

    route = Route("/metrics/resource", frozenset({"GET"}), metrics)
    async with (
        KubeClient(access_for(harness.home.url, "home")) as client,
        harness.session() as session,
    ):
        server = _another(harness, route, problem="the queue is stuck", client=client)
        await server.start("127.0.0.1", 0)
        url = f"https://127.0.0.1:{server.port}"
        async with session.get(url + "/metrics/resource", ssl=False) as response:
            assert await response.text() == "up 1\n"
        async with session.get(url + "/metrics", ssl=False) as response:
            assert response.status == 404
        async with session.get(url + "/healthz/syncloop", ssl=False) as response:
            assert (response.status, await response.text()) == (500, "the queue is stuck")
        async with session.get(url + "/healthz/ping", ssl=False) as response:
            assert response.status == 200
        await server.stop(1.0)


async def test_pods_are_listed(harness: KubeletHarness) -> None:
    running: Object = {"state": {"running": {}}}
    harness.directory.listed = [
        {"metadata": {"name": "runs"}, "status": {"containerStatuses": [running]}},
        {"metadata": {"name": "starts"}, "status": {"initContainerStatuses": [running]}},
        {"metadata": {"name": "waits"}, "status": {"containerStatuses": [{"state": {}}]}},
        {"metadata": {"name": "new"}},
        {
            "metadata": {"name": "ends", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"containerStatuses": [running]},
        },
    ]
    async with harness.session() as session:
        async with session.get("/pods") as response:
            pods = await response.json()
            assert response.content_type == "application/json"
        async with session.get("/runningpods/") as response:
            alive = await response.json()
    assert (pods["kind"], pods["apiVersion"]) == ("PodList", "v1")
    assert pods["items"] == harness.directory.listed
    assert [pod["metadata"]["name"] for pod in alive["items"]] == ["runs", "starts"]


async def test_configz_is_a_kubelet_configuration(harness: KubeletHarness) -> None:
    async with harness.session() as session, session.get("/configz") as response:
        config = json.loads(await response.text())["kubeletconfig"]
    assert config["kind"] == "KubeletConfiguration"
    assert config["authentication"]["anonymous"] == {"enabled": False}


@pytest.mark.parametrize(
    "target",
    [
        "/exec/default/..%2f..%2fsecrets/app?output=1",
        "/containerLogs/..%2f/web/app",
        "/containerLogs/default/web/%2e%2e",
        "/containerLogs/default/web%3fcontainer=x/app",
        "/metrics",
        "/stats/summary",
        "/logs/x",
        "/%2e%2e/pods",
    ],
)
async def test_encoded_paths_do_not_reach_the_remote(harness: KubeletHarness, target: str) -> None:
    # Without a client library, which would normalize the path.
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", harness.server.port, ssl=harness.pki.client_context("apiserver")
    )
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.read()).startswith((b"HTTP/1.1 400", b"HTTP/1.1 404"))
    writer.close()
    assert not harness.remote.requests


@pytest.mark.parametrize(
    "head",
    [
        "GET /pods?" + "a" * MAX_LINE + " HTTP/1.1\r\nHost: x\r\n",
        "GET /pods HTTP/1.1\r\nHost: x\r\nX-Long: " + "a" * 100_000 + "\r\n",
        "GET /pods HTTP/1.1\r\nHost: x\r\n" + "X-Many: a\r\n" * 200,
    ],
)
async def test_request_heads_are_bounded(harness: KubeletHarness, head: str) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", harness.server.port, ssl=harness.pki.client_context("apiserver")
    )
    writer.write((head + "\r\n").encode())
    assert b" 400 " in await reader.readline()
    writer.transport.abort()


async def test_long_command_is_accepted(harness: KubeletHarness) -> None:
    target = "/exec/default/web/app?output=1&command=" + "%20" * 40_000
    head, _, writer = await harness.upgrade(target)
    assert head.startswith(b"HTTP/1.1 404 ")
    assert len(harness.remote.requests[0].target) > 120_000
    writer.close()


async def test_client_ca_can_be_replaced(harness: KubeletHarness) -> None:
    harness.server.renew(client_ca=harness.pki.other_ca_text)
    session = harness.session(token=None, cert="stranger")
    async with session, session.get("/healthz") as response:
        assert response.status == 200
    async with harness.session(token=None, cert="apiserver") as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get("/healthz")
    with pytest.raises(CertificateError):
        harness.server.renew(client_ca="-----BEGIN CERTIFICATE-----\nnonsense")
    session = harness.session(token=None, cert="stranger")
    async with session, session.get("/healthz") as response:
        assert response.status == 200


async def test_serving_certificate_can_be_replaced(harness: KubeletHarness) -> None:
    harness.server.renew(certificate=self_signed("other-name", ["127.0.0.1"]))
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", harness.server.port, ssl=context)
    raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert "other-name" in x509.load_der_x509_certificate(raw).subject.rfc4514_string()
    writer.close()


def test_self_signed_certificate_has_node_name_and_address() -> None:
    pair = self_signed("a" * 80, ["10.0.0.1", "fd00::1", "node.example"])
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "fd00::1"]
    assert names.get_values_for_type(x509.DNSName) == ["node.example", "a" * 80]
    assert 364 <= (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days <= 366
    assert pair.key.decode() not in repr(pair)
    assert "PRIVATE" not in repr(pair)
    assert server_context(pair, client_ca="").verify_mode is ssl.CERT_NONE


def test_mismatched_files_are_named_in_the_error(pki: Pki, tmp_path: Path) -> None:
    certificate, _ = pki.files("node")
    _, other = pki.files("remote")
    with pytest.raises(CertificateError, match=r"node\.crt and .*remote\.key: .*do not match"):
        read_files(certificate, other)
    with pytest.raises(CertificateError, match=r"cannot read .*none: No such file"):
        read_files(tmp_path / "none", other)
    (tmp_path / "empty").touch()
    with pytest.raises(CertificateError, match="not valid PEM"):
        read_files(tmp_path / "empty", other)


def test_invalid_client_ca_names_its_config_map() -> None:
    with pytest.raises(CertificateError, match="extension-apiserver-authentication"):
        server_context(self_signed("n", []), client_ca="no certificate")


async def test_invalid_port_is_rejected(harness: KubeletHarness) -> None:
    with pytest.raises(ListenError, match="70000"):
        await _another(harness).start("127.0.0.1", 70_000)


async def test_nonlocal_address_error_names_the_option(harness: KubeletHarness) -> None:
    with pytest.raises(ListenError, match="--address"):
        await _another(harness).start("192.0.2.1", 0)


async def test_ipv6_any_address_accepts_ipv4(harness: KubeletHarness) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    server = _another(harness)
    await server.start("::", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()
    await server.stop(1.0)
