"""Kinds of lines that a command reports while it works (``notify``).

A plain `str` reports a finished step. `bridge.cli.run_until_signal` prints each kind with its own
mark, or logs it at its own level.
"""

from __future__ import annotations


class Caveat(str):
    """A limitation or a failure that does not end the command; a person may have to act on it."""

    __slots__ = ()


class Waiting(str):
    """The reason why the command waits."""

    __slots__ = ()
