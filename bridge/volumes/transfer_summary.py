"""The options and the result of a transfer, and what it will do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.volumes.data_transfer import Copied
from bridge.volumes.progress_meter import format_size
from bridge.volumes.transfer_checks import TransferPlan
from translators.object_accessors import Object, name_of


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The options of a transfer."""

    namespace: str
    claim: str
    to: str
    """The target node."""
    image: str
    new_name: str = ""
    """The target claim of a copy; "" for a move."""
    storage_class: str = ""
    delete_old: bool = False
    """Delete the old data after a move."""
    timeout: float = 300.0
    """Seconds for transfer pods to start, and to end."""

    @property
    def is_move(self) -> bool:
        return not self.new_name


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The outcome of a transfer, or of its dry run."""

    plan: TransferPlan | None
    """None if an earlier command had copied the data, and this one has finished the move."""
    target: str
    """The name of the target claim."""
    copied: Copied | None = None
    old_deleted: bool = False


def describe(plan: TransferPlan, settings: TransferSettings, target: str) -> list[str]:
    """The steps of a transfer, a line for each."""
    namespace, claim = settings.namespace, settings.claim
    second = "a second PersistentVolumeClaim" if settings.is_move else "PersistentVolumeClaim"
    created = f"{second} {namespace}/{target} ({plan.size}, {plan.storage_class})"
    lines = [
        f"create {created} on node {name_of(plan.target_node)}, for the copy",
        f"run two pods of {settings.image} in namespace {namespace}, on {node_names(plan)}",
        f"copy the data of PersistentVolumeClaim {namespace}/{claim}, and compare checksums",
    ]
    if settings.is_move:
        verb = "delete" if settings.delete_old else "keep"
        lines += [
            f"swap the volumes of both: {namespace}/{claim} has its data on {settings.to}",
            f"{verb} the old volume, in {namespace}/{target}",
        ]
    return lines


def node_names(plan: TransferPlan) -> str:
    source, target = name_of(plan.source_node), name_of(plan.target_node)
    return target if source == target else f"{source} and {target}"


def copied_message(copied: Copied) -> str:
    files = "1 file" if copied.files == 1 else f"{copied.files} files"
    return (
        f"{files} ({format_size(copied.size)}) copied in {copied.copy_seconds:.1f} s, and verified "
        f"in {copied.verify_seconds:.1f} s"
    )


def as_json(settings: TransferSettings, result: TransferResult, *, dry_run: bool) -> Object:
    """The result for programs."""
    plan, copied = result.plan, result.copied
    return {
        "namespace": settings.namespace,
        "claim": settings.claim,
        "target": result.target,
        "node": settings.to,
        "sourceNode": name_of(plan.source_node) if plan else None,
        "storageClass": plan.storage_class if plan else None,
        "capacity": plan.size if plan else None,
        "files": copied.files if copied else None,
        "bytes": copied.size if copied else None,
        "startSeconds": round(copied.start_seconds, 3) if copied else None,
        "copySeconds": round(copied.copy_seconds, 3) if copied else None,
        "verifySeconds": round(copied.verify_seconds, 3) if copied else None,
        "oldDataDeleted": result.old_deleted,
        "dryRun": dry_run,
    }


def as_text(settings: TransferSettings, result: TransferResult, *, dry_run: bool) -> str:
    """The result for people."""
    namespace, claim = settings.namespace, settings.claim
    name, target = f"{namespace}/{claim}", f"{namespace}/{result.target}"
    if dry_run:
        lines = ["finish the interrupted move"]
        if result.plan is not None:
            lines = describe(result.plan, settings, result.target)
        return "\n".join(f"{it} (dry run)" for it in lines)
    if not settings.is_move:
        return f"PersistentVolumeClaim {target} is a copy of {name} on {settings.to}"
    moved = f"PersistentVolumeClaim {name} has its data on {settings.to}"
    if result.old_deleted:
        return f"{moved}; the old volume is deleted"
    return (
        f"{moved}\nthe old data is in {target}; delete it by: kubectl delete pvc -n {namespace} "
        f"{result.target}"
    )
