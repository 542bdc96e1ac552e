"""Dials pods of the remote from this machine, to find out whether the pod networks are
connected."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from bridge.rbac import permissions
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from translators.object_accessors import Object, is_ready, name_of, namespace_of

#: Timeout of a connection in seconds.
CONNECT_SECONDS = 3.0
#: How many pods are dialed, and of how many they are chosen.
MAX_DIALED, PAGE_LIMIT = 3, "100"
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class DialResults:
    """Pods of the remote, by the result of one connection attempt each."""

    accepted: Sequence[Object]
    refused: Sequence[Object]
    timed_out: Sequence[Object]
    """Pods whose address did not respond."""

    @property
    def count(self) -> int:
        """The number of pods dialed."""
        return len(self.accepted) + len(self.refused) + len(self.timed_out)


async def dial_pods(remote: KubeClient, namespaces: Collection[str] = ()) -> DialResults:
    """Dials a few ready pods of the remote, or of these namespaces, preferably on different nodes.
    Raises KubeError."""
    query = {"limit": PAGE_LIMIT, "fieldSelector": "status.phase=Running"}
    pages = [
        await remote.list_page(PODS, namespace=it, query=query) for it in namespaces or (None,)
    ]
    ready = [pod for page, _ in pages for pod in page.items if _has_address(pod)]
    # A pod that declares no port refuses connections on any network.
    pods = [pod for pod in ready if list(_ports(pod))] or ready
    chosen = _spread(pods)[:MAX_DIALED]
    answers = await asyncio.gather(*(_dial(pod) for pod in chosen))

    def with_result(expected: bool | None) -> list[Object]:
        return [pod for pod, answer in zip(chosen, answers, strict=True) if answer is expected]

    return DialResults(
        accepted=with_result(True), refused=with_result(False), timed_out=with_result(None)
    )


def pod_ip(pod: Object) -> str:
    """The IP of the pod; "" for none."""
    return str((pod.get("status") or {}).get("podIP") or "")


async def find_pods_at(client: KubeClient, address: str) -> list[Object]:
    """At most one pod of the cluster with this address. Raises KubeError."""
    query = {"limit": "1", "fieldSelector": f"status.podIP={address}"}
    found = await client.request(
        "GET", PODS.path(), query=query, timeout=permissions.REQUEST_SECONDS
    )
    return found.get("items") or []


def describe_pod(pod: Object) -> str:
    """``NAMESPACE/NAME at IP``."""
    return f"{namespace_of(pod)}/{name_of(pod)} at {pod_ip(pod)}"


def _has_address(pod: Object) -> bool:
    """Whether the pod is ready, and has an address of its own."""
    try:
        ipaddress.ip_address(pod_ip(pod))
    except ValueError:
        return False
    # A zone, as in fe80::1%eth0, may be any text.
    is_own = "%" not in pod_ip(pod) and not (pod.get("spec") or {}).get("hostNetwork")
    return is_ready(pod) and is_own


def _ports(pod: Object) -> Iterable[int]:
    for container in (pod.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            number = int(port.get("containerPort") or 0)
            if port.get("protocol", "TCP") == "TCP" and 1 <= number <= MAX_PORT:
                yield number


def _spread(pods: list[Object]) -> list[Object]:
    """The pods, beginning with one of each node."""
    first: dict[str, Object] = {}
    for pod in pods:
        first.setdefault(str((pod.get("spec") or {}).get("nodeName")), pod)
    chosen = list(first.values())
    return chosen + [pod for pod in pods if all(pod is not it for it in chosen)]


async def _dial(pod: Object) -> bool | None:
    """Whether the pod accepts a connection; None if its address does not respond."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(pod_ip(pod), next(iter(_ports(pod)), 80))
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return None
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_SECONDS):
            await writer.wait_closed()
    return True
