"""Lays out a node's status as a tree, for the terminal and the HTML page. Pure.

The text of a branch can come from anyone who may write an Event, a condition or a pod. `printable`
removes what a terminal would interpret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from translators.capacity import pod_requests
from translators.object_accessors import Object
from translators.quantity import QuantityError

Tone = Literal["", "good", "warn", "bad", "dim"]

#: The smallest number that is shown; smaller ones are shown as less.
_MIN_SHOWN = 0.01
_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
#: Errors that are shown; the others are only counted.
MAX_ERRORS = 5
#: Lag above which it is highlighted, in seconds.
HIGH_LAG = 10.0


@dataclass(frozen=True, slots=True)
class Branch:
    """A line ``label: text`` with its children."""

    label: str
    text: str = ""
    tone: Tone = ""
    children: tuple[Branch, ...] = ()


def build_tree(status: Object) -> Branch:
    """The tree of one node's status. If the field ``bridge`` is None, ``bridgeUnknown`` is why."""
    below = [
        _conditions(status),
        _network(status),
        _resources(status),
        _pods(status),
        _volumes(status),
        *_bridge(status),
        _versions(status),
    ]
    text, tone = format_readiness(status)
    return Branch(str(status["name"]), text, tone, tuple(it for it in below if it is not None))


def format_readiness(status: Object) -> tuple[str, Tone]:
    """The node's status as in `kubectl get nodes`, and its tone."""
    ready = status.get("ready")
    cordoned = ",SchedulingDisabled" if status.get("cordoned") else ""
    if ready is None:
        return f"Unknown{cordoned}", "bad"
    return (f"Ready{cordoned}", "good") if ready else (f"NotReady{cordoned}", "bad")


def one_line(status: Object) -> str:
    """A one-line summary that changes only on relevant changes; it contains no ages."""
    parts = [format_readiness(status)[0]]
    pods = status.get("pods")
    if pods is not None:
        phases = [f"{count} {phase}" for phase, count in pods["byPhase"].items() if count]
        parts.append(f"{pods['total']} pods" + (f" ({', '.join(phases)})" if phases else ""))
        parts += [f"{pods['refused']} refused"] if pods["refused"] else []
        parts += [f"{pods['deleting']} deleting"] if pods["deleting"] else []
    volumes = status.get("volumes")
    if volumes is not None:
        parts += [f"{volumes['pending']} volumes pending"] if volumes["pending"] else []
        parts += [f"{volumes['missing']} volumes missing"] if volumes["missing"] else []
    bridge = status.get("bridge")
    if bridge is None:
        parts.append("bridge: no answer")
    else:
        failing = sum(it["failing"] for it in bridge["queues"])
        parts += [f"{failing} failing"] if failing else []
        away = [side for side, it in bridge["clusters"].items() if not it["watched"]]
        parts += [f"{side} cannot be watched" for side in away]
    return printable(f"{status['name']}: {', '.join(parts)}")


# -- parts ---------------------------------------------------------------------------------


def _conditions(status: Object) -> Branch | None:
    """One line per condition. All but Ready should be False; those that are share one line."""
    shown, quiet = [], []
    for it in status.get("conditions") or ():
        is_ready = it["type"] == "Ready"
        if it["status"] == "False" and not is_ready:
            quiet.append(it["type"])
            continue
        text = f"{it['status']} ({it['reason']}): {it['message']}"
        is_good = is_ready and it["status"] == "True"
        shown.append(Branch(it["type"], text, "good" if is_good else "bad"))
    if quiet:
        shown.append(Branch("False", ", ".join(quiet), "dim"))
    return Branch("conditions", children=tuple(shown)) if shown else None


def _network(status: Object) -> Branch | None:
    network = status.get("network")
    if network is None:
        return None
    how = "not probed" if network["source"] == "assumed" else network["source"]
    return Branch("pod networks", f"{network['mode']} ({how})")


def _resources(status: Object) -> Branch | None:
    below = []
    for name, it in (status.get("resources") or {}).items():
        if it["capacity"] == it["allocatable"] == "0" and it["requested"] in ("0", None):
            continue
        percent = it["requestedPercent"]
        part = "" if percent is None else f" ({percent} %)"
        used, offered, has = _in_common_unit(
            name, it["requested"], it["allocatable"], it["capacity"]
        )
        text = f"{used} of {offered}{part}; the remote has {has}"
        below.append(Branch(name, text, "warn" if (percent or 0) >= 100 else ""))
    return Branch("capacity and use", children=tuple(below)) if below else None


def _pods(status: Object) -> Branch | None:
    pods = status.get("pods")
    if pods is None:
        why = str(status.get("podsUnknown") or "")
        return Branch("pods", why, "warn") if why else None
    below = [
        Branch(phase, str(count), "bad" if phase == "Failed" else "")
        for phase, count in pods["byPhase"].items()
        if count
    ]
    if pods["deleting"]:
        below.append(Branch("being deleted", str(pods["deleting"])))
    if pods["refused"]:
        named = [
            Branch(f"{it['namespace']}/{it['name']}", f"{it['reason']}: {it['message']}", "warn")
            for it in pods["refusedPods"]
        ]
        if more := pods["refused"] - len(named):
            named.append(Branch("and", f"{more} more", "dim"))
        below.append(
            Branch("not created in the remote", str(pods["refused"]), "warn", tuple(named))
        )
    return Branch("pods", f"{pods['total']}, {pods['ready']} ready", children=tuple(below))


