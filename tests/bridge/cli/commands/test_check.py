"""`bridge check`, `bridge version` and `bridge bug-report`: options, output and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bridge.base.join_settings import JoinSettings
from bridge.base.version import version
from bridge.bug_report import collector as collect_module
from bridge.bug_report.collector import BugReport, BugReportSettings
from bridge.checks import check_runner
from bridge.checks.check_runner import NodeCheckSettings
from bridge.checks.findings import Finding, Report, build_report, error, not_checked, ok, warning
from bridge.cli.commands.check import table
from bridge.status import version_report as versions_module
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.cli.conftest import Invoke
from translators.object_accessors import Object

WELL = [ok("BRG101", "home", "it answers"), warning("BRG104", "remote", "soon")]
BAD = [*WELL, error("BRG301", "home", "taken", "take another")]

TABLE = """\
SEVERITY   ID       SIDE     FOUND
error      BRG301   home     taken
warning    BRG104   remote   soon
ok         BRG101   home     it answers

What to do:
  BRG301: take another (docs/reference/checks.md#brg301)
  BRG104: renew it in time; for a long-running bridge use a credential that renews itself \
(docs/reference/checks.md#brg104)

1 error, 1 warning, 0 info, 1 ok
"""


class Checks:
    """Replaces the checks: returns its reports one after the other, and records the settings."""

    def __init__(self) -> None:
        self.reports: list[list[Finding]] = [WELL]
        self.pre: list[JoinSettings] = []
        self.of_nodes: list[NodeCheckSettings] = []

    async def preflight(self, settings: JoinSettings) -> Report:
        self.pre.append(settings)
        return build_report("preflight", self._next())

    async def health(self, settings: NodeCheckSettings) -> Report:
        self.of_nodes.append(settings)
        return build_report("health", self._next())

    def _next(self) -> list[Finding]:
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """Commands return these reports instead of checking clusters."""
    found = Checks()
    monkeypatch.setattr(check_runner, "check_before_join", found.preflight)
    monkeypatch.setattr(check_runner, "check_nodes", found.health)
    monkeypatch.setattr(check_runner, "REPEAT_SECONDS", 0.001)
    return found


def test_reason_of_an_api_server_adds_no_line() -> None:
    reason = "the credential may not: denied\n\nWhat to do:\n  forged"
    report = build_report("health", [not_checked("BRG201", "home", reason, "ask\n  forged")])
    for wide in (False, True):
        assert "\n  forged" not in table(report, wide=wide)


def test_table_lists_findings_and_advice(invoke: Invoke, checks: Checks) -> None:
    checks.reports = [BAD]
    done = invoke("check")
    assert (done.exit_code, done.stdout, done.stderr) == (1, TABLE, "")


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_json_and_yaml_have_all_fields(
    invoke: Invoke, checks: Checks, output: str, read: Callable[[str], object]
) -> None:
    done = invoke("check", "burst", "-o", output)
    assert done.exit_code == 0
    assert read(done.stdout) == build_report("health", WELL).as_data()
    assert checks.of_nodes == [NodeCheckSettings(KubeconfigRef(), "burst")]


def test_pre_takes_the_options_of_join(invoke: Invoke, checks: Checks) -> None:
    args = ("--pre", "--kubeconfig", "r.yaml", "--context", "r", "--network", "none")
    done = invoke("check", "burst", *args, "--port", "0", "--service-accounts", "none")
    assert done.exit_code == 0
    [requests] = checks.pre
    assert (requests.name, requests.network, requests.port) == ("burst", "none", 0)
    assert requests.remote == KubeconfigRef(Path("r.yaml"), "r")
    assert requests.service_accounts == "none"


def test_wait_ends_once_no_check_fails(invoke: Invoke, checks: Checks) -> None:
    checks.reports = [BAD, BAD, WELL]
    done = invoke("check", "--wait", "30")
    assert done.exit_code == 0
    [line] = done.stderr.splitlines()
    assert line.endswith("s more at most: BRG301")
    assert len(checks.of_nodes) == 3


def test_wait_ends_at_its_limit(invoke: Invoke, checks: Checks) -> None:
    checks.reports = [BAD]
    assert invoke("check", "--wait", "0.01").exit_code == 1


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("--pre",), "--kubeconfig"),
        (("--context", "x"), "--kubeconfig"),
        (("Not Good",), "NODE"),
        (("--tls-cert-file", "x"), "--tls-private-key-file"),
        (("--address", "here"), "--address"),
        (("--output", "xml"), "--output"),
        (("--wait", "-1"), "--wait"),
    ],
)
def test_invalid_options_exit_with_2(
    invoke: Invoke, checks: Checks, args: tuple[str, ...], named: str
) -> None:
    done = invoke("check", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert named in done.stderr
    assert not checks.pre
    assert not checks.of_nodes


def test_checks_with_a_common_obstacle_share_a_row(invoke: Invoke, checks: Checks) -> None:
    why = "home does not answer"
    skipped = [not_checked(check_id, "home", why) for check_id in ("BRG102", "BRG103")]
    checks.reports = [[*skipped, *BAD]]
    lines = invoke("check").stdout.splitlines()
    assert lines[1].startswith("error")
    assert f"Not checked, because {why}: BRG102, BRG103" in lines
    wide = invoke("check", "-o", "wide").stdout
    assert wide.count(why) == 2
    assert invoke("check", "-o", "name").stdout.splitlines()[0] == "check/BRG101"


VERSIONS = """\
WHAT     NODE    VERSION   NOTE
client           0.1.0     python 3.11.7
home             v1.34.4
bridge   burst   0.1.0     served by host (pid 1)
remote   burst   ?         away
"""


def test_version_shows_client_clusters_and_bridges(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"name": "burst", "bridge": "0.1.0", "servedBy": "host (pid 1)"}
    found: Object = {
        "client": {"version": "0.1.0", "python": "3.11.7"},
        "home": {"version": "v1.34.4", "problem": ""},
        "nodes": [{**node, "remote": {"version": "", "problem": "away"}}],
    }

    async def versions(*_: KubeconfigRef | None) -> Object:
        return found

    monkeypatch.setattr(versions_module, "collect_versions", versions)
    assert invoke("version").stdout == VERSIONS
    assert json.loads(invoke("version", "-o", "json").stdout) == found


def test_version_client_contacts_no_cluster(invoke: Invoke) -> None:
    versions_json = json.loads(invoke("version", "--client", "-o", "json").stdout)
    assert versions_json["client"]["version"] == version()


def test_bug_report_prints_its_files(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests = []

    async def collect(settings: BugReportSettings, *, notify: object) -> BugReport:
        requests.append(settings)
        found = BugReport()
        found.add("check.json", "what bridge check finds", dict)
        return found

    monkeypatch.setattr(collect_module, "collect", collect)
    path = tmp_path / "r.tar.gz"
    done = invoke("bug-report", "burst", "-f", str(path))
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        str(path),
        "",
        "FILE            BYTES   WHAT",
        "check.json      2       what bridge check finds",
        "problems.json   2       what could not be read, and why",
    ]
    assert requests == [BugReportSettings(KubeconfigRef(), "burst")]
    again = invoke("bug-report", "burst", "-f", str(path))
    assert (again.exit_code, again.stdout) == (1, "")
    assert "exists" in again.stderr
