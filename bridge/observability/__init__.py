"""Log output, metrics, traces and recent errors of the bridge itself.

`metric_families` collects every metric family, `metrics_endpoint` serves them; `logging` writes log
lines for people or as JSON; `recent_errors` keeps the last warnings; `trace_exporter` exports
OpenTelemetry spans.
"""
