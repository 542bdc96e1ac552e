"""Requests are built and certificates read in a child process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from bridge.base import memory_savings
from bridge.certificates import x509_child
from bridge.certificates.certificate_kinds import CLIENT, SERVING
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair
from bridge.certificates.x509_builder import self_signed
from tests.bridge.certificates.running_source import ADDRESS, NODE


@pytest.fixture(params=["child", "fallback"])
def process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the functions run."""

    async def fail(*_: Any, **__: Any) -> None:
        return None

    if request.param == "fallback":
        monkeypatch.setattr(memory_savings, "run_module", fail)
    return str(request.param)


@pytest.mark.usefixtures("process")
async def test_request_of_a_stored_key_is_the_same() -> None:
    key, first = await x509_child.build_csr(SERVING, None, NODE, [ADDRESS])
    again, second = await x509_child.build_csr(SERVING, key, NODE, [ADDRESS])
    assert again == key
    assert second["metadata"]["name"] == first["metadata"]["name"]
    assert await x509_child.requests_the_same(first, second)
    assert await x509_child.key_fingerprint(first) == await x509_child.key_fingerprint(second)
    _, other = await x509_child.build_csr(CLIENT, None, NODE, [])
    assert not await x509_child.requests_the_same(first, other)


@pytest.mark.usefixtures("process")
async def test_certificate_is_read() -> None:
    pair = self_signed(NODE, [ADDRESS])
    found = await x509_child.inspect(pair, NODE, [ADDRESS])
    assert found.begin < found.end
    assert found.missing == []
    assert (await x509_child.inspect(pair, NODE, ["192.0.2.9"])).missing == ["192.0.2.9"]


@pytest.mark.usefixtures("process")
async def test_error_is_raised_here_without_the_key() -> None:
    with pytest.raises(CertificateError, match="not valid PEM") as caught:
        await x509_child.build_csr(CLIENT, b"planted", NODE, [])
    assert "planted" not in str(caught.value)
    with pytest.raises(CertificateError, match="not valid PEM"):
        await x509_child.inspect(TlsKeyPair(b"nothing", b""), NODE, [])


def test_a_bridge_with_a_certificate_of_home_does_not_load_the_package() -> None:
    modules = "bridge.home_identity.node_certificate, bridge.certificates.csr"
    code = f"import sys, {modules}; sys.exit('cryptography' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
