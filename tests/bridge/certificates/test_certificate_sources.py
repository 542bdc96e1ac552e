"""Where the serving certificate comes from, and that it is renewed without a restart."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import stat
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography import x509

from bridge.certificates import certificate_sources, csr_source
from bridge.certificates.cert_dir import CertDir
from bridge.certificates.certificate_sources import (
    CertificateSource,
    FileSource,
    SelfSignedSource,
    renewal,
)
from bridge.certificates.csr import Pending, Rejected, build_csr, csr_outcome, generate_key
from bridge.certificates.csr_source import CsrSource
from bridge.certificates.tls_key_pair import (
    CLOCK_SKEW,
    LIFETIME,
    CertificateError,
    TlsKeyPair,
    server_context,
)
from bridge.certificates.x509_builder import missing_names, self_signed, validity
from sync.base.backoff import Backoff
from sync.kube.client import KubeClient
from sync.kube.resources import CERTIFICATE_SIGNING_REQUESTS
from tests.bridge.kubelet.fakes import until
from tests.bridge.kubelet.pki import Pki
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault
from tests.fakeapi.csr_signer import Signer
from tests.sync.virtual import run_virtual

NODE, ADDRESS = "virtual", "192.0.2.7"
START = datetime(2026, 1, 1, tzinfo=UTC)


class Used(list[TlsKeyPair]):
    """The certificates that a source has handed over, as the server takes them."""

    def __call__(self, pair: TlsKeyPair) -> None:
        server_context(pair, client_ca="")
        self.append(pair)


@asynccontextmanager
async def running(source: CertificateSource) -> AsyncIterator[Used]:
    """Runs the source; what it hands over."""
    used = Used()
    task = asyncio.create_task(source.run(used))
    try:
        yield used
    finally:
        task.cancel()
        (error,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(error, asyncio.CancelledError), error


# -- self-signed -----------------------------------------------------------------------------------


def test_renewal_is_at_seventy_to_ninety_percent() -> None:
    pair = self_signed(NODE, [ADDRESS], now=START)
    begin, end = validity(pair)
    parts = [
        (renewal(begin, end, random.Random(seed)) - begin) / (end - begin) for seed in range(99)
    ]
    assert 0.7 <= min(parts) < 0.72
    assert 0.88 < max(parts) <= 0.9


def test_a_self_signed_certificate_is_renewed_before_it_ends() -> None:
    async def here(node: str, addresses: Sequence[str], now: datetime) -> TlsKeyPair:
        return self_signed(node, addresses, now=now)

    async def years() -> Used:
        loop = asyncio.get_running_loop()
        source = SelfSignedSource(
            NODE, [ADDRESS], now=lambda: START + timedelta(seconds=loop.time()), make=here
        )
        used = Used([await source.first()])
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


def test_one_that_cannot_be_put_to_use_is_made_again_a_little_later() -> None:
    """The bridge goes on with what it has."""

    async def here(node: str, addresses: Sequence[str], now: datetime) -> TlsKeyPair:
        return self_signed(node, addresses, now=now)

    async def minutes() -> list[float]:
        loop = asyncio.get_running_loop()
        source = SelfSignedSource(
            NODE, [ADDRESS], now=lambda: START + timedelta(seconds=loop.time()), make=here
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


def test_without_room_for_a_temporary_file_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pair = self_signed(NODE, [ADDRESS], now=START)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(CertificateError, match="No space left on device; make room there"):
        server_context(pair, client_ca="")


async def test_one_is_made_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.certificates.x509_builder.self_signed", None)
    pair = await certificate_sources.create_self_signed(NODE, [ADDRESS, "node.example"], START)
    server_context(pair, client_ca="")
    assert validity(pair) == (START - CLOCK_SKEW, START + LIFETIME)
    assert not missing_names(pair, NODE, [ADDRESS, "node.example"])


@pytest.mark.parametrize("script", [None, "exit 1", "echo nonsense", "exec sleep 60"], ids=str)
async def test_it_is_made_here_where_that_process_does_not_do_it(
    script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr(certificate_sources, "MAKING_SECONDS", 0.5)
    pair = await certificate_sources.create_self_signed(NODE, [ADDRESS], START)
    assert not missing_names(pair, NODE, [ADDRESS])


# -- files -----------------------------------------------------------------------------------------


def copy_pair(pki: Pki, party: str, folder: Path) -> tuple[Path, Path]:
    paths = folder / "tls.crt", folder / "tls.key"
    for source, path in zip(pki.files(party), paths, strict=True):
        path.write_bytes(source.read_bytes())
    return paths


async def test_files_are_read_again_when_they_have_changed(
    pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = FileSource(*copy_pair(pki, "node", tmp_path), every=0.01)
    assert (await source.first()).certificate == pki.files("node")[0].read_bytes()
    assert str(tmp_path) in source.origin
    async with running(source) as used:
        await asyncio.sleep(0.05)
        assert not used
        copy_pair(pki, "remote", tmp_path)
        await until(lambda: bool(used))
        assert used[0].certificate == pki.files("remote")[0].read_bytes()
        (tmp_path / "tls.key").write_text("nonsense")
        await until(lambda: "stays as it was" in caplog.text)
        (tmp_path / "tls.key").unlink()
        await until(lambda: "tls.key cannot be read" in caplog.text)
        await asyncio.sleep(0.05)
        assert caplog.text.count("stays as it was") == 2  # of each fault once
        assert len(used) == 1
        copy_pair(pki, "node", tmp_path)
        await until(lambda: len(used) == 2)


async def test_files_that_are_missing_at_first_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="cannot be read"):
        await FileSource(tmp_path / "a", tmp_path / "b").first()


# -- signed by home --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person is asked at once, and home is asked again soon."""
    monkeypatch.setattr(csr_source, "HINT_AFTER", 0.02)
    for name in ("RETRY_FIRST", "RETRY_CAP", "ASK_FIRST", "ASK_CAP"):
        monkeypatch.setattr(csr_source, name, 0.02)


