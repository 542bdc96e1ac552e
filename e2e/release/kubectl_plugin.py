"""The kubectl plugin `bridge` for krew: an archive for each architecture, and the manifest.

The archive needs nothing of the machine but a kernel and `/bin/sh`: it contains the image's glibc,
Python and packages, and starts Python by the loader among them. krew unpacks folders and regular
files only, so each link becomes the file that it leads to.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path

import yaml

from e2e.release import archives
from e2e.release.debian_packages import PYTHON
from e2e.release.image_roots import Roots

#: Parts of the image that the plugin does not need.
_LEFT_OUT = ("etc/", "var/", "usr/lib/ssl/", "usr/lib/os-release", "usr/bin/bridge")
#: Python takes this script for itself, and its prefix from the script's path; the bridge runs it
#: again for a process of its own.
_PYTHON_SCRIPT = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
root=${{here%/usr/bin}}
exec "$root/{loader}" --library-path "$root/usr/lib/{triplet}" --argv0 "$root/usr/bin/python3" \\
    "$root/usr/bin/{python}" "$@"
"""
_PLUGIN_SCRIPT = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
# OpenSSL looks where Debian keeps certificates of authorities; other distributions have them
# elsewhere.
if [ ! -e /usr/lib/ssl/certs ] && [ -z "${SSL_CERT_FILE:-}" ]; then
    for bundle in /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
        if [ -e "$bundle" ]; then export SSL_CERT_FILE="$bundle"; break; fi
    done
fi
exec "$here/usr/bin/python3" -P "$here/main.py" "$@"
"""
_MAIN = "import sys\n\nfrom bridge.cli import main\n\nsys.exit(main())\n"


def archive_name(version: str, architecture: str) -> str:
    """The file name of one architecture's archive."""
    return f"kubectl-bridge-{version}-linux-{architecture}.tar.gz"


def archive(root: Roots, license_text: str, epoch: int) -> bytes:
    """One architecture's archive: `kubectl-bridge`, its license, and the files that it runs."""
    files: dict[str, tuple[bytes, bool]] = {}
    for part in root.parts:
        for file in archives.ordered(part):
            name = file.relative_to(part).as_posix()
            source = _followed(file, part)
            if source is not None and not name.startswith(_LEFT_OUT) and "/" in name:
                executable = bool(source.stat().st_mode & stat.S_IXUSR)
                files[name] = (source.read_bytes(), executable)
    architecture = root.architecture
    script = _PYTHON_SCRIPT.format(
        loader=architecture.loader, triplet=architecture.triplet, python=PYTHON
    )
    files["usr/bin/python3"] = (script.encode(), True)
    files["kubectl-bridge"] = (_PLUGIN_SCRIPT.encode(), True)
    files["main.py"] = (_MAIN.encode(), False)
    files["LICENSE"] = (license_text.encode(), False)
    contents = {name: content for name, (content, _) in files.items()}
    executables = {name for name, (_, executable) in files.items() if executable}
    return archives.compressed(
        archives.tar_of_files(contents, epoch=epoch, executables=executables)
    )


def manifest(version: str, archives_by_architecture: Mapping[str, bytes], source: str) -> str:
    """The manifest for krew's index, with the archives' addresses below the source's releases."""
    platforms = [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": architecture}},
            "uri": f"{source}/releases/download/v{version}/{archive_name(version, architecture)}",
            "sha256": hashlib.sha256(content).hexdigest(),
            "bin": "kubectl-bridge",
        }
        for architecture, content in archives_by_architecture.items()
    ]
    content = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "bridge"},
        "spec": {
            "version": f"v{version}",
            "homepage": source,
            "shortDescription": "Add a remote cluster as one virtual node",
            "description": (
                "Makes a remote Kubernetes cluster one virtual node of the home cluster.\n"
                "`kubectl bridge join --kubeconfig remote.yaml` installs nothing in the remote.\n"
            ),
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(content, sort_keys=False)


def _followed(file: Path, root: Path) -> Path | None:
    """The regular file that this is or links to below the root; None for anything else."""
    if file.is_symlink():
        link = file.readlink()
        target = root / str(link).lstrip("/") if link.is_absolute() else file.parent / link
        return (
            target.resolve()
            if target.is_file() and target.resolve().is_relative_to(root.resolve())
            else None
        )
    return file if file.is_file() else None
