"""Versions that no API server has, as JSON."""

from __future__ import annotations

JSON = (b"7", b'"v1.%s"' % (b"9" * 5000), b"[" * 1000 + b"]" * 1000)
IDS = ("number", "digits", "nested")