@pytest.fixture
async def make(home_api: FakeApi, client_for: ClientFor, tmp_path: Path) -> Make:
    """Makes what `bridge join --serving-certificate csr` has; again for a restart."""
    return Make(await client_for(home_api, "home"), tmp_path / "certs")


class Make:
    """Sources that share a folder, as after a restart."""

    def __init__(self, home: KubeClient, folder: Path) -> None:
        self._home = home
        self.folder = folder
        self.told: list[str] = []

    def __call__(self, *, node: str = NODE, address: str = ADDRESS) -> CsrSource:
        return CsrSource(
            self._home,
            node,
            [address],
            CertDir(self.folder),
            report=self.told.append,
        )


async def test_home_signs_what_a_person_approves(make: Make, home_api: FakeApi) -> None:
    signer, source = Signer(home_api), make()
    begin = await source.first()
    assert not missing_names(begin, NODE, [ADDRESS])
    assert source.origin == "self-signed until home has signed one"
    async with running(source) as used:
        name = await signer.asked()
        await until(lambda: bool(make.told))
        (hint,) = make.told
        assert hint == (
            f"home: waiting for the approval of certificate signing request {name}: "
            f"kubectl certificate approve {name}"
        )
        assert not used
        signer.approve(name)
        await until(lambda: len(make.told) == 2)
        assert "is one of home's, good until 20" in make.told[1]
        (pair,) = used
        leaf = x509.load_pem_x509_certificate(pair.certificate)
        leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(signer.ca.encode()))
        assert not missing_names(pair, NODE, [ADDRESS])
        await home_api.until(lambda: not home_api.open_watches(CERTIFICATE_SIGNING_REQUESTS))
    kept = make.folder / "serving.pem"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(make.folder.stat().st_mode) == 0o700
    assert [file.name for file in make.folder.iterdir()] == ["serving.pem"]

    # A restart needs no other.
    home_api.clear_log()
    again = make()
    assert await again.first() == pair
    assert again.origin.startswith("one of home's, good until 20")
    async with running(again) as used:
        await asyncio.sleep(0.05)
    assert not used
    assert not home_api.log


