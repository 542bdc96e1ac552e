"""Whether pods of the remote are reached from this machine, by real connections to some of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bridge.base.settings import NetworkChoice
from bridge.rbac import permissions
from sync.kube.client import KubeClient
from sync.kube.resources import PODS
from translators.objects import Object, is_ready, name_of, namespace_of
from translators.translation_policy import Network

#: Seconds for a connection.
CONNECT = 3.0
#: Pods that are tried, and of how many these are chosen.
TRIED, LOOKED_AT = 3, "100"


@dataclass(frozen=True, slots=True)
class DialResults:
    """What pods of the remote said, each to one attempt at a connection."""

    accepted: Sequence[Object]
    refused: Sequence[Object]
    timed_out: Sequence[Object]
    """Those from whose address nothing came back."""

    @property
    def count(self) -> int:
        """How many were tried."""
        return len(self.accepted) + len(self.refused) + len(self.timed_out)


async def select_network(
    choice: NetworkChoice, *, home: KubeClient, remote: KubeClient, notify: Callable[[str], None]
) -> Network:
    """How pods reach each other: as was asked for, or as is found. For ``auto`` a network is flat
    where every pod that is tried takes a connection, and none of these addresses is a pod's at
    home."""
    if choice != "auto":
        return choice
    answers = await dial_pods(remote)
    flat, why = False, "no pod of the remote is ready to be tried"
    if answers.timed_out:
        why = f"from here no way to {_named(answers.timed_out)}"
    elif answers.refused:
        why = f"{_named(answers.refused)} refuse a connection, which tells nothing"
    elif answers.accepted:
        at_home = [pod for pod in answers.accepted if await _is_at_home(home, pod_ip(pod))]
        flat = not at_home
        why = (
            f"home has pods with the addresses of {_named(at_home)}"
            if at_home
            else f"{answers.count} pod(s) of the remote answer from here"
        )
    network: Network = "flat" if flat else "relay"
    notify(f"both: --network auto: {network}, since {why}")
    return network


async def dial_pods(remote: KubeClient) -> DialResults:
    """What a few of the remote's ready pods answer."""
    page, _ = await remote.list_page(
        PODS, query={"limit": LOOKED_AT, "fieldSelector": "status.phase=Running"}
    )
    pods = [pod for pod in page.items if _has_address(pod)]
    # Those that listen somewhere first, of different machines where that can be.
    pods.sort(key=lambda pod: not list(_ports(pod)))
    chosen = _spread(pods)[:TRIED]
    answers = await asyncio.gather(*(_answer(pod) for pod in chosen))

    def those(wanted: bool | None) -> list[Object]:
        return [pod for pod, answer in zip(chosen, answers, strict=True) if answer is wanted]

    return DialResults(accepted=those(True), refused=those(False), timed_out=those(None))


def pod_ip(pod: Object) -> str:
    """The pod's address; "" where it has none."""
    return str((pod.get("status") or {}).get("podIP") or "")


async def _is_at_home(home: KubeClient, address: str) -> bool:
    query = {"limit": "1", "fieldSelector": f"status.podIP={address}"}
    found = await home.request("GET", PODS.path(), query=query, timeout=permissions.REQUEST_SECONDS)
    return bool(found.get("items"))


def _named(pods: Iterable[Object]) -> str:
    return ", ".join(f"{namespace_of(it)}/{name_of(it)} at {pod_ip(it)}" for it in pods)


def _has_address(pod: Object) -> bool:
    return bool(is_ready(pod) and pod_ip(pod) and not (pod.get("spec") or {}).get("hostNetwork"))


def _ports(pod: Object) -> Iterable[int]:
    for container in (pod.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("protocol", "TCP") == "TCP" and port.get("containerPort"):
                yield int(port["containerPort"])


def _spread(pods: list[Object]) -> list[Object]:
    """One of each machine first."""
    first: dict[str, Object] = {}
    for pod in pods:
        first.setdefault(str((pod.get("spec") or {}).get("nodeName")), pod)
    chosen = list(first.values())
    return chosen + [pod for pod in pods if all(pod is not it for it in chosen)]


async def _answer(pod: Object) -> bool | None:
    """Whether the pod takes a connection; None where nothing comes back from its address."""
    try:
        async with asyncio.timeout(CONNECT):
            _, writer = await asyncio.open_connection(pod_ip(pod), next(iter(_ports(pod)), 80))
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return None
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT):
            await writer.wait_closed()
    return True
