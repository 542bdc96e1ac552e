"""`bridge offload`, `unoffload` and `webhook`: options, and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bridge.offload import commands, webhook
from bridge.offload.commands import OffloadSettings
from bridge.offload.webhook import WebhookSettings
from sync.kube.access import KubeconfigRef
from tests.bridge.cli.conftest import Invoke
from translators.types import Object

HOME = KubeconfigRef()


@dataclass
class Asked:
    """What the commands were called with."""

    settings: list[OffloadSettings | WebhookSettings] = field(default_factory=list)

    async def offload(self, settings: OffloadSettings, *, told: Callable[[str], None]) -> Object:
        self.settings.append(settings)
        told("home: it is done")
        selector = dict(settings.selector)
        return {"namespace": "shop", "policy": "burst", "nodeSelector": selector, "by": "policy"}

    async def unoffload(self, settings: OffloadSettings, *, told: Callable[[str], None]) -> Object:
        self.settings.append(settings)
        return {"namespace": "shop", "policy": None, "others": []}

    async def serve(
        self, settings: WebhookSettings, *, told: Callable[[str], None], stop: asyncio.Event
    ) -> None:
        self.settings.append(settings)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Nothing is written."""
    noted = Asked()
    monkeypatch.setattr(commands, "offload_namespace", noted.offload)
    monkeypatch.setattr(commands, "unoffload_namespace", noted.unoffload)
    monkeypatch.setattr(webhook, "serve", noted.serve)
    return noted


def test_the_answer_is_a_table_and_progress_is_apart(invoke: Invoke, asked: Asked) -> None:
    done = invoke("offload", "shop", "--node-selector", "a=b,c=d")
    assert done.exit_code == 0
    assert done.stderr == "✓ home: it is done\n"
    assert done.stdout.splitlines() == [
        "NAMESPACE   POLICY   VIRTUAL NODES   BY",
        "shop        burst    a=b,c=d         policy",
    ]
    assert asked.settings == [OffloadSettings(HOME, "shop", selector={"a": "b", "c": "d"})]


def test_every_option_becomes_a_setting(invoke: Invoke, asked: Asked) -> None:
    options = ("--policy", "remote-only", "--by", "webhook", "--dry-run", "-o", "json")
    done = invoke("offload", "shop", *options)
    assert json.loads(done.stdout)["namespace"] == "shop"
    assert invoke("unoffload", "shop", "--dry-run").exit_code == 0
    assert invoke("webhook", "--address", "192.0.2.1", "--port", "0").exit_code == 0
    assert asked.settings == [
        OffloadSettings(HOME, "shop", "remote-only", {}, "webhook", dry_run=True),
        OffloadSettings(HOME, "shop", dry_run=True),
        WebhookSettings(HOME, "192.0.2.1", 0),
    ]


@pytest.mark.parametrize(
    "args",
    [
        ("offload", "kube-system"),
        ("offload", "shop", "--policy", "local-only", "--node-selector", "a=b"),
        ("offload", "shop", "--node-selector", "nonsense"),
        ("offload", "shop", "--policy", "nonsense"),
        ("offload",),
        ("webhook", "--address", "0.0.0.0"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    invoke: Invoke, asked: Asked, args: tuple[str, ...]
) -> None:
    done = invoke(*args)
    assert done.exit_code == 2
    assert asked.settings == []
