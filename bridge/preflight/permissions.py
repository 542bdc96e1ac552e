"""The rights that the bridge needs on either side, and the question whether it has them.

These tables are the one source: a right that the code uses stands here, and is asked for at join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge.settings import JoinSettings, MetricsSource
from sync.kube.client import KubeClient
from sync.kube.resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_METRICS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    SECRETS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)
from translators.types import Object

#: Seconds for one question to an API server.
QUESTION = 6.0
#: A sentence with more rights than this is no sentence; the first ones show the direction.
NAMED = 6


@dataclass(frozen=True, slots=True)
class Right:
    """One resource (or subresource) and what is done to it."""

    resource: Resource
    verbs: tuple[str, ...]
    subresource: str = ""
    namespace: str = ""


HOME = (
    Right(NAMESPACES, ("get",), namespace="kube-system"),
    Right(NODES, ("create", "get", "list", "watch", "patch")),
    Right(NODES, ("patch",), "status"),
    Right(PODS, ("get", "list", "watch", "delete")),
    Right(PODS, ("patch",), "status"),
    Right(CONFIG_MAPS, ("list", "watch")),
    Right(SECRETS, ("list", "watch")),
    Right(SERVICES, ("list", "watch")),
    Right(ENDPOINT_SLICES, ("list", "watch")),
    Right(EVENTS, ("create", "get", "list", "patch")),
    Right(LEASES, ("create", "patch"), namespace="kube-node-lease"),
    Right(TOKEN_REVIEWS, ("create",)),
    Right(SUBJECT_ACCESS_REVIEWS, ("create",)),
)
#: What home must allow too where pods have tokens of its service accounts; the address of its API
#: server is looked up where the kubeconfig's is on loopback.
HOME_TOKENS = (
    Right(SERVICE_ACCOUNTS, ("create",), "token"),
    Right(ENDPOINT_SLICES, ("get",), namespace="default"),
)
#: What home must allow too where it is to sign the serving certificate.
HOME_CERTIFICATES = (Right(CERTIFICATE_SIGNING_REQUESTS, ("create", "list", "watch")),)
REMOTE = (
    Right(NODES, ("list", "watch")),
    # Kinds that it may not list in a namespace of its own keep that from being removed, no more.
    Right(NAMESPACES, ("create", "get", "list", "watch", "delete")),
    Right(PODS, ("create", "get", "list", "watch", "patch", "delete")),
    Right(PODS, ("patch",), "ephemeralcontainers"),
    Right(PODS, ("patch",), "resize"),
    Right(PODS, ("get",), "log"),
    Right(PODS, ("create", "get"), "exec"),
    Right(PODS, ("create", "get"), "attach"),
    Right(PODS, ("create", "get"), "portforward"),
    Right(CONFIG_MAPS, ("create", "get", "list", "watch", "patch", "delete")),
    Right(SECRETS, ("create", "get", "list", "watch", "patch", "delete")),
    Right(SERVICES, ("create", "get", "list", "watch", "patch", "delete")),
    Right(ENDPOINT_SLICES, ("create", "get", "list", "watch", "patch", "delete")),
    Right(PRIORITY_CLASSES, ("list", "watch")),
    Right(RESOURCE_QUOTAS, ("list", "watch")),
    Right(EVENTS, ("list", "watch")),
)
#: By which the bridge learns what pods use; either will do, and the rest works without. The first
#: is wide: on a kubelet a GET can run commands in any container of its node. The API server knows
#: no finer one for its proxy (`nodes/metrics` and the like count where a kubelet is dialled).
REMOTE_METRICS: Mapping[MetricsSource, tuple[Right, ...]] = {
    "kubelets": (Right(NODES, ("get",), "proxy"),),
    "api": (Right(POD_METRICS, ("list",)),),
}


def at_home(settings: JoinSettings) -> tuple[Right, ...]:
    """The rights that home must allow, by what is asked for."""
    tokens = HOME_TOKENS if settings.service_accounts == "home" else ()
    certificates = HOME_CERTIFICATES if settings.serving == "csr" else ()
    return (*HOME, *tokens, *certificates)


async def lacking(*, home: KubeClient, remote: KubeClient, settings: JoinSettings) -> str:
    """One sentence that names the rights that are missing; "" where none is."""
    asked = [(home, right, verb) for right in at_home(settings) for verb in right.verbs]
    asked += [(remote, right, verb) for right in REMOTE for verb in right.verbs]
    allowed = await asyncio.gather(*(_may(*question) for question in asked))
    missing = [question for question, answer in zip(asked, allowed, strict=True) if not answer]
    parts = []
    for client in (home, remote):
        names = [_name(right, verb) for who, right, verb in missing if who is client]
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            parts.append(f"{client.side}: the credential may not {', '.join(names[:NAMED])}{more}")
    if not parts:
        return ""
    return "; ".join(parts) + "; grant these rights or use another credential"


async def may_all(client: KubeClient, rights: Iterable[Right]) -> bool:
    """Whether the credential has all of these."""
    asked = [(right, verb) for right in rights for verb in right.verbs]
    return all(await asyncio.gather(*(_may(client, right, verb) for right, verb in asked)))


async def _may(client: KubeClient, right: Right, verb: str) -> bool:
    attributes: Object = {
        "group": right.resource.group,
        "resource": right.resource.plural,
        "verb": verb,
    }
    if right.subresource:
        attributes["subresource"] = right.subresource
    if right.namespace:
        attributes["namespace"] = right.namespace
    body: Object = {
        "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
        "spec": {"resourceAttributes": attributes},
    }
    path = SELF_SUBJECT_ACCESS_REVIEWS.path()
    answer = await client.request("POST", path, body=body, timeout=QUESTION)
    return bool((answer.get("status") or {}).get("allowed"))


def _name(right: Right, verb: str) -> str:
    plural = str(right.resource)
    return f"{verb} {plural}/{right.subresource}" if right.subresource else f"{verb} {plural}"