async def test_who_is_approved_at_once_is_not_told_to_wait(
    make: Make, home_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csr_source, "HINT_AFTER", 5.0)
    signer, source = Signer(home_api), make()
    await source.first()
    async with running(source):
        signer.approve(await signer.asked())
        await until(lambda: bool(make.told))
    assert ["waiting" in line for line in make.told] == [False]


async def test_a_request_that_waits_is_taken_up_after_a_restart(
    make: Make, home_api: FakeApi
) -> None:
    signer, source = Signer(home_api), make()
    await source.first()
    async with running(source):
        name = await signer.asked()
        await until(lambda: len(make.told) == 1)
    source = make()
    await source.first()
    async with running(source) as used:
        await until(lambda: len(make.told) == 2)
        assert await signer.asked() == name
        signer.approve(name)
        await until(lambda: bool(used))


async def test_it_is_renewed_before_it_ends(make: Make, home_api: FakeApi) -> None:
    signer, source = Signer(home_api), make()
    signer.lasts = timedelta(seconds=2)
    await source.first()
    async with running(source) as used:
        signer.approve(await signer.asked())
        await until(lambda: len(used) == 1)
        name = await signer.asked()
        assert datetime.now(UTC) < validity(used[0])[1]
        signer.approve(name)
        await until(lambda: len(used) == 2)
    assert used[0].key != used[1].key
    assert len(home_api.objects(CERTIFICATE_SIGNING_REQUESTS)) == 2


async def test_one_that_is_kept_and_has_ended_or_is_of_another_address_is_not_used(
    make: Make, home_api: FakeApi
) -> None:
    folder = CertDir(make.folder)
    folder.prepare()
    for pair in (
        self_signed(NODE, [ADDRESS], now=datetime.now(UTC) - timedelta(days=999)),
        self_signed(NODE, ["192.0.2.8"]),
        TlsKeyPair(b"nonsense", generate_key()),
        TlsKeyPair(self_signed(NODE, [ADDRESS]).certificate, generate_key()),
    ):
        folder.keep(pair)
        source = make()
        assert await source.first() != pair
        assert source.origin.startswith("self-signed")


