"""Exports OpenTelemetry traces: a span for each reconcile, with a child span for each API request.

Disabled unless ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` names a
collector of OTLP over HTTP; the SDK's other variables (headers, sampler, resource) apply. The
packages are the extra ``traces``: `bridge.observability.opentelemetry_tracer`, which imports them,
is loaded only when they are enabled and installed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

#: The command that installs the packages.
INSTALL_COMMAND = "pip install 'cluster-bridge[traces]'"
#: Environment variables that enable traces.
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_installed() -> bool:
    """Whether the OpenTelemetry packages are installed."""
    modules = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
    try:
        return all(importlib.util.find_spec(name) is not None for name in modules)
    except ModuleNotFoundError:
        return False


@contextmanager
def export_traces() -> Iterator[None]:
    """Exports spans of the block to the endpoint of the environment; without one there are none."""
    is_enabled = any(os.environ.get(variable) for variable in ENDPOINT_VARIABLES)
    if not is_enabled or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        yield
        return
    if not is_installed():
        log.warning(
            "traces are disabled: their packages are not installed; run %s", INSTALL_COMMAND
        )
        yield
        return
    from bridge.observability import opentelemetry_tracer  # noqa: PLC0415  # an optional extra

    # The SDK logs every failed attempt to reach a collector.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    with opentelemetry_tracer.export_spans():
        yield
