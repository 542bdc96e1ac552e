"""Disables hypothesis' deadline per example, which a busy machine would exceed."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
