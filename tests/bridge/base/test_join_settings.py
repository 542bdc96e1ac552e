"""Validation of join options: each error names its option."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bridge.base.join_settings import (
    JoinSettings,
    SettingsError,
    check_address,
    check_home_name,
    check_name,
    check_relay_address,
    check_relay_cidr,
    parse_home_api,
    parse_ports,
)
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.capacity.node_capacity import NO_LIMITS, OfferLimits


@pytest.mark.parametrize("name", ["burst", "b", "burst-1.example.com", "0", "a" * 253, "a--b"])
def test_valid_node_name_is_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "Burst", "-a", "a-", "a..b", "a.-b", "a-.b", ".a", "a_b", "a" * 254, "a\n"]
)
def test_invalid_node_name_is_rejected(name: str) -> None:
    with pytest.raises(SettingsError, match="--name"):
        check_name(name)


@pytest.mark.parametrize("name", ["berlin", "berlin-1", "a--b", "1"])
def test_valid_home_name_is_accepted(name: str) -> None:
    assert check_home_name(name) == name


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("Berlin", "berlin"), ("a_b", "a-b"), ("", "cluster"), ("-a-", "a"), ("a.b", "a-b")],
)
def test_invalid_home_name_is_rejected_with_a_suggestion(name: str, suggested: str) -> None:
    with pytest.raises(SettingsError, match=f"--home-name: .*such as '{suggested}'"):
        check_home_name(name)


def test_long_home_name_is_rejected() -> None:
    with pytest.raises(SettingsError, match="--home-name"):
        check_home_name("a" * 64)


@pytest.mark.parametrize(
    ("given", "address"),
    [("10.20.0.5", "10.20.0.5"), ("fd00:0::5", "fd00::5"), ("127.0.0.1", "127.0.0.1")],
)
def test_address_is_normalized(given: str, address: str) -> None:
    assert check_address(given) == address


@pytest.mark.parametrize(
    "address",
    ["", "burst.example.com", "10.20.0", "10.20.0.5/24", "0.0.0.0", "::", "224.0.0.1", "fe80::1%2"],
)
def test_undialable_address_is_rejected(address: str) -> None:
    with pytest.raises(SettingsError, match="--address"):
        check_address(address)


def test_settings_are_frozen() -> None:
    settings = JoinSettings(KubeconfigRef(Path("remote.yaml")), KubeconfigRef(Path("home.yaml")))

    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("api.example.com", "api.example.com", 443, "api.example.com:443"),
        ("192.0.2.1:6443", "192.0.2.1", 6443, "192.0.2.1:6443"),
        ("fd00::1", "fd00::1", 443, "[fd00::1]:443"),
        ("[fd00::1]:6443", "fd00::1", 6443, "[fd00::1]:6443"),
        ("[fd00::1]", "fd00::1", 443, "[fd00::1]:443"),
    ],
)
def test_home_api_address_is_parsed(text: str, host: str, port: int, shown: str) -> None:
    found = parse_home_api(text)
    assert found == (host, port)
    assert str(found) == shown


@pytest.mark.parametrize(
    "text", ["", "https://a", "a:b", "a:0", "a:70000", "a/b", "u@a", "a b", "[fd00::1", ":6443"]
)
def test_invalid_home_api_address_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match="--home-api-address"):
        parse_home_api(text)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "169.254.0.1", "x", ""])
def test_invalid_relay_address_is_rejected(address: str) -> None:
    with pytest.raises(SettingsError, match="--relay-address"):
        check_relay_address(address)
    assert check_relay_address("192.0.2.1") == "192.0.2.1"


@pytest.mark.parametrize(
    "text",
    [
        *("", "10.77.0.0", "10.77.0.1/24", "10.0.0.0/8", "10.77.0.0/31", "fd00::/48", "fd00::/127"),
        *("127.77.0.0/24", "169.254.7.0/24", "224.0.7.0/24", "fe80::/112"),
    ],
)
def test_invalid_relay_cidr_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match="--relay-cidr"):
        check_relay_cidr(text)


@pytest.mark.parametrize("text", ["10.77.0.0/24", "10.0.0.0/12", "10.77.0.0/30", "fd00:77::/112"])
def test_relay_cidr_is_parsed(text: str) -> None:
    assert check_relay_cidr(text) == text


def test_port_range_is_parsed() -> None:
    found = parse_ports("30000-30002")
    assert [*found] == [30000, 30001, 30002]
    assert 30002 in found
    assert 30003 not in found
    assert str(found) == "30000-30002"


@pytest.mark.parametrize("text", ["", "1", "0-5", "5-4", "1-65536", "a-b", "1-2-3", "-1-5"])
def test_invalid_port_range_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match="--relay-ports"):
        parse_ports(text)


@pytest.mark.parametrize(
    ("limits", "chosen", "seconds"),
    [
        (NO_LIMITS, None, None),
        (NO_LIMITS, 90.0, 90.0),
        (OfferLimits(elastic={"cpu": 1000}), None, 900.0),
        (OfferLimits(elastic={"cpu": 1000}), 90.0, 90.0),
    ],
)
def test_elastic_remote_has_a_timeout_by_default(
    limits: OfferLimits, chosen: float | None, seconds: float | None
) -> None:
    settings = JoinSettings(
        KubeconfigRef(None), KubeconfigRef(None), limits=limits, unschedulable_timeout=chosen
    )
    assert settings.seconds_unschedulable == seconds
