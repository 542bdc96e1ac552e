"""The alerts of `manifests/monitoring/rules.yaml`, which is shipped with the bridge.

Each alert has its page among the runbooks. Its annotation ``runbook`` is the page's path in the
bridge's sources; where the pages are served, ``runbook_url`` takes its place.
"""

from __future__ import annotations

import re
from importlib.resources import files

from bridge.base.join_settings import SettingsError, invalid_option

#: Stands for the name of an alert, and of its page, in a URL.
ALERT = "{alert}"
_RUNBOOK = re.compile(r"runbook: docs/runbooks/(\w+)\.md")
_NAMESPACE = "namespace: cluster-bridge"
#: Characters of a URL (RFC 3986) without those that YAML or Alertmanager's templates interpret.
_URL = re.compile(r"https?://[\w.~:/?@!$&()*+,;=%-]+", re.ASCII)


def alert_rules(namespace: str, runbook_url: str) -> str:
    """The PrometheusRule (YAML) in this namespace. ``runbook_url`` contains `ALERT`; "" keeps the
    paths of the pages. Raises SettingsError."""
    text = (files("manifests") / "monitoring" / "rules.yaml").read_text("utf-8")
    text = text.replace(_NAMESPACE, f"namespace: {namespace}")
    if not runbook_url:
        return text
    _check(runbook_url)
    return _RUNBOOK.sub(lambda it: f'runbook_url: "{runbook_url.replace(ALERT, it[1])}"', text)


def _check(url: str) -> None:
    error: SettingsError = invalid_option(
        "--runbook-url",
        url,
        "the URL of a page",
        f"http or https, and {ALERT} for the alert's name: https://docs.example/{ALERT}.html",
    )
    if ALERT not in url or not _URL.fullmatch(url.replace(ALERT, "")):
        raise error
