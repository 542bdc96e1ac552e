"""Errors of the release, whose text a user sees unchanged."""

from __future__ import annotations


class ReleaseError(Exception):
    """The release cannot be built, or an artefact is wrong; the text has cause and next step."""
