"""Self-signed certificates and certificates from files, and their rotation."""

from __future__ import annotations

import asyncio
import random
import ssl
import tempfile
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

from bridge.certificates.serving_certificate import FileSource, SelfSignedSource, renewal_time
from bridge.certificates.tls_key_pair import (
    CertificateError,
    TlsKeyPair,
    server_context,
)
from bridge.certificates.x509_builder import missing_names, self_signed, validity
from tests.bridge.certificates.running_source import ADDRESS, NODE, START, UsedPairs, running_source
from tests.bridge.kubelet.fake_api_servers import wait_until
from tests.bridge.kubelet.pki import Pki
from tests.virtual_time_loop import run_virtual


def test_renewal_time_is_at_70_to_90_percent_of_the_validity() -> None:
    pair = self_signed(NODE, [ADDRESS], now=START)
    begin, end = validity(pair)
    parts = [
        (renewal_time(begin, end, random.Random(seed)) - begin) / (end - begin)
        for seed in range(99)
    ]
    assert 0.7 <= min(parts) < 0.72
    assert 0.88 < max(parts) <= 0.9


def test_self_signed_certificate_is_renewed_before_it_expires() -> None:
    async def years() -> UsedPairs:
        loop = asyncio.get_running_loop()
        source = SelfSignedSource(
            NODE, [ADDRESS], now=lambda: START + timedelta(seconds=loop.time())
        )
        used = UsedPairs([await source.first()])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(timedelta(days=2 * 365).total_seconds()):
                await source.run(used)
        return used

    used = run_virtual(years)
    assert len(used) in (3, 4)
    for earlier, later in pairwise(used):
        assert validity(later)[0] < validity(earlier)[1]
        assert later.key != earlier.key
        assert not missing_names(later, NODE, [ADDRESS])


def test_certificate_that_cannot_be_loaded_is_replaced_after_a_minute() -> None:
    async def minutes() -> list[float]:
        loop = asyncio.get_running_loop()
        source = SelfSignedSource(
            NODE, [ADDRESS], now=lambda: START + timedelta(seconds=loop.time())
        )
        tried: list[float] = []

        def use(_: TlsKeyPair) -> None:
            tried.append(loop.time())
            if len(tried) < 3:
                raise CertificateError("the disk is full")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await source.run(use)
        return tried

    tried = run_virtual(minutes)
    assert [round(later - earlier) for earlier, later in pairwise(tried)] == [60, 60]


def test_certificate_is_loaded_without_a_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key in one would stay when the process is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    server_context(self_signed(NODE, [ADDRESS], now=START), client_ca="")


def test_comments_of_a_client_ca_may_contain_any_text() -> None:
    pair = self_signed(NODE, [ADDRESS], now=START)
    context = server_context(pair, client_ca=f"# Stra\u00dfe\n{pair.certificate.decode()}")
    assert context.cert_store_stats()["x509"] == 1
    assert context.verify_mode is ssl.CERT_OPTIONAL
    with pytest.raises(CertificateError, match="the client CA is not a bundle"):
        server_context(pair, client_ca="\u00df")


def test_malformed_names_of_a_certificate_are_an_error() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NODE)])
    names = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"names")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(START)
        .not_valid_after(START + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    pair = TlsKeyPair(certificate.public_bytes(serialization.Encoding.PEM), b"")
    with pytest.raises(CertificateError, match="extensions are malformed"):
        missing_names(pair, NODE, [ADDRESS])


def copy_pair(pki: Pki, party: str, folder: Path) -> tuple[Path, Path]:
    paths = folder / "tls.crt", folder / "tls.key"
    for source, path in zip(pki.files(party), paths, strict=True):
        path.write_bytes(source.read_bytes())
    return paths


async def test_changed_files_are_reloaded(
    pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = FileSource(*copy_pair(pki, "node", tmp_path), interval=0.01)
    assert (await source.first()).certificate == pki.files("node")[0].read_bytes()
    assert str(tmp_path) in source.origin
    async with running_source(source) as used:
        await asyncio.sleep(0.05)
        assert not used
        copy_pair(pki, "remote", tmp_path)
        await wait_until(lambda: bool(used))
        assert used[0].certificate == pki.files("remote")[0].read_bytes()
        (tmp_path / "tls.key").write_text("nonsense")
        await wait_until(lambda: "stays in use" in caplog.text)
        (tmp_path / "tls.key").unlink()
        await wait_until(lambda: f"cannot read {tmp_path / 'tls.key'}" in caplog.text)
        await asyncio.sleep(0.05)
        assert caplog.text.count("stays in use") == 2  # once for each cause
        assert len(used) == 1
        copy_pair(pki, "node", tmp_path)
        await wait_until(lambda: len(used) == 2)


async def test_missing_files_at_the_start_raise(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="cannot read"):
        await FileSource(tmp_path / "a", tmp_path / "b").first()
