"""`bridge alerts`: the URLs of the runbooks are those of the user, and none without."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.bridge.cli.conftest import Invoke


def rules(text: str) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The PrometheusRule, and the annotations of each alert."""
    found = yaml.safe_load(text)
    alerts = [it for group in found["spec"]["groups"] for it in group["rules"]]
    return found, {it["alert"]: it["annotations"] for it in alerts}


def test_alerts_name_the_path_of_their_runbook(invoke: Invoke) -> None:
    found, annotations = rules(invoke("alerts").stdout)
    assert found["metadata"]["namespace"] == "cluster-bridge"
    for alert, its in annotations.items():
        assert its["runbook"] == f"docs/runbooks/{alert}.md"
        assert "runbook_url" not in its


def test_alerts_link_to_the_runbooks_that_the_user_serves(invoke: Invoke) -> None:
    url = "https://docs.example:8443/a/{alert}.html?v=$1:"
    found, annotations = rules(invoke("alerts", "--runbook-url", url, "-n", "watching").stdout)
    assert found["metadata"]["namespace"] == "watching"
    for alert, its in annotations.items():
        assert its["runbook_url"] == f"https://docs.example:8443/a/{alert}.html?v=$1:"
        assert "runbook" not in its


@pytest.mark.parametrize(
    "url",
    [
        "docs.example/{alert}",
        "https://docs.example/",
        "https://x/{alert} b",
        "https://x/{alert}#{",
        'https://x/{alert}"',
        "https://caf\u00e9/{alert}",
    ],
)
def test_invalid_url_is_rejected(invoke: Invoke, url: str) -> None:
    done = invoke("alerts", "--runbook-url", url)
    assert done.exit_code == 2
    assert "--runbook-url" in done.stderr
    assert "{alert} for the alert's name" in done.stderr
    assert done.stdout == ""
