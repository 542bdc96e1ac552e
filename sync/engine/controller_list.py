"""The list of all controllers. A new controller is added here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sync.cleanup.empty_namespaces import EmptyNamespaceController
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Component
from sync.mirror.copy_controller import CopyController
from sync.mirror.event_mirror import EventMirror
from sync.pods.pod_controller import PodController
from sync.pods.service_account_tokens import TokenController
from sync.relay.forward_controller import ForwardRelayController, Listeners
from sync.relay.reverse_controller import Forwarder, ReverseRelayController
from sync.storage.capacity_controller import StorageCapacityController
from sync.storage.pvc_controller import PvcController
from sync.storage.snapshot_controller import SnapshotController
from sync.storage.volume_controller import VolumeController


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """Settings of single controllers, in addition to the context."""

    namespace_linger: float
    """Seconds for which an empty remote namespace, or an unneeded relay agent, is kept."""
    copy_linger: float
    """Seconds for which a copy that no pod needs is kept."""
    listeners: Listeners | None = None
    """Forwards connections from home to the remote; None without a relay."""
    forwarder: Forwarder | None = None
    """Forwards connections from the remote to home; None without relay agents."""


#: Builds every controller of an engine.
Build = Callable[[ControllerContext, ControllerOptions], Sequence[Component]]


def build_controllers(context: ControllerContext, options: ControllerOptions) -> list[Component]:
    """Every controller, in the order in which status and metrics show the queues."""
    copies = CopyController(context, linger=options.copy_linger)
    tokens = TokenController(context)
    pods = PodController(context, copies=copies, tokens=tokens)
    # Prepared namespaces are never deleted.
    cleanup = EmptyNamespaceController(context, linger=options.namespace_linger)
    controllers: list[Component] = [
        copies,
        tokens,
        pods,
        EventMirror(context, in_burst=pods.in_burst),
        *([] if context.policy.remote_namespaces else [cleanup]),
        ReverseRelayController(context, options.forwarder, linger=options.namespace_linger),
    ]
    if context.storage is not None:
        controllers += [
            PvcController(context, context.storage),
            VolumeController(context, context.storage),
            StorageCapacityController(context, context.storage),
        ]
        if (snapshots := context.storage.snapshots) is not None:
            controllers.append(SnapshotController(context, context.storage, snapshots))
    if options.listeners is not None:
        controllers.append(ForwardRelayController(context, options.listeners, pods=pods))
    return controllers