async def test_a_request_that_is_denied_is_made_again_ever_more_seldom(
    make: Make,
    home_api: FakeApi,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    class Noted(Backoff):
        def next(self) -> float:
            waits.append(super().next())
            return 0.0

    monkeypatch.setattr(csr_source, "Backoff", Noted)
    monkeypatch.setattr(csr_source, "ASK_FIRST", 60.0)
    monkeypatch.setattr(csr_source, "ASK_CAP", 4 * 3600.0)
    signer, source = Signer(home_api), make()
    await source.first()
    names = []
    async with running(source) as used:
        for _ in range(3):
            names.append(await signer.asked())
            signer.deny(names[-1])
            await until(lambda: len(waits) == len(names))
        assert not used
    assert len(set(names)) == 3
    assert 30 <= waits[0] <= 60 <= waits[1] <= 120 <= waits[2]
    assert f"{names[0]} was denied: KubectlDeny, not here" in caplog.text


async def test_a_request_that_somebody_removes_is_made_again(make: Make, home_api: FakeApi) -> None:
    signer, source = Signer(home_api), make()
    await source.first()
    async with running(source) as used:
        name = await signer.asked()
        await home_api.until(lambda: home_api.open_watches(CERTIFICATE_SIGNING_REQUESTS))
        home_api.remove(CERTIFICATE_SIGNING_REQUESTS, name)
        assert await signer.asked() == name
        signer.approve(name)
        await until(lambda: bool(used))


async def test_what_is_issued_for_other_names_is_not_used(
    make: Make, home_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    signer, source = Signer(home_api), make()
    signer.names = x509.SubjectAlternativeName([x509.DNSName(NODE)])
    await source.first()
    async with running(source) as used:
        first = await signer.asked()
        signer.approve(first)
        await home_api.until(signer.requests)
        assert not used
        assert f"{first} is not good for {ADDRESS}" in caplog.text
        signer.names = None
        signer.approve(await signer.asked())
        await until(lambda: bool(used))


async def test_a_home_that_fails_is_asked_again(
    make: Make, home_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    path = CERTIFICATE_SIGNING_REQUESTS.path()
    fault = home_api.fail(Fault("POST", path, code=403, times=None))
    signer, source = Signer(home_api), make()
    await source.first()
    async with running(source) as used:
        await home_api.until(lambda: len(home_api.requests("POST", path)) > 2)
        home_api.heal(fault)
        # An answer that is lost makes no second request.
        home_api.fail(Fault("POST", path, drop="after"))
        signer.approve(await signer.asked())
        await until(lambda: bool(used))
    assert len(home_api.objects(CERTIFICATE_SIGNING_REQUESTS)) == 1
    assert "the serving certificate: " in caplog.text


async def test_a_key_that_was_kept_and_cannot_be_read_is_replaced(
    make: Make, home_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    signer, source = Signer(home_api), make()
    await source.first()
    CertDir(make.folder).keep_pending(b"nonsense")
    async with running(source) as used:
        signer.approve(await signer.asked())
        await until(lambda: bool(used))
    assert "the key that was kept for a request is not valid PEM" in caplog.text


async def test_a_folder_that_cannot_be_used_is_named(make: Make, tmp_path: Path) -> None:
    (tmp_path / "certs").write_text("a file")
    with pytest.raises(CertificateError, match=r"certs cannot be used .* --cert-dir"):
        await make().first()


async def test_no_key_is_in_a_log_or_a_request(
    make: Make, home_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    signer, source = Signer(home_api), make()
    await source.first()
    async with running(source):
        await signer.asked()
        key = (make.folder / "pending.key").read_text().splitlines()[1]
    assert key not in caplog.text
    assert not [entry for entry in home_api.log if key in str(entry.body)]


def test_a_request_is_named_by_its_key_and_names() -> None:
    key = generate_key()
    one = build_csr(key, NODE, [ADDRESS])["metadata"]["name"]
    assert one.startswith("kubelet-serving-virtual-")
    assert build_csr(key, NODE, [ADDRESS])["metadata"]["name"] == one
    assert build_csr(key, NODE, ["192.0.2.8"])["metadata"]["name"] != one
    assert build_csr(generate_key(), NODE, [ADDRESS])["metadata"]["name"] != one
    assert len(build_csr(key, "n" * 253, [ADDRESS])["metadata"]["name"]) <= 253


@pytest.mark.parametrize("key", [b"", b"nonsense"])
def test_a_key_that_cannot_be_read_is_an_error(key: bytes) -> None:
    with pytest.raises(CertificateError, match="the key that was kept"):
        build_csr(key, NODE, [ADDRESS])


def test_what_becomes_of_a_request() -> None:
    approved = {"type": "Approved", "status": "True"}
    assert csr_outcome({}) == Pending()
    assert csr_outcome({"status": {"conditions": [approved]}}) == Pending()
    assert csr_outcome({"status": {"certificate": "AAAA"}}) == Pending()
    failed = {"type": "Failed", "reason": "SignerValidationFailure", "message": "why"}
    assert csr_outcome({"status": {"conditions": [approved, failed]}}) == Rejected(
        "cannot be signed: SignerValidationFailure, why"
    )
    assert csr_outcome({"status": {"conditions": [{"type": "Denied"}]}}) == Rejected(
        "was denied: no reason is given"
    )
    assert csr_outcome({"status": {"conditions": [approved], "certificate": "!"}}) == Rejected(
        "was answered with something that is no certificate"
    )
