"""A run of the suite, with programs that stand in for Ginkgo and the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.conformance.junit_results import Outcome
from e2e.conformance.upstream_suite import Suite, SuiteFailed, focus
from tests.clusters.cluster_handle import cluster_handle

NAME = '[sig-node] Pods (a|b) should run "x" $HOME [Conformance]'

GINKGO = """\
#!/bin/sh
for arg; do
  case $arg in --report-dir=*) folder=${arg#*=} ;; esac
done
printf '%s\\n' "$@" > "$folder/arguments"
echo "•"
echo "• [FAILED] [1 seconds]"
cat > "$folder/junit_01.xml" <<'EOF'
<testsuites><testsuite>
<testcase name="[It] a" status="passed" time="1"/>
<testcase name="[It] b" status="failed" time="1"><failure message="no"/></testcase>
</testsuite></testsuites>
EOF
exit 1
"""


def _suite(
    folder: Path, ginkgo: str, output: list[str], tests: str = "#!/bin/sh\necho ' x/a.go:1: a'"
) -> Suite:
    for name, content in {"ginkgo": ginkgo, "e2e.test": tests}.items():
        program = folder / name
        program.write_text(content)
        program.chmod(0o755)
    return Suite(folder, cluster_handle(folder), output.append)


def test_the_focus_is_exactly_the_tests_by_name() -> None:
    pattern = focus([NAME, "b"])
    assert re.search(pattern, f"Kubernetes e2e suite {NAME}")
    assert re.search(pattern, "Kubernetes e2e suite b ")
    assert not re.search(pattern, "Kubernetes e2e suite b c")
    assert not re.search(pattern, "Kubernetes e2e suite [sig-node] b")


def test_a_run_gives_each_test_its_result_though_some_fail(tmp_path: Path) -> None:
    output: list[str] = []
    suite = _suite(tmp_path, GINKGO, output)
    results = suite.run(["a", "b", "c"], title="real node", folder=tmp_path / "out", procs=3)
    assert [result.outcome for result in results.values()] == [
        Outcome.PASSED,
        Outcome.FAILED,
        Outcome.MISSING,
    ]
    assert output[-1].startswith("real node: 2 of 3 tests, 1 failed, ")
    arguments = (tmp_path / "out" / "arguments").read_text().splitlines()
    assert "--procs=3" in arguments
    assert f"--focus={focus(['a', 'b', 'c'])}" in arguments
    assert arguments.index("--") < arguments.index("--provider=skeleton")


def test_run_without_results_is_an_error_with_its_output(tmp_path: Path) -> None:
    suite = _suite(tmp_path, "#!/bin/sh\necho cannot load kubeconfig\nexit 3\n", [])
    with pytest.raises(SuiteFailed, match="ended with 3:\ncannot load kubeconfig"):
        suite.run(["a"], title="real node", folder=tmp_path / "out", procs=1)


def test_results_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    _suite(tmp_path, GINKGO, []).run(["a"], title="real node", folder=folder, procs=1)
    with pytest.raises(SuiteFailed):
        _suite(tmp_path, "#!/bin/sh\n", []).run(["a"], title="x", folder=folder, procs=1)
