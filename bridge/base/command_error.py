"""The base class of errors that a command prints as one sentence, and how to find them in groups.

Every other exception is a defect: a command reports it with its place in the code.
"""

from __future__ import annotations

from sync.base.exception_summary import first_leaf
from sync.kube.api_errors import KubeError
from sync.namespaces.remote_namespace_creation import NamespaceMappingError


class BridgeError(Exception):
    """A failure that a command prints as one sentence: side, what failed, cause, next step."""


class PreflightError(BridgeError):
    """The two clusters do not meet the requirements of a join or another command."""


def user_error_types() -> tuple[type[Exception], ...]:
    """The classes of errors whose message is written for users."""
    return (BridgeError, NamespaceMappingError, KubeError)


def find_user_error(error: BaseException) -> BaseException | None:
    """The first user error in ``error``, which may be a group; None if it contains a defect."""
    if isinstance(error, BaseExceptionGroup):
        ours, rest = error.split(user_error_types())
        return None if ours is None or rest is not None else first_leaf(ours)
    return error if isinstance(error, user_error_types()) else None
