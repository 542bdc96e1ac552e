"""Parses the `join` options about the Node and its capacity, with the API server's validation
rules.

The rules are those of k8s.io/apimachinery/pkg/util/validation (IsQualifiedName, IsValidLabelValue)
and of ValidateTaintsInNodeAddition in pkg/apis/core/validation. All functions raise SettingsError.
"""

from __future__ import annotations

import re
from fractions import Fraction

from bridge.base.join_settings import SettingsError, invalid_option
from bridge.node.node_metadata_merge import is_fixed
from translators.capacity import pod_requests
from translators.capacity.node_capacity import OfferLimits
from translators.object_accessors import Object
from translators.ownership_labels import DOMAIN
from translators.quantity import QuantityError

#: A soft taint that the bridge sets while pods wait for a node of the remote
#: (`bridge.node.node_object`).
TAINT_UNSCHEDULABLE = f"{DOMAIN}/unschedulable"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_PART}(\.{_PART})*")
#: Resources of ``--limits``.
_LIMITED = (pod_requests.CPU, pod_requests.MEMORY, pod_requests.PODS)
#: Taints of these domains are set by home's controllers from the node's conditions.
_CONTROLLERS = ("node.kubernetes.io", "node.cloudprovider.kubernetes.io")


def parse_labels(text: str) -> dict[str, str]:
    """``KEY=VALUE[,KEY=VALUE]``."""
    found = _pairs("--labels", text, "tier=burst")
    for key, value in found.items():
        _check_key("--labels", key, key)
        _check_value("--labels", value)
    return found


def parse_annotations(text: str) -> dict[str, str]:
    """``KEY=VALUE[,KEY=VALUE]``; a value has no comma."""
    found = _pairs("--annotations", text, "team=web")
    for key in found:
        # Only in annotations may the domain have capitals (ValidateAnnotations).
        _check_key("--annotations", key, key.lower())
    return found


def parse_taints(text: str) -> tuple[Object, ...]:
    """``KEY[=VALUE]:EFFECT[,…]`` as kubectl writes it, or ``none``."""
    if text == "none":
        return ()
    found: dict[tuple[str, str], Object] = {}
    for part in text.split(","):
        pair, colon, effect = part.rpartition(":")
        key, _, value = pair.partition("=")
        if not colon or not key or effect not in EFFECTS:
            raise invalid_option(
                "--taints",
                part,
                "a taint",
                f"KEY=VALUE:EFFECT[,...] with an effect of {', '.join(EFFECTS)}, or none",
            )
        _check_name("--taints", key, key)
        _check_value("--taints", value)
        if key == TAINT_UNSCHEDULABLE or key.partition("/")[0] in _CONTROLLERS:
            raise SettingsError(
                f"--taints: {key}: controllers manage this taint; choose another key"
            )
        if (key, effect) in found:
            raise SettingsError(f"--taints: {key}:{effect} is given twice")
        found[key, effect] = {"key": key, "effect": effect} | ({"value": value} if value else {})
    return tuple(found.values())


def parse_limits(
    *, reserve: str | None, share: str, caps: str | None, elastic: str | None
) -> OfferLimits:
    """The options that determine the node's capacity."""
    return OfferLimits(
        reserve=_amounts("--reserve", reserve, "cpu=2,memory=4Gi"),
        share=_share(share),
        caps=_caps(caps),
        elastic=_elastic(elastic),
    )


def _caps(text: str | None) -> dict[str, int]:
    """``RESOURCE=AMOUNT[,…]`` of some of `_LIMITED`."""
    found = _amounts("--limits", text, "cpu=16,memory=64Gi,pods=110")
    if unknown := next((resource for resource in found if resource not in _LIMITED), None):
        raise invalid_option("--limits", unknown, "a limited resource", "cpu, memory or pods")
    return found


def _elastic(text: str | None) -> dict[str, int]:
    """``RESOURCE=AMOUNT[,…]``, each above 0."""
    found = _amounts("--elastic", text, "cpu=64,memory=256Gi")
    if empty := next((resource for resource, amount in found.items() if not amount), None):
        raise SettingsError(f"--elastic: {empty} is 0; leave it out, or use a higher amount")
    return found


def parse_selector(text: str, option: str = "--node-selector") -> dict[str, str]:
    """``KEY=VALUE[,KEY=VALUE]``, labels of nodes or pods."""
    found = _pairs(option, text, "pool=burst")
    for key, value in found.items():
        _check_name(option, key, key)
        _check_value(option, value)
    return found


def _pairs(option: str, text: str, example: str) -> dict[str, str]:
    """``KEY=VALUE,KEY=VALUE``, each key once."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or not key:
            raise invalid_option(
                option, part, "KEY=VALUE", f"KEY=VALUE[,KEY=VALUE], such as {example}"
            )
        if key in found:
            raise SettingsError(f"{option}: {key} is given twice")
        found[key] = value
    return found


def _amounts(option: str, text: str | None, example: str) -> dict[str, int]:
    """``RESOURCE=AMOUNT[,…]``; None has none."""
    pairs = {} if text is None else _pairs(option, text, example)
    return {
        resource: _amount(f"{option}: {resource}", resource, quantity)
        for resource, quantity in pairs.items()
    }


def _amount(option: str, resource: str, quantity: str) -> int:
    try:
        found = pod_requests.parse_amount(resource, quantity)
    except QuantityError as error:
        raise SettingsError(f"{option}: {error}") from error
    if found < 0:
        raise SettingsError(f'{option}: "{quantity}" is negative; use 0 or more')
    return found


def _share(text: str) -> Fraction:
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise invalid_option(
            "--share", text, "a share", "a number above 0 and at most 1, such as 0.9"
        )
    return share


def _check_key(option: str, key: str, name: str) -> None:
    _check_name(option, key, name)
    if is_fixed(key):
        raise SettingsError(f"{option}: {key}: the bridge itself sets it; choose another key")


def _check_name(option: str, key: str, name: str) -> None:
    domain, slash, last = name.rpartition("/")
    fits = _NAME.fullmatch(last) and (
        not slash or (_DOMAIN.fullmatch(domain) and len(domain) < 254)
    )
    if not fits:
        raise invalid_option(
            option,
            key,
            "a key",
            "NAME or DOMAIN/NAME; NAME has up to 63 letters, digits, '-', '_' and '.', with a "
            "letter or digit at either end",
        )


def _check_value(option: str, value: str) -> None:
    if value and not _NAME.fullmatch(value):
        raise invalid_option(
            option,
            value,
            "a value",
            "up to 63 letters, digits, '-', '_' and '.', with a letter or digit at either end",
        )
