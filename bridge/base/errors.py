"""The base of the errors that a command prints as one sentence, and their selection from groups.

Every other exception is a defect: a command reports it with a place in the code to look at.
"""

from __future__ import annotations

from sync.base.exceptions import first_leaf


class BridgeError(Exception):
    """The bridge cannot go on; the message is one sentence for a person: what failed, on which
    side, and what to do next."""


class PreflightError(BridgeError):
    """A join, or another command, cannot work with the two clusters as they are."""


def user_error_types() -> tuple[type[Exception], ...]:
    """The classes of errors whose message is written for people."""
    from sync.kube.errors import KubeError
    from sync.namespaces.mapping import NamespaceMappingError

    return (BridgeError, NamespaceMappingError, KubeError)


def find_user_error(error: BaseException) -> BaseException | None:
    """The first error for people in ``error``; None where ``error`` holds any defect."""
    if isinstance(error, BaseExceptionGroup):
        ours, rest = error.split(user_error_types())
        return None if ours is None or rest is not None else first_leaf(ours)
    return error if isinstance(error, user_error_types()) else None
