"""The packages of Debian that the image's base consists of, locked by their hashes.

`locks/base.json` has for each architecture the version, hash and path of each package, and the
digest
of the layer that they make (`e2e.release.base_layer`). apt fetches them, from the mirrors of this
machine's configuration; packages stay in the cache. This machine's packages are not changed, and no
script of a package runs.

A security update replaces a locked version on Debian's mirrors. The build then fails, until
`make release-lock` has found the new version.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.release.architectures import ARCHITECTURES
from e2e.release.errors import ReleaseError
from e2e.release.programs import run_tool
from e2e.release.python_locks import LOCKS

LOCK = LOCKS / "base.json"
#: The release of Debian, and its number.
SUITE = "trixie"
NUMBER = "13"
#: The interpreter of that release.
PYTHON = "python3.13"
#: Packages that Python, OpenSSL and the bridge's dependencies need; the check of every shared
#: object (`e2e.release.elf.problems`) reports a missing library.
NAMES = (
    "base-files",
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    f"lib{PYTHON}-minimal",
    f"lib{PYTHON}-stdlib",
    "libssl3t64",
    "libstdc++6",
    "libuuid1",
    "libzstd1",
    f"{PYTHON}-minimal",
    "zlib1g",
)
#: Packages without an architecture.
COMMON_NAMES = ("ca-certificates", "netbase")
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MIRROR = re.compile(r"(?m)^(?:URIs:|deb (?:\[[^]]*\] )?) *(\S*/debian/?)(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Package:
    """One locked package: its hash, and its path on every mirror."""

    name: str
    version: str
    sha256: str
    path: str


def locked() -> dict[str, tuple[Package, ...]]:
    """Architecture → its packages."""
    packages = json.loads(LOCK.read_text("utf-8"))["packages"]
    return {it: tuple(Package(**one) for one in found) for it, found in packages.items()}


def locked_digests() -> dict[str, str]:
    """Architecture → digest of the uncompressed layer of the base (its diff ID)."""
    digests: dict[str, str] = json.loads(LOCK.read_text("utf-8"))["layers"]
    return digests


def write_lock(packages: dict[str, tuple[Package, ...]], layers: dict[str, str]) -> None:
    """Writes the lock file."""
    content = {
        "suite": SUITE,
        "layers": layers,
        "packages": {it: [asdict(one) for one in found] for it, found in packages.items()},
    }
    LOCK.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def newest() -> dict[str, tuple[Package, ...]]:
    """The newest packages of the suite, with its security updates, for each architecture.

    :raises ReleaseError: the mirrors are unreachable or lack a package.
    """
    with tempfile.TemporaryDirectory(prefix="cluster-bridge-apt-") as folder:
        options = _apt_options(Path(folder))
        run_tool(["apt-get", *options, "update", "--quiet"])
        found = {}
        for architecture in ARCHITECTURES:
            wanted = [*(f"{name}:{architecture}" for name in NAMES), *COMMON_NAMES]
            shown = run_tool(["apt-cache", *options, "show", "--no-all-versions", *wanted]).stdout
            found[architecture] = _parse(shown)
    return found


def fetch(packages: Sequence[Package], cache: Path) -> list[Path]:
    """The files of the packages, from the cache or else from a mirror; every hash is checked.

    :raises ReleaseError: a mirror no longer has a locked version, or its content differs.
    """
    cache.mkdir(parents=True, exist_ok=True)
    files = [cache / f"{package.sha256}.deb" for package in packages]
    missing = [it for it, file in zip(packages, files, strict=True) if not file.exists()]
    if missing:
        with tempfile.TemporaryDirectory(dir=cache, prefix=".apt-") as folder:
            for package in missing:
                _download(package, Path(folder), cache / f"{package.sha256}.deb")
    return files


def _download(package: Package, folder: Path, target: Path) -> None:
    partial = folder / "partial.deb"
    problems = []
    for mirror in _mirrors():
        done = run_tool(
            [
                *("/usr/lib/apt/apt-helper", "download-file", f"{mirror}/{package.path}"),
                *(partial, f"SHA256:{package.sha256}"),
            ],
            check=False,
        )
        if done.returncode == 0:
            found = hashlib.sha256(partial.read_bytes()).hexdigest()
            if found != package.sha256:
                raise ReleaseError(f"{package.path}: SHA-256 is {found}, not as locked")
            partial.replace(target)
            return
        problems.append(done.stderr.strip().splitlines()[-1:])
    raise ReleaseError(
        f"Debian's mirrors do not have {package.name} {package.version} as locked: {problems}; "
        "if a newer version replaced it, run make release-lock and commit the result"
    )


def _mirrors() -> list[str]:
    """This machine's mirror of Debian, and that of its security updates."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for file in files:
        if file.is_file() and (found := _MIRROR.search(file.read_text("utf-8"))):
            mirror = found[1].rstrip("/")
            return [mirror, f"{mirror}-security"]
    raise ReleaseError(
        "apt of this machine has no mirror of Debian; build the release on Debian or in its image"
    )


def _apt_options(folder: Path) -> list[str]:
    """Options that give apt lists of its own, with all architectures of the release."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    main, security = _mirrors()
    names = ",".join(ARCHITECTURES)
    sources = folder / "sources.list"
    sources.write_text(
        f"deb [arch={names} signed-by={_KEYS}] {main} {SUITE} main\n"
        f"deb [arch={names} signed-by={_KEYS}] {security} {SUITE}-security main\n"
    )
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "APT::Sandbox::User": "root",
        "APT::Architecture": next(iter(ARCHITECTURES)),
    }
    architectures = [f"--option=APT::Architectures::={it}" for it in ARCHITECTURES]
    return [*(f"--option={key}={value}" for key, value in settings.items()), *architectures]


def _parse(shown: str) -> tuple[Package, ...]:
    """The packages in the output of `apt-cache show`."""
    found = {package.name: package for package in _paragraphs(shown)}
    names = (*NAMES, *COMMON_NAMES)
    if missing := [name for name in names if name not in found]:
        raise ReleaseError(f"Debian {SUITE} lacks {', '.join(missing)}")
    return tuple(found[name] for name in names)


def _paragraphs(shown: str) -> Iterator[Package]:
    for paragraph in shown.split("\n\n"):
        fields = dict(re.findall(r"(?m)^([A-Z][\w-]*): (.*)$", paragraph))
        if fields:
            yield Package(
                fields["Package"], fields["Version"], fields["SHA256"], fields["Filename"]
            )
