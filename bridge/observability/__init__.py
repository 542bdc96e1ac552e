"""Log output, metrics, traces and recent errors of the bridge itself.

`metric_families` collects every metric family, `metric_exposition` renders them, and
`bridge_metrics_endpoint` serves them; `log_output` writes log lines as text or JSON;
`recent_errors` keeps the last warnings; `trace_exporter` enables OpenTelemetry spans,
which `opentelemetry_tracer` records and exports.
"""
