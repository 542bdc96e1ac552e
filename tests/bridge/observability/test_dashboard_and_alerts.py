"""Dashboards, alerts and runbooks: expressions use exposed metrics; each alert has its section."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from bridge.node.node_object import bridge_version
from tests.bridge.observability.test_metric_families import DOCUMENT

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "manifests" / "monitoring"
_ROW = re.compile(r"\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|")
#: Series of prometheus_client, which the documentation does not list one by one.
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
#: Labels that Prometheus adds to each series.
TARGET = {"job", "instance"}
#: Series of kube-state-metrics, with those of their labels that are used.
KUBE_STATE = {
    "kube_node_status_condition": {"node", "condition", "status"},
    "kube_node_info": {"node", "os_image"},
}
#: The label that podTargetLabels of the ServiceMonitor add to Prometheus' own series.
UP = {"app_kubernetes_io_instance"}
#: Variables that Grafana substitutes.
VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*", "$node": ".*"}


def served() -> dict[str, set[str]]:
    """Every documented series by its full name, and its labels. `test_metric_families` compares the
    documentation with the exposed metrics."""
    found: dict[str, set[str]] = {name: set() for name in PROCESS} | {"up": UP} | KUBE_STATE
    for name, kind, labels, _ in _ROW.findall(DOCUMENT.read_text(encoding="utf-8")):
        own = set(re.findall(r"`(\w+)`", labels))
        if kind == "histogram":
            found |= {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
        else:
            found[name] = own
    return found


#: Of one bridge in detail.
BOARDS = ("dashboard.json",)


def dashboard(name: str = "dashboard.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return found


def alerts() -> list[dict[str, Any]]:
    rule = yaml.safe_load((FOLDER / "rules.yaml").read_text(encoding="utf-8"))
    return [it for group in rule["spec"]["groups"] for it in group["rules"]]


def _panels() -> Iterator[tuple[str, str]]:
    for board in map(dashboard, BOARDS):
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield panel["title"], target["expr"]
        for annotation in board["annotations"]["list"]:
            yield annotation["name"], annotation["expr"]


EXPRESSIONS = [*_panels(), *((it["alert"], it["expr"]) for it in alerts())]


class Walk:
    """The metrics and labels that an expression uses."""

    def __init__(self, text: str) -> None:
        self.series: list[str] = []
        self.matched: list[tuple[str, str]] = []
        self.grouped: set[str] = set()
        for variable, value in VARIABLES.items():
            text = text.replace(variable, value)
        assert "$" not in text, "a variable that is not known here"
        self._go(promql_parser.parse(text))

    def _go(self, node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            name = node.name or ""
            self.series.append(name)
            self.matched += [(name, it.name) for it in node.matchers.matchers]
        modifier = getattr(node, "modifier", None)
        for named in (modifier, getattr(modifier, "matching", None)):
            self.grouped |= set(getattr(named, "labels", None) or ())
        for part in ("expr", "lhs", "rhs", "vector_selector"):
            if (child := getattr(node, part, None)) is not None:
                self._go(child)
        for child in getattr(node, "args", None) or ():
            self._go(child)


def _top(node: Any) -> Iterator[Any]:
    """The parts of an expression that decide which labels an alert has."""
    if isinstance(node, promql_parser.ParenExpr):
        yield from _top(node.expr)
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from _top(node.lhs)
        if str(node.op) in ("or", "TokenType(or)"):
            yield from _top(node.rhs)
    else:
        yield node


@pytest.mark.parametrize("alert", alerts(), ids=lambda it: it["alert"])
def test_two_scrape_jobs_of_one_bridge_cause_one_alert(alert: dict[str, Any]) -> None:
    """Each alert ends with an aggregation that leaves the job out."""
    for part in _top(promql_parser.parse(alert["expr"])):
        if isinstance(part, promql_parser.Call):
            assert part.func.name == "absent"
            continue
        assert isinstance(part, promql_parser.AggregateExpr), alert["expr"]
        labels = set(part.modifier.labels if part.modifier else ())
        assert "job" not in labels
        assert labels & {"instance", "node", *UP}


def test_alert_fires_when_no_bridge_is_up() -> None:
    down = next(it for it in alerts() if it["alert"] == "BridgeDown")
    assert set(Walk(down["expr"]).series) == {"bridge_build_info", "up"}
    assert "absent(bridge_build_info)" in down["expr"]


def test_alert_for_an_unserved_node_needs_no_metrics_of_its_bridges() -> None:
    """Its Deployment can be gone, and its scrape target with it."""
    unserved = next(rule for rule in alerts() if rule["alert"] == "BridgeNobodyServesTheNode")
    with_bridges, without = unserved["expr"].split(" or ")
    assert Walk(with_bridges).series == ["bridge_leader"]
    assert set(Walk(without).series) == set(KUBE_STATE)
    (os_image,) = re.findall(r'os_image=~"(.*?)"', without)
    node = {"status": {"nodeInfo": {"osImage": "cluster-bridge 1.2.3"}}}
    assert bridge_version(node) == "1.2.3"
    assert re.fullmatch(os_image, "cluster-bridge 1.2.3")


def test_stream_alert_uses_the_limit_of_the_bridge() -> None:
    near = next(it for it in alerts() if it["alert"] == "BridgeStreamsNearLimit")
    assert set(Walk(near["expr"]).series) == {"bridge_streams", "bridge_kubelet_streams_limit"}


@pytest.mark.parametrize("name", BOARDS)
def test_dashboard_shows_one_scrape_job_at_a_time(name: str) -> None:
    [job] = [it for it in dashboard(name)["templating"]["list"] if it["name"] == "job"]
    assert not job["multi"]
    assert not job["includeAll"]


def test_queue_alerts_ignore_other_controllers() -> None:
    for alert in alerts():
        if "workqueue_" in alert["expr"]:
            assert "and on (job, instance) bridge_build_info" in alert["expr"]


@pytest.mark.parametrize(("where", "text"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_expressions_use_exposed_metrics(where: str, text: str) -> None:
    known, walk = served(), Walk(text)
    assert walk.series, where
    assert set(walk.series) <= known.keys()
    for name, label in walk.matched:
        assert label in known[name] | TARGET, f"{name} has no label {label}"
    some = set().union(*(known[name] for name in walk.series)) | TARGET
    assert walk.grouped <= some, f"{walk.grouped - some} are labels of none of these"


def test_unknown_metric_is_detected() -> None:
    walk = Walk("sum by (nonsense) (rate(bridge_nonsense_total{other='x'}[5m])) > 0 or up")
    assert walk.series == ["bridge_nonsense_total", "up"]
    assert walk.matched == [("bridge_nonsense_total", "other")]
    assert walk.grouped == {"nonsense"}
    with pytest.raises(ValueError, match="parenthesis"):
        Walk("sum(rate(bridge_pods[5m])")


def test_every_alert_has_a_description_with_existing_labels() -> None:
    names = [it["alert"] for it in alerts()]
    assert len(names) == len(set(names)) >= 10
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        words = alert["annotations"]["summary"] + alert["annotations"]["description"]
        used = set(re.findall(r"\$labels\.(\w+)", words))
        walk = Walk(alert["expr"])
        kept = walk.grouped or served()[walk.series[0]] | TARGET
        assert used <= kept, alert["alert"]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    page = (ROOT / "docs" / "how-to" / "runbooks.md").read_text(encoding="utf-8")
    top, *parts = re.split(r"^## ", page, flags=re.MULTILINE)
    sections = dict(part.split("\n", 1) for part in parts)
    assert list(sections) == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        name, severity = alert["alert"], alert["labels"]["severity"]
        assert alert["annotations"]["runbook"] == f"docs/how-to/runbooks.md#{name.lower()}"
        assert f"| [`{name}`](#{name.lower()}) | {severity} | " in top
        assert sections[name].startswith(f"\nSeverity: {severity}. ")
        labels = re.findall(r"^\*\*(\w+):\*\*", sections[name], re.MULTILINE)
        assert labels == ["Impact", "Confirm", "Act"]


def test_alerts_of_the_chart_are_the_same() -> None:
    """To update the file: cp manifests/monitoring/rules.yaml manifests/chart/files."""
    file = ROOT / "manifests" / "chart" / "files" / "rules.yaml"
    assert file.read_text(encoding="utf-8") == (FOLDER / "rules.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", BOARDS)
def test_dashboard_is_complete(name: str) -> None:
    board = dashboard(name)
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    for variable in board["templating"]["list"][1:]:
        (name,) = re.findall(r"label_values\((\w+)", variable["definition"])
        assert name in served()


def test_service_monitor_selects_the_service_and_port() -> None:
    text = (FOLDER / "servicemonitor.yaml").read_text(encoding="utf-8")
    service, monitor, role = yaml.safe_load_all(text)
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [it["name"] for it in service["spec"]["ports"]]
    assert (endpoint["scheme"], endpoint["path"]) == ("https", "/metrics")
    assert monitor["spec"]["podTargetLabels"] == ["app.kubernetes.io/instance"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}]
