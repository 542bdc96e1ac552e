"""`bridge offload`, `unoffload` and `webhook`: options and output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bridge.offload import in_cluster_webhook, namespace_offloading, standalone_webhook
from bridge.offload.in_cluster_webhook import InClusterWebhookSettings
from bridge.offload.namespace_offloading import OffloadSettings
from bridge.offload.standalone_webhook import StandaloneWebhookSettings
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.cli.conftest import Invoke
from translators.object_accessors import Object
from translators.offload_admission_patch import Offloading

HOME = KubeconfigRef()


@dataclass
class OffloadCalls:
    """Replaces the functions behind the commands: records their settings."""

    settings: list[OffloadSettings | StandaloneWebhookSettings | InClusterWebhookSettings] = field(
        default_factory=list
    )
    listed: list[Object] = field(default_factory=list)

    async def offload(self, settings: OffloadSettings, *, notify: Callable[[str], None]) -> Object:
        self.settings.append(settings)
        notify("home: it is done")
        nodes, tiers = dict(settings.offloading.nodes), list(settings.offloading.tiers)
        answer: Object = {"namespace": "shop", "policy": "burst", "by": "policy"}
        return {**answer, "nodeSelector": nodes, "tiers": tiers, "podSelector": {}}

    async def unoffload(
        self, settings: OffloadSettings, *, notify: Callable[[str], None]
    ) -> Object:
        self.settings.append(settings)
        return {"namespace": "shop", "policy": None, "others": []}

    async def serve(
        self,
        settings: StandaloneWebhookSettings | InClusterWebhookSettings,
        *,
        notify: Callable[[str], None],
        stop: asyncio.Event,
    ) -> None:
        self.settings.append(settings)

    async def list_all(self, home: KubeconfigRef) -> list[Object]:
        assert home == HOME
        return self.listed


@pytest.fixture
def offloading(monkeypatch: pytest.MonkeyPatch) -> OffloadCalls:
    """Commands record their settings instead of writing to a cluster."""
    calls = OffloadCalls()
    monkeypatch.setattr(namespace_offloading, "offload_namespace", calls.offload)
    monkeypatch.setattr(namespace_offloading, "unoffload_namespace", calls.unoffload)
    monkeypatch.setattr(standalone_webhook, "serve", calls.serve)
    monkeypatch.setattr(in_cluster_webhook, "serve", calls.serve)
    monkeypatch.setattr(namespace_offloading, "list_offloaded_namespaces", calls.list_all)
    return calls


def test_table_is_on_stdout_and_progress_on_stderr(
    invoke: Invoke, offloading: OffloadCalls
) -> None:
    tiers = ("--tier", "price=low", "--tier", "price=high,zone=a")
    done = invoke("offload", "shop", "--node-selector", "a=b,c=d", *tiers)
    assert done.exit_code == 0
    assert done.stderr == "✓ home: it is done\n"
    assert done.stdout.splitlines() == [
        "NAMESPACE   POLICY   VIRTUAL NODES   TIERS                           PODS   BY",
        "shop        burst    a=b,c=d         price=low > price=high,zone=a   all    policy",
    ]
    wanted = Offloading(
        "burst", {"a": "b", "c": "d"}, ({"price": "low"}, {"price": "high", "zone": "a"})
    )
    assert offloading.settings == [OffloadSettings(HOME, "shop", wanted)]


def test_options_become_settings(invoke: Invoke, offloading: OffloadCalls) -> None:
    options = ("--policy", "remote-only", "--by", "webhook", "--dry-run", "-o", "json")
    done = invoke("offload", "shop", *options, "--pod-selector", "app=batch")
    assert json.loads(done.stdout)["namespace"] == "shop"
    assert invoke("unoffload", "shop", "--dry-run").exit_code == 0
    assert invoke("webhook", "--address", "192.0.2.1", "--port", "0").exit_code == 0
    assert offloading.settings == [
        OffloadSettings(
            HOME, "shop", Offloading("remote-only", pods={"app": "batch"}), "webhook", dry_run=True
        ),
        OffloadSettings(HOME, "shop", dry_run=True),
        StandaloneWebhookSettings(HOME, "192.0.2.1", 0),
    ]


def test_without_namespace_lists_offloaded_namespaces(
    invoke: Invoke, offloading: OffloadCalls
) -> None:
    assert invoke("offload").stdout == "no namespace is offloaded\n"
    for name, selector, by in (("blog", {"a": "b"}, "webhook"), ("shop", {}, "")):
        offloading.listed.append(
            {"namespace": name, "policy": "burst", "nodeSelector": selector, "by": by}
        )
    assert invoke("offload").stdout.splitlines() == [
        "NAMESPACE   POLICY   VIRTUAL NODES   TIERS   PODS   BY",
        "blog        burst    a=b             none    all    webhook",
        "shop        burst    all             none    all    nothing",
    ]
    assert json.loads(invoke("offload", "-o", "json").stdout) == {"namespaces": offloading.listed}
    assert offloading.settings == []


def test_webhook_runs_behind_a_service(invoke: Invoke, offloading: OffloadCalls) -> None:
    done = invoke("webhook", "--address", "192.0.2.1", "--port", "1", "--service", "ns/name")
    assert done.exit_code == 0
    assert offloading.settings == [InClusterWebhookSettings(HOME, "ns", "name", "192.0.2.1", 1)]


@pytest.mark.parametrize(
    "args",
    [
        ("offload", "kube-system"),
        ("offload", "shop", "--policy", "local-only", "--node-selector", "a=b"),
        ("offload", "shop", "--node-selector", "nonsense"),
        ("offload", "shop", "--policy", "local-only", "--tier", "a=b"),
        ("offload", "shop", "--tier", "a=b", "--tier", "a=b"),
        ("offload", "shop", *(part for number in range(10) for part in ("--tier", f"a={number}"))),
        ("offload", "shop", "--tier", "nonsense"),
        ("offload", "shop", "--pod-selector", "nonsense"),
        ("offload", "--tier", "a=b"),
        ("offload", "--pod-selector", "a=b"),
        ("offload", "shop", "--policy", "nonsense"),
        ("offload", "--policy", "burst"),
        ("offload", "--dry-run"),
        ("webhook", "--service", "ns/name"),
        ("webhook", "--service", "name", "--address", "192.0.2.1"),
        ("webhook", "--address", "0.0.0.0"),
    ],
)
def test_conflicting_options_are_rejected(
    invoke: Invoke, offloading: OffloadCalls, args: tuple[str, ...]
) -> None:
    done = invoke(*args)
    assert done.exit_code == 2
    assert offloading.settings == []
