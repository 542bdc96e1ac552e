"""Authorizes requests to the kubelet API: who may call which path.

Home decides by SubjectAccessReview, as for a kubelet: the caller needs a verb on a subresource of
the virtual node (``nodes/SUBRESOURCE``). `required_verb` derives the verb, `node_subresources` the
subresource. For example, ``/exec`` needs ``create`` on ``nodes/proxy``, and ``/pods`` needs ``get``
on ``nodes/pods`` or ``nodes/proxy``. A denied request gets 403; a review that fails, 500.

Decisions are cached for `ALLOWED_LIFETIME` or `DENIED_LIFETIME`, as a kubelet's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from bridge.kubelet.authn import ReviewClient, User
from bridge.kubelet.error_responses import HttpError
from bridge.net.single_flight_cache import SingleFlightCache
from sync.base import clock
from sync.kube.api_resources import SUBJECT_ACCESS_REVIEWS

#: Seconds, as --authorization-webhook-cache-authorized-ttl and -unauthorized-ttl of a kubelet.
ALLOWED_LIFETIME = 300.0
DENIED_LIFETIME = 30.0

#: Subresources by the first segment of the path, as in a kubelet of 1.34; all other paths need
#: ``proxy``. Only the subresources that are younger than ``proxy`` fall back to it.
_SUBRESOURCES: Mapping[str, tuple[str, ...]] = {
    "stats": ("stats",),
    "metrics": ("metrics",),
    # The bridge's own status pages, which a kubelet does not have.
    "bridge": ("metrics",),
    "logs": ("log",),
    "checkpoint": ("checkpoint",),
    "statusz": ("statusz",),
    "flagz": ("configz",),
    "pods": ("pods", "proxy"),
    "runningpods": ("pods", "proxy"),
    "healthz": ("healthz", "proxy"),
    "livez": ("healthz", "proxy"),
    "readyz": ("healthz", "proxy"),
    "configz": ("configz", "proxy"),
}

#: API verbs of HTTP methods. Other methods (HEAD, OPTIONS) have none and are rejected.
_VERBS: Mapping[str, str] = {
    "GET": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
#: First segments of the paths that run commands or open connections. They need ``create`` whatever
#: the method, because a WebSocket starts with a GET. A kubelet uses the method's verb, so that an
#: account with only ``get`` on nodes/proxy, as monitoring has, can run commands. Home's API server
#: has all verbs on nodes/proxy (ClusterRole ``system:kubelet-api-admin``).
_CONNECTING = frozenset({"exec", "attach", "run", "portForward"})


def node_subresources(segments: tuple[str, ...]) -> tuple[str, ...]:
    """The subresources of ``nodes`` of which the caller needs one, in the order of the reviews."""
    return _SUBRESOURCES.get(segments[0] if segments else "", ("proxy",))


def required_verb(method: str, segments: tuple[str, ...]) -> str | None:
    """The verb that the caller needs; None for a method that no path supports."""
    verb = _VERBS.get(method)
    connects = segments[:1] and segments[0] in _CONNECTING
    return "create" if verb and connects else verb


class Authorizer:
    """Authorizes users for one node. Call `close` at the end."""

    def __init__(
        self, reviews: ReviewClient, node_name: str, *, clock: Callable[[], float] = clock.now
    ) -> None:
        self._reviews = reviews
        self._node = node_name
        self.decisions: SingleFlightCache[tuple[User, str, str], bool] = SingleFlightCache(
            lambda allowed: ALLOWED_LIFETIME if allowed else DENIED_LIFETIME, clock=clock
        )
        """Decisions of SubjectAccessReviews, by user, verb and subresource."""

    async def close(self) -> None:
        await self.decisions.close()

    async def authorize(self, user: User, verb: str, subresources: tuple[str, ...]) -> None:
        """Returns if the user has the verb on one of the subresources.

        Raises HttpError: 403 otherwise, or 500 if home does not answer.
        """
        for subresource in subresources:
            review = partial(self._review, user, verb, subresource)
            if await self.decisions.get((user, verb, subresource), review):
                return
        needed = " or ".join(f"nodes/{subresource}" for subresource in subresources)
        raise HttpError(
            403,
            f"user {user.name!r} may not {verb} {needed} of node {self._node!r} in the home "
            "cluster; a ClusterRole there can allow it",
        )

    async def _review(self, user: User, verb: str, subresource: str) -> bool:
        """Whether the user has the verb on the subresource. Raises HttpError (500)."""
        spec = {
            "user": user.name,
            "groups": list(user.groups),
            "uid": user.uid,
            "extra": {key: list(values) for key, values in user.extra},
            "resourceAttributes": {
                "verb": verb,
                "version": "v1",
                "resource": "nodes",
                "subresource": subresource,
                "name": self._node,
            },
        }
        status = await self._reviews.create(SUBJECT_ACCESS_REVIEWS, spec)
        return status.get("allowed") is True and status.get("denied") is not True
