"""The declaration by which the engine runs a controller without depending on its class.

The engine (`sync.engine.engine`) is a loop over declarations, which it uses in this order:

1. *Connect*: all handlers are added to their informers, all queues are paused.

2. *Watch*, also on a standby replica: the informers list and watch. Handlers are called, but a
paused queue drops the keys.

3. *Synced*: every informer has its first full list. Then `prepare` of each declaration runs.

4. *Work*: the queues are resumed; each handler with ``replay`` is called as ``(None, object)`` for
every cached object; `requeue_namespace` is called for every home namespace with pods whose
resources have been listed; then `start` of each declaration. From here on `run` of each declaration
is a task.

5. Cancellation ends `run` and the informers. Nothing is written afterwards.

A handler is called in the event loop and must not wait or raise. It must be idempotent if it is
replayed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sync.cache.informer import Informer
from sync.cache.store_writer import Handler
from sync.kube.api_resources import Resource
from sync.namespaces.per_namespace_informers import RunInNamespace
from sync.references.reference_keys import CopyKey
from sync.runtime.controller import Controller
from translators.object_accessors import HomeNamespace


@dataclass(frozen=True, slots=True)
class Watch:
    """A cluster-wide informer that a controller reads."""

    informer: Informer
    handler: Handler | None = None
    """Called with the old and new state of each object that changes; None to only read the
    cache."""
    replay: bool = True
    """Whether ``handler`` is called for every cached object when work begins. False where that
    would count an object twice, or where `Declaration.requeue_namespace` queues the same keys."""
    on_state: Callable[[Informer], None] | None = None
    """Called when the informer begins to fail, and when it works again."""


@dataclass(frozen=True, slots=True)
class HomeWatch:
    """A resource that a controller reads in each home namespace with pods on the virtual node; of
    ConfigMaps and Secrets only the objects that these pods need."""

    resource: Resource
    handler: Handler


@dataclass(frozen=True, slots=True)
class Declaration:
    """One controller, or another part of the engine that has handlers or a task."""

    name: str
    """The name of the task, and of the queue in metrics."""
    controller: Controller[Any] | None = None
    watches: Sequence[Watch] = ()
    home_watches: Sequence[HomeWatch] = ()
    requeue_namespace: Callable[[HomeNamespace], None] | None = None
    """Queues all keys of a home namespace whose resources were listed, or whose remote namespace
    was deleted."""
    requeue_reference: Callable[[CopyKey], None] | None = None
    """Queues what waits for a ConfigMap or Secret of home, when it was read for the first time, and
    when home begins or ceases to forbid it."""
    namespace_forbidden: Callable[[HomeNamespace], None] | None = None
    """Called when the set of resources that home forbids in a namespace changes."""
    run_in_namespace: RunInNamespace | None = None
    """Runs beside the watches of each home namespace, until it is cancelled with them."""
    own_informers: Callable[[], Sequence[Informer]] | None = None
    """Informers that the controller runs itself, for status and metrics."""
    prepare: Callable[[], Awaitable[None]] | None = None
    """Runs when every informer is synced, before any write. An exception ends the engine."""
    start: Callable[[], None] | None = None
    """Called when the cached objects have been replayed."""
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Works until cancelled; by default ``controller.run``."""


class Component(Protocol):
    """A controller or another part of the engine."""

    def declare(self) -> Declaration:
        """Returns the declaration for the engine. Called once."""