def _volumes(status: Object) -> Branch | None:
    """None without a volume, so that nodes that provision none have no such branch."""
    volumes = status.get("volumes")
    if volumes is None or not (volumes["total"] or volumes["pending"]):
        return None
    below = []
    if volumes["pending"]:
        below.append(Branch("pending", f"{volumes['pending']} PersistentVolumeClaims"))
    if volumes["missing"]:
        named = [
            Branch(it["claim"] or it["name"], it["message"], "bad")
            for it in volumes["missingVolumes"]
        ]
        if more := volumes["missing"] - len(named):
            named.append(Branch("and", f"{more} more", "dim"))
        text = f"{volumes['missing']}, whose pods cannot start"
        below.append(Branch("missing in the remote", text, "bad", tuple(named)))
    text = f"{volumes['total']} with {volumes['capacity']}"
    return Branch("volumes", text, children=tuple(below))


def _bridge(status: Object) -> Iterator[Branch]:
    bridge = status.get("bridge")
    if not bridge:
        yield Branch("bridge", str(status.get("bridgeUnknown") or "not known"), "warn")
        return
    role = bridge["standby"] or "serves the node"
    yield Branch("bridge", f"{role}; up for {format_age(bridge['uptimeSeconds'])}")
    lag = bridge["lagSeconds"]
    yield Branch("lag", f"{lag:.1f} s", "warn" if lag > HIGH_LAG else "")
    yield _queues(bridge["queues"])
    yield _watches(bridge["watches"])
    if any(bridge["streams"].values()):
        streams = (f"{count} {kind}" for kind, count in sorted(bridge["streams"].items()) if count)
        yield Branch("streams", ", ".join(streams))
    yield _errors(bridge["errors"])


def _queues(queues: Iterable[Object]) -> Branch:
    below = []
    for it in queues:
        parts = [
            f"{it[field]} {word}"
            for field, word in (
                ("depth", "waiting"),
                ("working", "worked on"),
                ("failing", "failing"),
            )
            if it[field]
        ]
        if parts:
            below.append(Branch(it["name"], ", ".join(parts), "warn" if it["failing"] else ""))
    return Branch("queues", "" if below else "empty", children=tuple(below))


def _watches(watches: list[Object]) -> Branch:
    failing = [it for it in watches if it["failing"]]
    below = [Branch(f"{it['cluster']} {it['resource']}", it["error"], "bad") for it in failing]
    count = sum(it["watches"] for it in watches)
    silent = [it["silentSeconds"] for it in watches if it["silentSeconds"] is not None]
    last = f", last response {format_age(min(silent))} ago" if silent else ""
    bad = sum(it["failing"] for it in failing)
    text = f"{count}{last}" + (f", {bad} failing" if bad else "")
    return Branch("watches", text, "bad" if bad else "", tuple(below))


def _errors(errors: list[Object]) -> Branch:
    below = []
    for it in errors[:MAX_ERRORS]:
        times = f", {it['count']} times" if it["count"] > 1 else ""
        tone: Tone = "warn" if it["level"] == "warning" else "bad"
        below.append(Branch(f"{it['last']}{times}", it["message"], tone))
    if len(errors) > MAX_ERRORS:
        below.append(Branch("and", f"{len(errors) - MAX_ERRORS} more", "dim"))
    return Branch("recent errors", "" if below else "none", children=tuple(below))


def _versions(status: Object) -> Branch | None:
    versions, bridge = status.get("versions") or {}, status.get("bridge") or {}
    below = []
    if its := bridge.get("version") or versions.get("bridge"):
        below.append(Branch("bridge", its))
    for side, it in (bridge.get("clusters") or {}).items():
        below.append(Branch(side, f"{it['version'] or '?'} at {it['server']}"))
    if versions.get("kubelet"):
        below.append(Branch("the remote's kubelets", versions["kubelet"]))
    return Branch("versions", children=tuple(below)) if below else None


# -- text ----------------------------------------------------------------------------------


def format_age(seconds: float) -> str:
    """``45s``, ``12m``, ``3h``, ``9d``: a duration as kubectl prints ages."""
    for unit, size, least in (("d", 86400, 2), ("h", 3600, 2), ("m", 60, 2)):
        if seconds >= least * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"


def _in_common_unit(resource: str, *quantities: str | None) -> list[str]:
    """Amounts of a resource in the unit of the largest, with few digits; "?" for None."""
    scale = 1000 if resource == pod_requests.CPU else 1
    try:
        amounts = [
            None if it is None else pod_requests.parse_amount(resource, it) for it in quantities
        ]
    except QuantityError:  # From another version of the bridge, or another server.
        return ["?" if it is None else it for it in quantities]
    most = max(it for it in (*amounts, 0) if it is not None)
    power = 0
    if pod_requests.is_in_bytes(resource):
        power = max((at for at in range(len(_UNITS)) if most >= 1024**at), default=0)
    unit = scale * 1024**power
    return ["?" if it is None else _digits(it / unit) + _UNITS[power] * bool(it) for it in amounts]


def _digits(value: float) -> str:
    """At most two decimals; ``<0.01`` for smaller positive values."""
    if 0 < value < _MIN_SHOWN:
        return f"<{_MIN_SHOWN}"
    return f"{value:.2f}".rstrip("0").removesuffix(".")


def plain_text(branch: Branch, depth: int = 0) -> str:
    """The tree in plain lines, indented."""
    lines = [
        f"{'  ' * depth}{heading(branch)}",
        *(plain_text(it, depth + 1) for it in branch.children),
    ]
    return "\n".join(lines)


def heading(branch: Branch) -> str:
    """The branch without its children, as one printable line."""
    return printable(f"{branch.label}: {branch.text}" if branch.text else branch.label)


def printable(text: str) -> str:
    """The text on one line, without characters that a terminal would interpret. A value of another
    type, as another program may send it, is shown as Python does."""
    shown = (
        character if character.isprintable() else " " if character.isspace() else "\ufffd"
        for character in str(text)
    )
    return "".join(shown)
