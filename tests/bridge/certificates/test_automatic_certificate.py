"""``--serving-certificate auto``: self-signed until a client needs a certificate of home."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.base.consent import NO_CONSENT
from bridge.base.progress_lines import Caveat, Waiting
from bridge.certificates.automatic_certificate import AutoSource, CertificateDemand
from bridge.certificates.cert_dir import CertDir
from bridge.certificates.csr import CsrSource
from bridge.certificates.csr_approval import Approver
from bridge.certificates.signing_request import generate_key
from bridge.certificates.tls_key_pair import TlsKeyPair
from bridge.certificates.x509_builder import missing_names
from bridge.rbac import permissions
from sync.kube.client import KubeClient
from tests.bridge.certificates.running_source import ADDRESS, NODE, running_source
from tests.bridge.kubelet.fake_api_servers import wait_until
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi
from tests.fakeapi.csr_signer import Signer


class AutoSourceFactory:
    """Creates sources that share a directory, as after a restart."""

    def __init__(self, home: KubeClient, folder: Path) -> None:
        self._home = home
        self.folder = folder
        self.store = CertDir(folder)
        self.reports: list[str] = []
        self.probes = 0
        self.signed = 0
        self.demand = CertificateDemand()

    def __call__(self) -> AutoSource:
        self.demand = CertificateDemand()
        return AutoSource(
            NODE,
            [ADDRESS],
            self.demand,
            signed=self._signed_source,
            is_stored=self.store.is_in_use,
            probe=self._probe,
            on_signed=self._on_signed,
            notify=self.reports.append,
        )

    def _signed_source(self) -> CsrSource:
        approver = Approver(self._home, permissions.may_approve, NO_CONSENT)
        return CsrSource(
            self._home, NODE, [ADDRESS], self.store, approver=approver, notify=self.reports.append
        )

    async def _probe(self) -> None:
        self.probes += 1

    def _on_signed(self) -> None:
        self.signed += 1


@pytest.fixture
async def make(home_api: FakeApi, client_for: ClientFor, tmp_path: Path) -> AutoSourceFactory:
    return AutoSourceFactory(await client_for(home_api, "home"), tmp_path / "certs")


async def test_without_demand_there_is_no_request_and_no_directory(
    make: AutoSourceFactory, home_api: FakeApi
) -> None:
    home_api.clear_log()
    source = make()
    assert not missing_names(await source.first(), NODE, [ADDRESS])
    assert source.origin.startswith("self-signed")
    async with running_source(source) as used:
        await asyncio.sleep(0.02)
        assert make.probes == 0
        make.demand.node_registered.set()
        await wait_until(lambda: make.probes == 1)
        await asyncio.sleep(0.02)
    assert (make.probes, make.signed, used) == (1, 0, [])
    assert not home_api.log
    assert not make.folder.exists()


async def test_demand_leads_to_a_request_and_reports_its_command_at_once(
    make: AutoSourceFactory, home_api: FakeApi
) -> None:
    signer, source = Signer(home_api), make()
    await source.first()
    async with running_source(source) as used:
        make.demand.report("the client at 192.0.2.1 rejects it")
        name = await signer.requested()
        await wait_until(lambda: len(make.reports) == 2)
        reason, command = make.reports
        assert isinstance(reason, Caveat)
        assert reason == (
            "home: the client at 192.0.2.1 rejects it; kubectl logs and exec fail until home has "
            "signed the kubelet API's certificate"
        )
        assert isinstance(command, Waiting)
        assert command.endswith(f"kubectl certificate approve {name}")
        assert make.signed == 1
        signer.approve(name)
        await wait_until(lambda: len(used) == 1)


async def test_second_demand_changes_nothing(make: AutoSourceFactory, home_api: FakeApi) -> None:
    signer, source = Signer(home_api), make()
    await source.first()
    async with running_source(source):
        for reason in ("first", "second"):
            make.demand.report(reason)
        await signer.requested()
        await wait_until(lambda: bool(make.reports))
    assert "first" in make.reports[0]
    assert make.signed == 1


async def test_stored_certificate_is_used_at_once(
    make: AutoSourceFactory, home_api: FakeApi
) -> None:
    signer, source = Signer(home_api), make()
    await source.first()
    async with running_source(source) as used:
        make.demand.report("a client rejects it")
        signer.approve(await signer.requested())
        await wait_until(lambda: bool(stored_certificates(make)))
    (pair,) = used
    home_api.clear_log()
    source = make()
    assert await source.first() == pair
    assert source.origin.startswith("signed by home")
    assert make.signed == 2
    async with running_source(source):
        await asyncio.sleep(0.02)
    assert not home_api.log


def stored_certificates(make: AutoSourceFactory) -> list[str]:
    """The names of the stored certificates."""
    return [it.name for it in make.store.files() if it.name == "serving.pem"]


@pytest.mark.parametrize("kind", ["pending", "unusable"])
async def test_rest_of_an_earlier_certificate_is_a_demand(
    make: AutoSourceFactory, home_api: FakeApi, kind: str
) -> None:
    await make.store.prepare()
    if kind == "pending":
        await make.store.keep_pending(generate_key())
    else:
        await make.store.keep(TlsKeyPair(b"nonsense", generate_key()))
    signer, source = Signer(home_api), make()
    assert not missing_names(await source.first(), NODE, [ADDRESS])
    async with running_source(source) as used:
        signer.approve(await signer.requested())
        await wait_until(lambda: bool(used))


async def test_unusable_directory_does_not_end_the_join(
    make: AutoSourceFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "certs").write_text("a file")
    source = make()
    assert not missing_names(await source.first(), NODE, [ADDRESS])
    async with running_source(source):
        make.demand.report("a client rejects it")
        await wait_until(lambda: "cannot store a certificate in" in caplog.text)
