"""DNS of a native cluster: CoreDNS, behind the Service kube-system/kube-dns.

CoreDNS is a process beside the other components, at the node's address: it needs no image and no
pod, and runs before the first pod resolves a name. The Service has the address that kubelets give
to pods, no selector, and an EndpointSlice that leads to the process. CoreDNS resolves the cluster's
names and answers NXDOMAIN for all others at once: the clusters have no access to other networks.
"""

from __future__ import annotations

import functools
import os
import secrets
import signal
import socket
import struct
from pathlib import Path
from typing import Any

from e2e.clusters.cluster import API_SERVER
from e2e.clusters.native_control_plane import DNS
from e2e.clusters.native_site import Site

COMPONENTS = (DNS,)

DOMAIN = "cluster.local"
PORT = 53

START_TIMEOUT = 60.0
#: Seconds to wait for one response; callers repeat lost queries.
ANSWER_TIMEOUT = 1.0

_NAME = "kube-dns"
_NAMESPACE = "kube-system"
_ROLE = "system:coredns"
_RBAC = "rbac.authorization.k8s.io"


def start(site: Site, folder: Path) -> None:
    """Starts CoreDNS; needs a ready API server.

    :raises StartFailed: one of its objects cannot be created.
    """
    config = site.folder / "Corefile"
    config.write_text(corefile(site))
    site.supervisor.start(DNS, [folder / DNS, "-conf", config])
    api = site.api
    for path, body in objects(site):
        # A server that has just started rejects requests for a moment: it has yet to create
        # kube-system and to load the Service address range.
        made = functools.partial(api.create_if_absent, path, body)
        site.wait(f"POST {path} was accepted", made, (API_SERVER,), START_TIMEOUT)
    api.close()


def wait(site: Site) -> None:
    """Waits until pods can resolve names, kube-proxy's rules included.

    :raises StartFailed: CoreDNS ended, or names did not resolve in time.
    """
    name = f"kubernetes.default.svc.{DOMAIN}"
    address = str(site.plan.dns)
    site.wait("names resolved", lambda: resolves(name, address), COMPONENTS, START_TIMEOUT)


def corefile(site: Site) -> str:
    """CoreDNS's configuration. Responses are valid for one second: tests wait for changes."""
    return f"""\
import {added_blocks(site)}/*
{DOMAIN}:{PORT} in-addr.arpa:{PORT} ip6.arpa:{PORT} {{
    bind {site.plan.node.ip}
    errors
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {site.kubeconfig(DNS)} {site.spec.name}
        ttl 1
    }}
    loadbalance
}}
.:{PORT} {{
    bind {site.plan.node.ip}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def added_blocks(site: Site) -> Path:
    """The folder of further server blocks, which `add_block` writes."""
    return site.folder / "Corefile.d"


def add_block(site: Site, name: str, block: str | None) -> None:
    """Adds, replaces or removes (None) the block of this name, for a port of its own or queries of
    its own (`view`), and has CoreDNS read its configuration again."""
    file = added_blocks(site) / name
    if block is None:
        file.unlink(missing_ok=True)
    else:
        file.parent.mkdir(exist_ok=True)
        file.write_text(in_place(block, site))
    pid = site.supervisor.pid(DNS)
    assert pid is not None, f"CoreDNS of {site.spec.name} runs"
    os.kill(pid, signal.SIGUSR1)


def in_place(block: str, site: Site) -> str:
    """A server block as for a CoreDNS in a pod, for the process: with its address and its
    kubeconfig."""
    opened, _, inner = block.partition("{\n")
    serving = f"{opened}{{\n    bind {site.plan.node.ip}\n{inner}"
    zone = f"kubernetes {DOMAIN} {{\n"
    assert zone in serving
    config = f"        kubeconfig {site.kubeconfig(DNS)} {site.spec.name}\n        ttl 1\n"
    return serving.replace(zone, zone + config)


def objects(site: Site) -> list[tuple[str, dict[str, Any]]]:
    """The API objects of CoreDNS: (path to post to, object)."""
    core = f"/api/v1/namespaces/{_NAMESPACE}"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{_NAMESPACE}/endpointslices"
    ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
    meta = {"name": _NAME, "labels": {"k8s-app": _NAME, "kubernetes.io/name": "CoreDNS"}}
    rules = [
        {
            "apiGroups": [""],
            "resources": ["services", "namespaces", "pods"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        },
    ]
    return [
        (
            f"/apis/{_RBAC}/v1/clusterroles",
            {"metadata": {"name": _ROLE}, "rules": rules},
        ),
        (
            f"/apis/{_RBAC}/v1/clusterrolebindings",
            {
                "metadata": {"name": _ROLE},
                "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": _ROLE},
                "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": _ROLE}],
            },
        ),
        (
            f"{core}/services",
            {
                "metadata": meta,
                "spec": {
                    "clusterIP": str(site.plan.dns),
                    "ports": [{"name": n, "protocol": p, "port": PORT} for n, p in ports],
                },
            },
        ),
        (
            slices,
            {
                "metadata": {"name": _NAME, "labels": {"kubernetes.io/service-name": _NAME}},
                "addressType": "IPv4",
                "endpoints": [
                    {"addresses": [str(site.plan.node.ip)], "conditions": {"ready": True}}
                ],
                "ports": [{"name": n, "protocol": p, "port": PORT} for n, p in ports],
            },
        ),
    ]


def resolves(name: str, server: str) -> bool:
    """Whether the DNS server at that address has an IPv4 address for the name."""
    number = secrets.randbits(16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(ANSWER_TIMEOUT)
        try:
            asking.connect((server, PORT))
            asking.send(question(name, number))
            answer = asking.recv(4096)
        except OSError:
            return False
    return is_answered(answer, number)


def question(name: str, number: int) -> bytes:
    """A DNS message that queries the IPv4 addresses of a name (RFC 1035, 4.1)."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    header = struct.pack("!6H", number, 0x0100, 1, 0, 0, 0)  # Recursion desired, one question.
    return header + labels + b"\0" + struct.pack("!2H", 1, 1)  # Type A, class IN.


def is_answered(message: bytes, number: int) -> bool:
    """Whether a DNS message answers the question of that number with at least one record."""
    if len(message) < 12:
        return False
    found, flags, _, answers = struct.unpack("!4H", message[:8])
    return bool(found == number and flags & 0x8000 and not flags & 0x000F and answers)
