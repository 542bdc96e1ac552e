"""Certificates that home signs: request, approval, storage, renewal."""

from __future__ import annotations

import asyncio
import logging
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from bridge.base.consent import NO_CONSENT
from bridge.certificates import signed_certificate
from bridge.certificates.cert_dir import CertDir
from bridge.certificates.csr import CsrSource
from bridge.certificates.csr_approval import Approver
from bridge.certificates.signing_request import generate_key
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair
from bridge.certificates.x509_builder import missing_names, self_signed, validity
from bridge.rbac import permissions
from sync.base.backoff import Backoff
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS
from sync.kube.client import KubeClient
from tests.bridge.certificates.running_source import ADDRESS, NODE, running_source
from tests.bridge.kubelet.fake_api_servers import wait_until
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault
from tests.fakeapi.csr_signer import Signer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries come soon."""
    for name in ("RETRY_FIRST", "RETRY_CAP", "RECREATE_FIRST", "RECREATE_CAP"):
        monkeypatch.setattr(signed_certificate, name, 0.02)


@pytest.fixture
async def make(home_api: FakeApi, client_for: ClientFor, tmp_path: Path) -> SourceFactory:
    """Creates the source of `bridge join --serving-certificate csr`, again for each restart."""
    return SourceFactory(await client_for(home_api, "home"), tmp_path / "certs")


class SourceFactory:
    """Creates sources that share a directory, as after a restart."""

    def __init__(self, home: KubeClient, folder: Path) -> None:
        self._home = home
        self.folder = folder
        self.reports: list[str] = []

    def __call__(self, *, node: str = NODE, address: str = ADDRESS) -> CsrSource:
        return CsrSource(
            self._home,
            node,
            [address],
            CertDir(self.folder),
            approver=Approver(self._home, permissions.may_approve, NO_CONSENT),
            notify=self.reports.append,
        )


async def test_approved_request_yields_a_certificate_that_a_restart_reuses(
    make: SourceFactory, home_api: FakeApi
) -> None:
    signer, source = Signer(home_api), make()
    begin = await source.first()
    assert not missing_names(begin, NODE, [ADDRESS])
    assert source.origin == "self-signed until home has signed one"
    async with running_source(source) as used:
        name = await signer.requested()
        await wait_until(lambda: bool(make.reports))
        (hint,) = make.reports
        assert hint == (
            f"home: waiting for the approval of certificate signing request {name}: "
            f"kubectl certificate approve {name}"
        )
        assert not used
        signer.approve(name)
        await wait_until(lambda: len(make.reports) == 2)
        assert "is signed by home, valid until 20" in make.reports[1]
        (pair,) = used
        leaf = x509.load_pem_x509_certificate(pair.certificate)
        leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(signer.ca.encode()))
        assert not missing_names(pair, NODE, [ADDRESS])
        await home_api.until(lambda: not home_api.open_watches(CERTIFICATE_SIGNING_REQUESTS))
    kept = make.folder / "serving.pem"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(make.folder.stat().st_mode) == 0o700
    assert [file.name for file in make.folder.iterdir()] == ["serving.pem"]

    # A restart needs no other request.
    home_api.clear_log()
    again = make()
    assert await again.first() == pair
    assert again.origin.startswith("signed by home, valid until 20")
    async with running_source(again) as used:
        await asyncio.sleep(0.05)
    assert not used
    assert not home_api.log


async def test_pending_request_is_reused_after_a_restart(
    make: SourceFactory, home_api: FakeApi
) -> None:
    signer, source = Signer(home_api), make()
    await source.first()
    async with running_source(source):
        name = await signer.requested()
        await wait_until(lambda: len(make.reports) == 1)
    source = make()
    await source.first()
    async with running_source(source) as used:
        await wait_until(lambda: len(make.reports) == 2)
        assert await signer.requested() == name
        signer.approve(name)
        await wait_until(lambda: bool(used))


async def test_certificate_is_renewed_before_it_expires(
    make: SourceFactory, home_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is due early, since a busy machine takes seconds for a request."""
    delays = iter([timedelta(seconds=1)])
    monkeypatch.setattr(
        signed_certificate, "renewal_time", lambda begin, end, _: begin + next(delays, end - begin)
    )
    signer, source = Signer(home_api), make()
    signer.lasts = timedelta(seconds=60)
    await source.first()
    async with running_source(source) as used:
        signer.approve(await signer.requested())
        await wait_until(lambda: len(used) == 1)
        name = await signer.requested()
        assert datetime.now(UTC) < validity(used[0])[1]
        signer.approve(name)
        await wait_until(lambda: len(used) == 2)
    assert used[0].key != used[1].key
    assert len(home_api.objects(CERTIFICATE_SIGNING_REQUESTS)) == 2


