"""Log output, metrics, traces and recent errors of the bridge itself.

`metrics` declares every metric family, `metrics_endpoint` serves them; `logging` writes log lines
for people or as JSON; `recent_errors` keeps the last warnings; `traces` exports OpenTelemetry
spans.
"""
