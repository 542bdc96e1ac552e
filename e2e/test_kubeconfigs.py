"""The bridge acts as the same user as kubectl with each kubeconfig, or like kubectl as none."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import connect
from e2e.api_server_users import Users, serving
from e2e.clusters.cluster import Cluster
from e2e.kubeconfig_table import CASES, Case
from e2e.second_api_server import native_control
from sync.kube.api_errors import KubeError
from sync.kube.kubeconfig_ref import KubeconfigRef

#: Processes of kubectl at a time.
PROCESSES = 3
#: Seconds for one answer of kubectl; every server and plugin is on this machine.
ANSWER_SECONDS = 20.0
ANONYMOUS = "system:anonymous"
#: A part of kubectl's error as system:anonymous: every authenticated user has the permission.
NO_PERMISSION = "you do not have permission to call it"
_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The userInfo that the API server returned, or the error."""

    user: dict[str, Any]
    error: str = ""
    unexpected: bool = False
    """Whether the error is none that a person gets: a timeout of kubectl, a crash of the bridge."""

    @property
    def name(self) -> str:
        return str(self.user.get("username", ""))

    def __str__(self) -> str:
        return json.dumps(self.user, sort_keys=True) if self.user else f"error: {self.error}"


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers for one case."""

    kubectl: Answer
    bridge: Answer
    anonymous: bool
    """Whether the bridge has sent a request without a credential."""

    def problem(self, case: Case) -> str:
        """The difference between the answers or to the table, if there is one."""
        differs = self.kubectl.user != self.bridge.user
        found = []
        if self.kubectl.name != case.answer:
            found.append(f"the table has the user {case.answer!r} for kubectl")
        if differs != bool(case.differs):
            found.append("kubectl and the bridge differ" if differs else "they do not differ")
        if self.kubectl.unexpected or self.bridge.unexpected:
            found.append("an error is unexpected")
        if self.anonymous and NO_PERMISSION not in self.kubectl.error:
            found.append("only the bridge sends a request without a credential")
        if not found:
            return ""
        answers = f"  kubectl: {self.kubectl}\n  bridge: {self.bridge}"
        return f"{case.name}: {'; '.join(found)}\n{answers}"


@pytest.fixture(scope="module")
def answers(
    clusters: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[tuple[str, str], Answers]:
    """The answers by dimension and name of the case."""
    remote = clusters["remote"]
    native_control(remote)
    return asyncio.run(_collect(remote, tmp_path_factory.mktemp("kubeconfigs")))


async def _collect(cluster: Cluster, folder: Path) -> dict[tuple[str, str], Answers]:
    cases = {
        (group, case.name): case for group, group_cases in CASES.items() for case in group_cases
    }
    assert len(cases) == sum(map(len, CASES.values())), "a name appears twice"
    async with serving(cluster, folder) as users:
        limit = asyncio.Semaphore(PROCESSES)
        ask = [
            _ask_kubectl(cluster.kubectl_path, case, folder / f"kubectl-{number}", users, limit)
            for number, case in enumerate(cases.values())
        ]
        by_kubectl, by_bridge = await asyncio.gather(
            asyncio.gather(*ask), _ask_bridge(list(cases.values()), folder, users)
        )
    anonymous = list(_anonymous_times(users.audit_log))
    return {
        key: Answers(kubectl, bridge, any(begin <= at <= end for at in anonymous))
        for key, kubectl, (bridge, begin, end) in zip(cases, by_kubectl, by_bridge, strict=True)
    }


async def _ask_kubectl(
    kubectl: Path, case: Case, folder: Path, users: Users, limit: asyncio.Semaphore
) -> Answer:
    env = _environment(case, folder, users)
    option = [f"--kubeconfig={folder / 'config'}"] if case.kubeconfig is None else []
    async with limit:
        process = await asyncio.create_subprocess_exec(
            kubectl,
            *option,
            *("auth", "whoami", "-o", "json"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=folder.parent,
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                out, error = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return Answer({}, f"no answer in {ANSWER_SECONDS:g} s", unexpected=True)
    if process.returncode:
        return Answer({}, error.decode().strip())
    return Answer(json.loads(out)["status"]["userInfo"])


async def _ask_bridge(
    cases: list[Case], folder: Path, users: Users
) -> list[tuple[Answer, datetime, datetime]]:
    """The answers with the time of each: one at a time, since each has its own environment."""
    found = []
    for number, case in enumerate(cases):
        own = folder / f"bridge-{number}"
        with mock.patch.dict(os.environ, _environment(case, own, users), clear=True):
            begin = datetime.now(UTC)
            answer = await _bridge_answer(own / "config" if case.kubeconfig is None else None)
            found.append((answer, begin, datetime.now(UTC)))
    return found


async def _bridge_answer(path: Path | None) -> Answer:
    try:
        async with connect(KubeconfigRef(path), side="remote", notify=lambda _: None) as client:
            review = await client.request("POST", _PATH, body=_REVIEW)
    except (PreflightError, KubeError) as error:
        return Answer({}, str(error))
    except Exception as error:  # noqa: BLE001  # It fails the case, not all others.
        return Answer({}, repr(error), unexpected=True)
    return Answer(review["status"]["userInfo"])


def _environment(case: Case, folder: Path, users: Users) -> dict[str, str]:
    """Writes the files of the case; returns the whole environment."""
    folder.mkdir()
    own = case.write(folder, users.words)
    return {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), **own}


def _anonymous_times(audit_log: Path) -> Iterator[datetime]:
    """When the API server received requests of the bridge without a credential."""
    for line in audit_log.read_text().splitlines():
        event = json.loads(line)
        if event["user"].get("username") == ANONYMOUS and event.get("userAgent", "").startswith(
            "cluster-bridge"
        ):
            yield datetime.fromisoformat(event["requestReceivedTimestamp"])


@pytest.mark.parametrize("dimension", CASES)
def test_bridge_acts_as_the_user_of_kubectl(
    answers: Mapping[tuple[str, str], Answers], dimension: str
) -> None:
    cases = CASES[dimension]
    problems = [answers[dimension, case.name].problem(case) for case in cases]
    assert not any(problems), "\n".join(filter(None, problems))
