"""`bridge join`: options become settings, or are rejected before any request."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.consent import Consent
from bridge.base.join_settings import DEFAULT_TAINTS, JoinSettings, PortRange, RelaySettings
from bridge.node.node_option_parsing import parse_taints
from bridge.observability import log_output as to_stderr
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.cli.conftest import Invoke, JoinCalls
from translators.capacity.node_capacity import OfferLimits
from translators.translation_options import HostPort, PodMetadata

REMOTE = ("join", "--kubeconfig", "remote.yaml")


def test_kubeconfig_is_the_only_required_option(invoke: Invoke, joins: JoinCalls) -> None:
    done = invoke(*REMOTE)
    assert done.exit_code == 0
    defaults = JoinSettings(
        KubeconfigRef(Path("remote.yaml")), KubeconfigRef(), taints=parse_taints(DEFAULT_TAINTS)
    )
    assert joins.settings == [defaults]
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "✓ home: a step",
        "✓ stopped; workloads in the remote keep running",
    ]


def test_options_become_settings(invoke: Invoke, joins: JoinCalls) -> None:
    options = {
        "--context": "r",
        "--home-kubeconfig": "home.yaml",
        "--home-context": "h",
        "--name": "burst",
        "--home-name": "berlin",
        "--address": "fd00:0::5",
        "--port": "0",
        "--namespace-template": "{namespace}",
        "--labels": "team=orders,tier=",
        "--annotations": "example.com/note=a b",
        "--taints": "burst:NoExecute",
        "--network": "relay",
        "--relay-address": "192.0.2.9",
        "--relay-ports": "30000-30255",
        "--relay-idle-timeout": "60",
        "--relay-image": "bridge:1",
        "--relay-cidr": "10.77.0.0/24",
        "--daemonsets": "run",
        "--pod-security": "baseline",
        "--control-plane-nodes": "allow",
        "--pod-metadata": "*/*=drop,example.com/*=keep, team=drop",
        "--service-accounts": "remote",
        "--home-api-address": "192.0.2.1",
        "--accept-namespaces": "team-*,shop",
        "--remote-namespaces": "shop-e2e, blog-e2e",
        "--node-selector": "pool=burst",
        "--reserve": "cpu=2",
        "--share": "0.9",
        "--limits": "cpu=16,memory=64Gi,pods=50",
        "--unschedulable-timeout": "90",
        "--tls-cert-file": "tls.crt",
        "--tls-private-key-file": "tls.key",
    }
    done = invoke(*REMOTE, *(word for option in options.items() for word in option))
    assert done.exit_code == 0, done.stderr
    assert joins.settings == [
        JoinSettings(
            remote=KubeconfigRef(Path("remote.yaml"), "r"),
            home=KubeconfigRef(Path("home.yaml"), "h"),
            name="burst",
            home_name="berlin",
            address="fd00::5",
            port=0,
            template="{namespace}",
            labels={"team": "orders", "tier": ""},
            annotations={"example.com/note": "a b"},
            taints=({"key": "burst", "effect": "NoExecute"},),
            network="relay",
            relay=RelaySettings(
                "192.0.2.9",
                PortRange(30000, 30255),
                idle=60.0,
                image="bridge:1",
                cidr="10.77.0.0/24",
            ),
            daemonsets="run",
            pod_security="baseline",
            control_plane_nodes="allow",
            pod_metadata=PodMetadata(("*/*", "team"), ("example.com/*",)),
            service_accounts="remote",
            home_api=HostPort("192.0.2.1", 443),
            accept_namespaces=("team-*", "shop"),
            remote_namespaces=("shop-e2e", "blog-e2e"),
            unschedulable_timeout=90.0,
            certificate=Path("tls.crt"),
            key=Path("tls.key"),
            limits=OfferLimits(
                {"cpu": 2000},
                Fraction(9, 10),
                {"cpu": 16_000, "memory": 64 * 2**30, "pods": 50},
            ),
            node_selector={"pool": "burst"},
        )
    ]


@pytest.mark.parametrize("network", ["flat", "none"])
@pytest.mark.parametrize(
    "option", [("--relay-image", "bridge:1"), ("--relay-cidr", "10.77.0.0/24")]
)
def test_relay_options_require_network_relay(
    invoke: Invoke, joins: JoinCalls, option: tuple[str, str], network: str
) -> None:
    done = invoke(*REMOTE, *option, "--network", network)
    assert done.exit_code == 2
    assert f"{option[0]} requires --network relay or auto, not {network}" in done.stderr
    assert joins.settings == []


def test_certificate_is_automatic_by_default(invoke: Invoke, joins: JoinCalls) -> None:
    assert invoke(*REMOTE, "--cert-dir", "certs").exit_code == 0
    (settings,) = joins.settings
    assert (settings.serving, settings.cert_dir) == ("auto", Path("certs"))


@pytest.mark.parametrize("flag", ["--yes", "-y"])
def test_yes_is_consent_without_a_question(invoke: Invoke, joins: JoinCalls, flag: str) -> None:
    assert invoke(*REMOTE, flag).exit_code == 0
    assert joins.consents == [Consent(assume_yes=True)]


def test_without_terminal_and_yes_there_is_no_consent(invoke: Invoke, joins: JoinCalls) -> None:
    assert invoke(*REMOTE).exit_code == 0
    assert not joins.consents[0].is_possible


def test_csr_certificate_options_become_settings(invoke: Invoke, joins: JoinCalls) -> None:
    options = ("--serving-certificate", "csr", "--cert-dir", "certs")
    assert invoke(*REMOTE, *options).exit_code == 0
    (settings,) = joins.settings
    assert (settings.serving, settings.cert_dir) == ("csr", Path("certs"))
    assert settings.certificate is None


@pytest.mark.parametrize(
    "options",
    [
        "--tls-cert-file a --tls-private-key-file b --serving-certificate csr",
        "--tls-cert-file a --tls-private-key-file b --serving-certificate self-signed",
        "--cert-dir certs --serving-certificate self-signed",
    ],
)
def test_conflicting_certificate_options_are_rejected(
    invoke: Invoke, joins: JoinCalls, options: str
) -> None:
    done = invoke(*REMOTE, *options.split())
    assert done.exit_code == 2
    assert "--serving-certificate" in done.stderr
    assert joins.settings == []


@pytest.mark.parametrize(
    "wrong",
    [
        ("--name", "Not Good"),
        ("--home-name", "Not Good"),
        ("--accept-namespaces", "shop,"),
        ("--accept-namespaces", "Shop"),
        ("--remote-namespaces", "shop-*"),
        ("--address", "somewhere"),
        ("--labels", "nonsense"),
        ("--annotations", "nonsense"),
        ("--taints", "nonsense"),
        ("--daemonsets", "perhaps"),
        ("--pod-security", "strict"),
        ("--control-plane-nodes", "yes"),
        ("--pod-metadata", "a b=drop"),
        ("--pod-metadata", "istio.io/*"),
        ("--pod-metadata", "istio.io/*=pass"),
        ("--pod-metadata", "istio.io/*=keep,"),
        ("--pod-metadata", "istio.io/*=keep,istio.io/*=drop"),
        ("--network", "wide"),
        ("--service-accounts", "Home"),
        ("--home-api-address", "https://192.0.2.1"),
        ("--unschedulable-timeout", "0"),
        ("--tls-cert-file", "tls.crt"),
        ("--tls-private-key-file", "tls.key"),
        ("--serving-certificate", "perhaps"),
        ("--port", "many"),
        ("--node-selector", "burst"),
        ("--reserve", "cpu=some"),
        ("--share", "90%"),
        ("--limits", "memory=64GB"),
    ],
    ids=lambda wrong: wrong[0],
)
def test_invalid_option_is_named_before_any_request(
    invoke: Invoke, joins: JoinCalls, wrong: tuple[str, str]
) -> None:
    done = invoke(*REMOTE, *wrong)
    assert done.exit_code == 2
    assert wrong[0] in done.stderr
    assert joins.settings == []


@pytest.mark.parametrize(
    "option", ["--name", "--home-name", "--address", "--labels", "--annotations", "--taints"]
)
def test_empty_value_is_not_the_default(invoke: Invoke, joins: JoinCalls, option: str) -> None:
    """For example from an empty variable of a script."""
    done = invoke(*REMOTE, option, "")
    assert done.exit_code == 2
    assert done.stderr.startswith(f'error: {option}: "" is not ')
    assert joins.settings == []


def test_failed_join_prints_one_error_line(invoke: Invoke, joins: JoinCalls) -> None:
    joins.raises = PreflightError("what, where, what next")
    done = invoke(*REMOTE)
    assert done.exit_code == 1
    assert done.stderr.splitlines() == ["✓ home: a step", "error: what, where, what next"]


@pytest.mark.parametrize(
    ("args", "verbose"), [((), False), (("-v",), True), (("--verbose",), True)]
)
def test_verbose_configures_the_log(
    invoke: Invoke,
    joins: JoinCalls,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    verbose: bool,
) -> None:
    messages = []
    monkeypatch.setattr(
        to_stderr, "configure_logging", lambda *, verbose, **_: messages.append(verbose)
    )
    invoke(*REMOTE, *args)
    assert messages == [verbose]