async def test_stored_certificate_that_is_expired_mismatched_or_invalid_is_not_used(
    make: SourceFactory, home_api: FakeApi
) -> None:
    folder = CertDir(make.folder)
    await folder.prepare()
    for pair in (
        self_signed(NODE, [ADDRESS], now=datetime.now(UTC) - timedelta(days=999)),
        self_signed(NODE, ["192.0.2.8"]),
        TlsKeyPair(b"nonsense", generate_key()),
        TlsKeyPair(self_signed(NODE, [ADDRESS]).certificate, generate_key()),
    ):
        await folder.keep(pair)
        source = make()
        assert await source.first() != pair
        assert source.origin.startswith("self-signed")


async def test_denied_request_is_recreated_with_backoff(
    make: SourceFactory,
    home_api: FakeApi,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    class RecordingBackoff(Backoff):
        def next(self) -> float:
            waits.append(super().next())
            return 0.0

    monkeypatch.setattr(signed_certificate, "Backoff", RecordingBackoff)
    monkeypatch.setattr(signed_certificate, "RECREATE_FIRST", 60.0)
    monkeypatch.setattr(signed_certificate, "RECREATE_CAP", 4 * 3600.0)
    signer, source = Signer(home_api), make()
    await source.first()
    names = []
    async with running_source(source) as used:
        for _ in range(3):
            names.append(await signer.requested())
            signer.deny(names[-1])
            await wait_until(lambda: len(waits) == len(names))
        assert not used
    assert len(set(names)) == 3
    assert 30 <= waits[0] <= 60 <= waits[1] <= 120 <= waits[2]
    assert f"{names[0]} was denied: KubectlDeny, not here" in caplog.text


async def test_deleted_request_is_recreated(make: SourceFactory, home_api: FakeApi) -> None:
    signer, source = Signer(home_api), make()
    await source.first()
    async with running_source(source) as used:
        name = await signer.requested()
        await home_api.until(lambda: home_api.open_watches(CERTIFICATE_SIGNING_REQUESTS))
        home_api.remove(CERTIFICATE_SIGNING_REQUESTS, name)
        assert await signer.requested() == name
        signer.approve(name)
        await wait_until(lambda: bool(used))


async def test_certificate_for_other_names_is_not_used(
    make: SourceFactory, home_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    signer, source = Signer(home_api), make()
    signer.names = x509.SubjectAlternativeName([x509.DNSName(NODE)])
    await source.first()
    async with running_source(source) as used:
        first = await signer.requested()
        signer.approve(first)
        await home_api.until(signer.requests)
        assert not used
        assert f"{first} is not valid for {ADDRESS}" in caplog.text
        signer.names = None
        signer.approve(await signer.requested())
        await wait_until(lambda: bool(used))


async def test_failed_create_is_retried_without_a_second_request(
    make: SourceFactory, home_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    path = CERTIFICATE_SIGNING_REQUESTS.path()
    fault = home_api.fail(Fault("POST", path, code=403, times=None))
    signer, source = Signer(home_api), make()
    await source.first()
    async with running_source(source) as used:
        await home_api.until(lambda: len(home_api.requests("POST", path)) > 2)
        home_api.heal(fault)
        # A lost response leads to no second request.
        home_api.fail(Fault("POST", path, drop="after"))
        signer.approve(await signer.requested())
        await wait_until(lambda: bool(used))
    assert len(home_api.objects(CERTIFICATE_SIGNING_REQUESTS)) == 1
    assert "cannot renew the kubelet API's certificate: " in caplog.text


async def test_invalid_stored_key_is_replaced(
    make: SourceFactory, home_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    signer, source = Signer(home_api), make()
    await source.first()
    await CertDir(make.folder).keep_pending(b"nonsense")
    async with running_source(source) as used:
        signer.approve(await signer.requested())
        await wait_until(lambda: bool(used))
    assert "the stored key of the pending request is not valid PEM" in caplog.text


async def test_unusable_directory_is_named_in_the_error(
    make: SourceFactory, tmp_path: Path
) -> None:
    (tmp_path / "certs").write_text("a file")
    with pytest.raises(
        CertificateError, match=r"cannot store a certificate in .*certs: .* --cert-dir"
    ):
        await make().first()


async def test_private_key_is_in_no_log_and_no_request(
    make: SourceFactory, home_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    signer, source = Signer(home_api), make()
    await source.first()
    async with running_source(source):
        await signer.requested()
        key = (make.folder / "serving-pending.key").read_text().splitlines()[1]
    assert key not in caplog.text
    assert not [entry for entry in home_api.log if key in str(entry.body)]
