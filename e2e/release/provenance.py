"""The provenance of a release: an in-toto statement with a predicate of SLSA 1.0.

Formats: in-toto Statement v1, and https://slsa.dev/provenance/v1. The statement is unsigned; in the
release workflow, `e2e.release.signing` has it signed by the identity of the workflow. It contains
no time, so a repeated build of one commit makes the same statement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from e2e.release.debian_packages import Package
from e2e.release.python_locks import FILES, LOCKS
from e2e.release.source import Source

#: Type of the builds: the parameters, and how a build follows from them.
BUILD_TYPE = "https://cluster-bridge.io/release/v1"
LOCAL_BUILDER = "https://cluster-bridge.io/release/local"


def statement(
    source: Source,
    artefacts: Mapping[str, str],
    packages: Mapping[str, tuple[Package, ...]],
    *,
    address: str,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """The statement about the artefacts (file name → SHA-256) that were built from that source.

    The builder is the workflow that GitHub's variables in the environment name, or else a local
    one.
    """
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest}}
            for name, digest in sorted(artefacts.items())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"source": address, "version": source.version},
                "internalParameters": {"sourceDateEpoch": source.epoch},
                "resolvedDependencies": [
                    {"uri": f"git+{address}", "digest": {"gitCommit": source.commit}},
                    *_locks(),
                    *_packages(packages),
                ],
            },
            "runDetails": {
                "builder": {"id": _builder(environment)},
                "metadata": _invocation(environment),
            },
        },
    }


def _locks() -> list[dict[str, Any]]:
    return [
        {
            "name": f"e2e/release/locks/{name}",
            "digest": {"sha256": hashlib.sha256((LOCKS / name).read_bytes()).hexdigest()},
        }
        for name in sorted(FILES)
    ]


def _packages(packages: Mapping[str, tuple[Package, ...]]) -> list[dict[str, Any]]:
    found = {it.sha256: it for own in packages.values() for it in own}
    return [
        {
            "uri": f"pkg:deb/debian/{it.name}@{it.version}",
            "name": it.path,
            "digest": {"sha256": it.sha256},
        }
        for it in sorted(found.values(), key=lambda it: it.path)
    ]


def _builder(environment: Mapping[str, str]) -> str:
    server = environment.get("GITHUB_SERVER_URL")
    workflow = environment.get("GITHUB_WORKFLOW_REF")
    return f"{server}/{workflow}" if server and workflow else LOCAL_BUILDER


def _invocation(environment: Mapping[str, str]) -> dict[str, str]:
    server, repository = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    run, attempt = environment.get("GITHUB_RUN_ID"), environment.get("GITHUB_RUN_ATTEMPT", "1")
    if not (server and repository and run):
        return {}
    return {"invocationId": f"{server}/{repository}/actions/runs/{run}/attempts/{attempt}"}


def encoded(content: Mapping[str, Any]) -> str:
    """The statement as text."""
    return json.dumps(content, indent=1) + "\n"
