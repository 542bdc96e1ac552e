"""The error with which checks before a join end."""

from __future__ import annotations


class PreflightError(Exception):
    """The join cannot work; the message is one sentence for the person who asked for it."""
