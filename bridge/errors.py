"""Errors that are one sentence for a person: what, where, and what to do next. All others are
defects."""

from __future__ import annotations


def for_people() -> tuple[type[Exception], ...]:
    """Their classes."""
    from bridge.kubelet.certificate import CertificateError
    from bridge.kubelet.server import ListenError
    from bridge.node.controller import NodeTaken
    from bridge.node.election import NodeLeft
    from bridge.node.remoteclaim import ClaimRefused
    from bridge.preflight.checks import PreflightError
    from sync.engine import MappingChanged
    from sync.kube.errors import KubeError

    return (
        CertificateError,
        ClaimRefused,
        ListenError,
        MappingChanged,
        NodeLeft,
        NodeTaken,
        PreflightError,
        KubeError,
    )


def expected(error: BaseException) -> BaseException | None:
    """The first of them where all that ``error`` holds are such; None where there is a defect."""
    if isinstance(error, BaseExceptionGroup):
        ours, rest = error.split(for_people())
        return None if ours is None or rest is not None else _first(ours)
    return error if isinstance(error, for_people()) else None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
