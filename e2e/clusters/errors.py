"""Errors of the test clusters.

Every error has what failed, where it failed, and what to do next, so the command line prints it
unchanged. Any other exception that leaves this package is a defect.
"""

from __future__ import annotations


class ClusterError(Exception):
    """Base of all errors of this package."""

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"where: {self.where}")
        if self.next_step:
            lines.append(f"next:  {self.next_step}")
        return "\n".join(lines)


class InvalidRequest(ClusterError):
    """The request is invalid: a bad name, version or combination."""


class MissingTool(ClusterError):
    """A program or privilege is absent and could not be installed."""


class CommandFailed(ClusterError):
    """A program ended with an error or timed out."""


class BuildFailed(ClusterError):
    """A Go build failed. The cache has nothing of it."""


class StartFailed(ClusterError):
    """A component did not become ready. The message has the end of its log."""
