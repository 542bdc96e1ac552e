"""What can go wrong with the test clusters.

Every error says what failed, where it failed, and what to do next, so that the command line can
print it as it is. Anything else that escapes this package is a defect of it.
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
    """The caller asked for something that cannot be: a bad name, version or combination."""


class MissingTool(ClusterError):
    """A program or privilege is absent and could not be installed from here."""


class CommandFailed(ClusterError):
    """A program that was run to its end gave an error."""


class BuildFailed(ClusterError):
    """A Go build ended with an error. Nothing of it is in the cache."""


class StartFailed(ClusterError):
    """A component did not become ready. The message carries the end of its log."""
