"""Signs checksums and provenance by cosign, keyless: by the identity of the release workflow.

The bundles contain certificate, signature and the entry of the transparency log. Without
`--dry-run`,
cosign needs an identity token of the workflow (`id-token: write`), which it finds itself.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from e2e.release.build import CHECKSUMS, PROVENANCE
from e2e.release.errors import ReleaseError
from e2e.release.programs import run_tool


def commands(folder: Path) -> list[list[str]]:
    """The commands that sign what is in the folder."""
    return [
        [
            *("cosign", "sign-blob", "--yes"),
            *("--bundle", str(folder / f"{CHECKSUMS}.sigstore.json"), str(folder / CHECKSUMS)),
        ],
        [
            *("cosign", "attest-blob", "--yes", "--statement", str(folder / PROVENANCE)),
            *("--bundle", str(folder / "provenance.sigstore.json")),
        ],
    ]


def check(folder: Path) -> None:
    """Compares every artefact with the checksums, and the subjects of the provenance with both.

    :raises ReleaseError: a file is absent, differs, or is in one of the two alone.
    """
    sums = checksums(folder)
    for name, expected in sums.items():
        file = folder / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise ReleaseError(f"{file}: absent, or not as {CHECKSUMS} has it; build again")
    statement = json.loads((folder / PROVENANCE).read_text("utf-8"))
    subjects = {it["name"]: it["digest"]["sha256"] for it in statement["subject"]}
    if subjects != sums:
        raise ReleaseError(f"{PROVENANCE}: its subjects are not those of {CHECKSUMS}; build again")


def checksums(folder: Path) -> dict[str, str]:
    """File name → SHA-256, as the folder's checksums have it.

    :raises ReleaseError: there is no release in the folder.
    """
    file = folder / CHECKSUMS
    if not file.is_file():
        raise ReleaseError(f"{file}: absent; run make release first")
    lines = file.read_text("utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def sign(folder: Path) -> None:
    """Checks what is in the folder, and signs it.

    :raises ReleaseError: an artefact differs, or cosign is absent or failed.
    """
    check(folder)
    for command in commands(folder):
        run_tool(command)
