"""The bridge uses no TLS version older than 1.2, as a client of API servers and as a server."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from bridge.certificates.tls_key_pair import TlsKeyPair, server_context
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import Authority
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.fakeapi.tls import Pair

#: With OpenSSL's usual ciphers an old version would fail for another reason.
ANY_CIPHER = "ALL:@SECLEVEL=0"


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("versions", address="127.0.0.1")


async def ours(authority: Authority, folder: Path) -> ssl.SSLContext:
    """With which the bridge asks an API server."""
    cluster = {"certificate-authority": str(authority.cert)}
    file = write(folder / "config", kubeconfig("https://127.0.0.1:6443", cluster=cluster))
    access = await load(KubeconfigRef(file), side="remote")
    assert access.tls is not None
    return access.tls


def kubelets(pair: Pair) -> ssl.SSLContext:
    """With which the kubelet API answers."""
    own = TlsKeyPair(pair.cert.read_bytes(), pair.key.read_bytes())
    return server_context(own, client_ca="")


def client(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.cert)


def server(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    return context


def old(context: ssl.SSLContext) -> ssl.SSLContext:
    """Speaks TLS 1.1 and nothing later."""
    context.set_ciphers(ANY_CIPHER)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def lenient(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_ciphers(ANY_CIPHER)
    return context


def agreed(asking: ssl.SSLContext, answering: ssl.SSLContext) -> str | None:
    """The version that both speak. Raises SSLError where there is none."""
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = asking.wrap_bio(here, there, server_hostname="127.0.0.1")
    far = answering.wrap_bio(there, here, server_side=True)
    for _ in range(6):
        for end in (near, far):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return near.version()


async def test_api_server_with_only_old_tls_versions_is_rejected(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    asking = lenient(await ours(authority, tmp_path))
    with pytest.raises(ssl.SSLError, match=r"UNSUPPORTED_(PROTOCOL|VERSION)"):
        agreed(asking, old(server(pair)))
    assert agreed(asking, server(pair)) == "TLSv1.3"
    assert asking.minimum_version == ssl.TLSVersion.TLSv1_2


def test_client_with_only_old_tls_versions_is_rejected(authority: Authority, pair: Pair) -> None:
    answering = lenient(kubelets(pair))
    with pytest.raises(ssl.SSLError, match=r"UNSUPPORTED_(PROTOCOL|VERSION)"):
        agreed(old(client(authority)), answering)
    assert agreed(client(authority), answering) == "TLSv1.3"
    assert answering.minimum_version == ssl.TLSVersion.TLSv1_2


def test_old_tls_version_works_on_this_host(authority: Authority, pair: Pair) -> None:
    """Else the others would show nothing."""
    assert agreed(old(client(authority)), old(server(pair))) == "TLSv1.1"
