"""Creates, replaces and deletes the relay agent's Pods in the remote.

There is at most one current Pod per home namespace (`translators.relay.agent_pod`).

- A Pod that has failed or does not answer is deleted and replaced, with growing delays while the
  replacements fail too. So is a Pod that another client deletes, while no replacement serves.
- A Pod that a user deletes, or whose spec is outdated, serves until its replacement serves.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sync.base.backoff import Backoff
from sync.declaration.controller_context import ControllerContext
from sync.kube.api_errors import Forbidden, Invalid
from sync.kube.api_resources import PODS
from sync.runtime.controller import ReconcileBlocked
from sync.runtime.log_fields import changes, name_fields
from translators.object_accessors import HomeNamespace, Object, name_of, namespace_of, uid_of
from translators.relay import agent_pod, reverse_plan
from translators.relay.agent_pod import AgentPodPlan, AgentState

#: Seconds between agent Pods that fail: the first time, and at most.
RECREATE_SECONDS, MAX_RECREATE_SECONDS = 1.0, 60.0
#: The reason of the `ReconcileBlocked` and of the Event if the remote rejects an agent Pod.
POD_REJECTED = "RelayBackRefused"


@dataclass(slots=True)
class _Failures:
    """The failed Pods of a namespace. Times are the event loop's."""

    next_creation: float = 0.0
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first=RECREATE_SECONDS, cap=MAX_RECREATE_SECONDS)
    )
    creations: Backoff = field(
        default_factory=lambda: Backoff(first=RECREATE_SECONDS, cap=MAX_RECREATE_SECONDS)
    )
    """The times between the creations after the first one, whatever became of the Pods."""
    has_created: bool = False
    """Whether a Pod was created since one served."""
    counted: frozenset[str] = frozenset()
    """UIDs of failed Pods that still exist: each delays the next creation once."""


class AgentPods:
    """The agent Pods of one virtual node. ``agent_state`` returns the state of a Pod's agent, known
    from its control connection."""

    def __init__(
        self, context: ControllerContext, agent_state: Callable[[Object], AgentState]
    ) -> None:
        self._client = context.remote
        self._policy = context.policy
        self._identity = context.identity
        self._namespaces = context.namespaces
        self._remote_pods = context.remote_pods
        self._agent_state = agent_state
        self._failures: dict[HomeNamespace, _Failures] = {}

    def present(self, home: HomeNamespace) -> list[Object]:
        """The agent Pods of this node for the namespace."""
        pods = self._remote_pods.store.by_index("relay", home)
        return [it for it in pods if reverse_plan.is_own_relay_object(it, self._identity)]

    def plan(self, pods: Sequence[Object], ports: frozenset[int], *, needed: bool) -> AgentPodPlan:
        """The Pods that serve, and those to create and delete."""
        spec_hash = agent_pod.spec_hash(self._policy.relay_image, self._policy.node_selector)
        return agent_pod.plan_agent_pods(
            pods,
            desired_hash=spec_hash if needed else None,
            listening=self.listens_on(ports),
            unresponsive=lambda pod: self._agent_state(pod).unresponsive,
        )

    def listens_on(self, ports: frozenset[int]) -> Callable[[Object], bool]:
        """A predicate: the Pod is connected and listens on all of these ports that its agent
        supports."""

        def listens(pod: Object) -> bool:
            state = self._agent_state(pod)
            return bool(ports) and ports <= state.listening | state.unsupported

        return listens

    def unsupported(self, pod: Object) -> frozenset[int]:
        """The ports that the Pod's agent does not support."""
        return self._agent_state(pod).unsupported

    def serves(self, home: HomeNamespace) -> None:
        """Resets the delay, because a Pod of the namespace serves."""
        if failures := self._failures.get(home):
            failures.backoff.reset()
            if failures.has_created:
                failures.creations.reset()
                failures.has_created, failures.next_creation = False, 0.0

    async def apply(self, home: HomeNamespace, plan: AgentPodPlan, now: float) -> float:
        """Deletes and creates Pods as planned; returns the seconds until a creation may be retried,
        or 0. Raises KubeError, and ReconcileBlocked (`POD_REJECTED`) if the remote rejects the
        Pod."""
        failures = self._failures.setdefault(home, _Failures())
        failed = frozenset(map(uid_of, plan.failed))
        if failed - failures.counted:
            failures.next_creation = max(failures.next_creation, now + failures.backoff.next())
        failures.counted = failed
        for pod in plan.delete:
            await self._client.delete(
                PODS, name_of(pod), namespace=namespace_of(pod), uid=uid_of(pod)
            )
            _log_change(home, pod, "deleted")
        if not plan.create:
            return 0.0
        if failures.next_creation > now:
            return failures.next_creation - now
        await self._create(home)
        if failures.has_created:
            failures.next_creation = now + failures.creations.next()
        failures.has_created = True
        return 0.0

    async def _create(self, home: HomeNamespace) -> None:
        namespace = await self._namespaces.ensure(home)
        body = agent_pod.agent_pod(
            f"cluster-bridge-relay-{secrets.token_hex(4)}",
            home,
            self._identity,
            image=self._policy.relay_image,
            node_selector=self._policy.node_selector,
        )
        try:
            pod = await self._client.create(PODS, body, namespace=namespace)
        except (Forbidden, Invalid) as error:
            message = f"the remote cluster rejects the relay agent's Pod: {error.message}"
            raise ReconcileBlocked(POD_REJECTED, message) from error
        self._remote_pods.observe_write(pod)
        _log_change(home, pod, "created")

    def forget(self, home: HomeNamespace) -> None:
        self._failures.pop(home, None)

    def problems(
        self, home: HomeNamespace, pods: Iterable[Object], plan: AgentPodPlan
    ) -> Iterator[tuple[str, str]]:
        """(reason, message) of an Event for each obstacle that keeps an agent from serving."""
        where = f"in namespace {self._identity.remote_namespace(home)} of the remote cluster"
        image = f"(image {self._policy.relay_image})"
        if reason := agent_pod.blocking_reason(pods):
            yield "RelayBackWaiting", f"the relay agent {where} does not run: {reason} {image}"
        for pod in plan.failed:
            if self._agent_state(pod).unresponsive:
                message = f"the relay agent {name_of(pod)} {where} does not answer: replacing it"
                yield "RelayBackSilent", message
        if plan.current is not None:
            state = self._agent_state(plan.current)
            warning = state.version_warning
            if state.unsupported:
                todo = warning or "set --relay-image to the image of this bridge"
                warning = f"it does not forward UDP; {todo}"
            if warning:
                message = f"the relay agent {where} is of another version {image}: {warning}"
                yield "RelayBackVersion", message


def _log_change(home: HomeNamespace, pod: Object, change: str) -> None:
    changes.info(
        "relay: agent Pod %s/%s for namespace %s %s",
        namespace_of(pod),
        name_of(pod),
        home,
        change,
        extra=name_fields("Pod", name_of(pod), namespace=namespace_of(pod), cluster="remote"),
    )
