"""The Helm chart as a package, and the kustomize bases as an archive.

`helm package` writes the time of the build into the archive; this one has the commit's.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from e2e.release import archives
from e2e.release.errors import ReleaseError

NAME = "cluster-bridge"
#: Not part of the archive of kustomize bases: the chart, the unit, and the workload of the README.
_OTHERS = ("chart", "systemd", "README.md", "sample.yaml")


def chart(manifests: Path, epoch: int) -> bytes:
    """The chart's package, `cluster-bridge-VERSION.tgz`.

    :raises ReleaseError: the chart has no schema of its values, or its values contradict the
    schema.
    """
    folder = manifests / "chart"
    check_values(folder)
    ignored = [
        line
        for line in (folder / ".helmignore").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    files = {
        f"{NAME}/{file.relative_to(folder).as_posix()}": file.read_bytes()
        for file in archives.ordered(folder)
        if file.is_file() and not any(fnmatch(file.name, it.rstrip("/")) for it in ignored)
    }
    return archives.compressed(archives.tar_of_files(files, epoch=epoch))


def check_values(folder: Path) -> None:
    """Validates the default values by the chart's schema, but for those that a user must set.

    :raises ReleaseError: the schema is absent or invalid, or a value contradicts it.
    """
    file = folder / "values.schema.json"
    if not file.exists():
        raise ReleaseError(f"{file.name}: the chart has no schema of its values")
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    values: dict[str, Any] = yaml.safe_load((folder / "values.yaml").read_text("utf-8"))
    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ReleaseError(f"{file.name}: {error.message}") from error
    properties = schema.get("properties", {})
    if unknown := sorted(values.keys() - properties.keys()):
        raise ReleaseError(f"{file.name}: lacks {', '.join(unknown)} of values.yaml")


def kustomize(manifests: Path, version: str, epoch: int) -> bytes:
    """The archive with `base/`, its components, RBAC objects and monitoring, under one folder."""
    files = {
        f"{NAME}-kustomize-{version}/{file.relative_to(manifests).as_posix()}": file.read_bytes()
        for file in archives.ordered(manifests)
        if file.is_file() and file.relative_to(manifests).parts[0] not in _OTHERS
    }
    return archives.compressed(archives.tar_of_files(files, epoch=epoch))
