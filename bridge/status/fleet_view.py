"""Reduces the statuses of several remotes to an overview: health, capacity and use. Pure.

`build_remote` reduces the status of a virtual node (`bridge.status.node_pod_summary` and the
bridge's own) to what `bridge status` and `bridge dashboard` show of each remote. It contains no
ages, so that it changes only when something does.
"""

from __future__ import annotations

from bridge.status.status_tree import HIGH_LAG, Tone, format_readiness
from translators.capacity.pod_requests import is_in_bytes
from translators.object_accessors import Object
from translators.quantity import QuantityError, parse_quantity

#: Errors of a bridge that are shown.
MAX_ERRORS = 10
_ORDER: dict[Tone, int] = {"bad": 0, "warn": 1, "dim": 2, "good": 3, "": 4}


def build_remote(status: Object) -> Object:
    """One remote of the overview. ``health`` has a tone and the problems, the worst first."""
    bridge = status.get("bridge") or {}
    clusters = bridge.get("clusters") or {}
    problems = find_problems(status)
    return {
        "name": status["name"],
        "status": format_readiness(status)[0],
        "tier": status.get("tier") or "",
        "cost": status.get("cost"),
        "cordoned": bool(status.get("cordoned")),
        "created": status.get("created"),
        "health": {
            "tone": problems[0][0] if problems else "good",
            "problems": [{"tone": tone, "text": text} for tone, text in problems],
        },
        "resources": _resources(status),
        "pods": status.get("pods"),
        "volumes": status.get("volumes"),
        "network": (status.get("network") or {}).get("mode") or "",
        "versions": {
            "bridge": str(bridge.get("version") or (status.get("versions") or {}).get("bridge")),
            "kubelet": str((status.get("versions") or {}).get("kubelet") or ""),
            "remote": str((clusters.get("remote") or {}).get("version") or ""),
        },
        "server": str((clusters.get("remote") or {}).get("server") or ""),
        "started": _scalar(bridge.get("started")),
        "lag": _scalar(bridge.get("lagSeconds")),
        "errors": [
            {key: _scalar(value) for key, value in error.items()}
            for error in list(bridge.get("errors") or ())[:MAX_ERRORS]
        ],
    }


def _scalar(value: object) -> str | float | None:
    """The text or number; None for anything else that another program may send."""
    return value if isinstance(value, str | int | float) else None


def find_problems(status: Object) -> list[tuple[Tone, str]]:
    """The problems of a node and its bridge with their tones, the worst first."""
    found: list[tuple[Tone, str]] = []
    for condition in status.get("conditions") or ():
        is_ready = condition["type"] == "Ready"
        if is_ready and status.get("ready") is not True:
            found.append(("bad", f"{format_readiness(status)[0]}: {condition['message']}"))
        elif not is_ready and condition["status"] != "False":
            found.append(("warn", f"{condition['type']}: {condition['message']}"))
    if status.get("ready") is not True and not found:
        found.append(("bad", format_readiness(status)[0]))
    bridge = status.get("bridge")
    if bridge is None:
        found.append(("warn", f"bridge: {status.get('bridgeUnknown') or 'no answer'}"))
    else:
        found += _bridge_problems(bridge)
    if why := status.get("podsUnknown"):
        found.append(("warn", f"pods: {why}"))
    if missing := (status.get("volumes") or {}).get("missing"):
        found.append(("bad", f"{missing} volumes are missing in the remote"))
    if status.get("cordoned"):
        found.append(("dim", "cordoned: takes no new pods"))
    return sorted(found, key=lambda it: _ORDER[it[0]])


def _bridge_problems(bridge: Object) -> list[tuple[Tone, str]]:
    found: list[tuple[Tone, str]] = []
    for side, cluster in (bridge.get("clusters") or {}).items():
        if not cluster.get("watched", True):
            found.append(
                ("bad", f"{side} cannot be watched: {cluster.get('error') or 'no answer'}")
            )
    lag = bridge.get("lagSeconds") or 0.0
    if lag > HIGH_LAG:
        found.append(("warn", f"lag of {lag:.0f} s"))
    if failing := sum(it.get("failing", 0) for it in bridge.get("queues") or ()):
        found.append(("warn", f"{failing} changes fail and are retried"))
    return found


def _resources(status: Object) -> list[Object]:
    """Resources with their amounts as numbers: cores, bytes, or counts."""
    found = []
    for name, its in (status.get("resources") or {}).items():
        allocatable, requested = _number(its["allocatable"]), _number(its["requested"])
        if not allocatable and not requested:
            continue
        found.append(
            {
                "name": name,
                "unit": "bytes" if is_in_bytes(name) else "",
                "allocatable": allocatable,
                "capacity": _number(its["capacity"]),
                "requested": requested,
                "percent": its["requestedPercent"],
            }
        )
    return found


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(parse_quantity(text))
    except QuantityError:  # A bridge's answer, which may be of another version.
        return None


def tier_key(remote: Object) -> tuple[bool, str, float, str]:
    """Sorts remotes by tier, those without one last, then by cost and name."""
    cost = remote["cost"]
    is_without = not remote["tier"]
    return is_without, remote["tier"], cost if cost is not None else float("inf"), remote["name"]
