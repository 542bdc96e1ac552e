"""Hypothesis without its time limit for an example: a busy machine is no defect."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
