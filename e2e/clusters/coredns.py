"""Names in a native cluster: CoreDNS, behind the Service kube-system/kube-dns.

A process beside the other components, at the node's address: it needs no image and no pod, and is
there before the first pod looks for a name. The Service has the address that kubelets tell their
pods, no selector, and an EndpointSlice that leads to the process. Names of the cluster resolve;
every other is said not to exist, at once: the clusters have no way out.
"""

from __future__ import annotations

import functools
import secrets
import socket
import struct
from pathlib import Path
from typing import Any

from e2e.clusters.native_control_plane import API_SERVER, DNS
from e2e.clusters.native_site import Site

COMPONENTS = (DNS,)

DOMAIN = "cluster.local"
PORT = 53

START_TIMEOUT = 60.0
#: Seconds for one answer; a question that is lost is asked again.
ANSWER_TIMEOUT = 1.0

_NAME = "kube-dns"
_NAMESPACE = "kube-system"
_ROLE = "system:coredns"
_RBAC = "rbac.authorization.k8s.io"


def start(site: Site, folder: Path) -> None:
    """Start it; needs a ready API server.

    :raises StartFailed: one of its objects cannot be made.
    """
    config = site.folder / "Corefile"
    config.write_text(corefile(site))
    site.supervisor.start(DNS, [folder / DNS, "-conf", config])
    api = site.api
    for path, body in objects(site):
        # A server that has just started refuses for a moment: it has yet to make kube-system, and
        # to learn which addresses Services can have.
        made = functools.partial(api.made, path, body)
        site.wait(f"POST {path} was accepted", made, (API_SERVER,), START_TIMEOUT)
    api.close()


def wait(site: Site) -> None:
    """Wait until names resolve where pods ask, kube-proxy's rules included.

    :raises StartFailed: it ended, or it took too long.
    """
    name = f"kubernetes.default.svc.{DOMAIN}"
    address = str(site.plan.dns)
    site.wait("names resolved", lambda: resolves(name, address), COMPONENTS, START_TIMEOUT)


def corefile(site: Site) -> str:
    """CoreDNS's configuration. Answers live for a second: tests look for what changes."""
    return f"""\
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


def objects(site: Site) -> list[tuple[str, dict[str, Any]]]:
    """What it needs in the cluster: (path to post to, object)."""
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
    """Whether the DNS server at that address knows an IPv4 address of the name."""
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
    """A DNS message that asks for the IPv4 addresses of a name (RFC 1035, 4.1)."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    header = struct.pack("!6H", number, 0x0100, 1, 0, 0, 0)  # Recursion desired, one question.
    return header + labels + b"\0" + struct.pack("!2H", 1, 1)  # Type A, class IN.


def is_answered(message: bytes, number: int) -> bool:
    """Whether a DNS message answers the question of that number with at least one record."""
    if len(message) < 12:
        return False
    found, flags, _, answers = struct.unpack("!4H", message[:8])
    return bool(found == number and flags & 0x8000 and not flags & 0x000F and answers)
