"""Assigns ports of the kubelet API to joins of one process that do not set one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from bridge.base.join_settings import KUBELET_PORT, Part


def assign_ports(
    parts: Mapping[str, Part], without_port: Collection[str], kept: Mapping[str, int]
) -> dict[str, Part]:
    """The joins by key, each of ``without_port`` with a port: the one that it has (``kept``), or
    else the next free one, upwards from a kubelet's."""
    taken = {
        it.settings.port
        for key, it in parts.items()
        if key not in without_port and it.state == "joined"
    }
    assigned: dict[str, int] = {}
    for key in without_port:
        port = kept.get(key, 0)
        if port and port not in taken:
            assigned[key] = port
            taken.add(port)
    free = (port for port in range(KUBELET_PORT, 65536) if port not in taken)
    for key in without_port:
        if key not in assigned:
            assigned[key] = next(free)
    return {
        key: replace(it, settings=replace(it.settings, port=assigned[key]))
        if key in assigned
        else it
        for key, it in parts.items()
    }
