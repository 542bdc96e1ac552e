"""Home's client CA is followed while the bridge runs."""

from __future__ import annotations

import asyncio

import pytest

from bridge.certificates.home_client_ca import NAME, NAMESPACE, follow_client_ca
from bridge.certificates.tls_key_pair import CertificateError
from sync.kube.api_resources import CONFIG_MAPS
from tests.bridge.kubelet.fake_api_servers import wait_until
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi
from tests.objects import config_map


async def test_new_bundle_is_used_and_an_invalid_one_is_logged_once(
    home_api: FakeApi, client_for: ClientFor, caplog: pytest.LogCaptureFixture
) -> None:
    home_api.put(config_map(NAME, NAMESPACE, data={"client-ca-file": "first"}))
    home_api.put(config_map("another", NAMESPACE, data={"client-ca-file": "of another"}))
    used: list[str] = []

    def use(bundle: str) -> None:
        if bundle == "broken":
            raise CertificateError("the client CA is not a bundle")
        used.append(bundle)

    def put(**data: str) -> None:
        home_api.update(CONFIG_MAPS, NAME, {"data": None}, NAMESPACE)
        home_api.update(CONFIG_MAPS, NAME, {"data": data}, NAMESPACE)

    home = await client_for(home_api, "home")
    task = asyncio.create_task(follow_client_ca(home, "first", use))
    await home_api.until(lambda: home_api.open_watches(CONFIG_MAPS))
    assert not used
    put(**{"client-ca-file": "second"})
    await wait_until(lambda: used == ["second"])
    put(**{"client-ca-file": "broken"})
    await wait_until(lambda: "stays in use" in caplog.text)
    put(**{"client-ca-file": "broken", "more": "that changes nothing"})
    put()
    put(**{"client-ca-file": " \n"})
    home_api.remove(CONFIG_MAPS, NAME, NAMESPACE)
    home_api.put(config_map(NAME, NAMESPACE, data={"client-ca-file": "third"}))
    await wait_until(lambda: used == ["second", "third"])
    assert caplog.text.count("stays in use") == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
