"""Stand-ins for the images of the upstream tests, under their upstream names.

No registry is needed: agnhost and nnp are upstream's programs, built from its module; the rest is
busybox and bash of Debian, and two small programs for httpd, nginx and curl (`programs/`). An image
supports what the selected tests need, and no more.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from e2e.clusters.cluster import Progress
from e2e.clusters.go_build import go_program, locked
from e2e.clusters.go_toolchain import OLDEST, find_go
from e2e.clusters.image_archives import (
    AGNHOST,
    BUSYBOX,
    BUSYBOX_SHORT,
    Entry,
    Image,
    Layer,
    busybox_layer,
    write_archive,
)
from e2e.clusters.system_packages import Package, ensure
from e2e.clusters.versions import KubernetesVersion

_REGISTRY = "registry.k8s.io/e2e-test-images"
_PROGRAMS = Path(__file__).with_name("programs")
_PACKAGES = (Package("busybox-static", "busybox"), Package("bash-static", "bash-static"))

# The source of the certificate in upstream's agnhost image.
_CERTIFICATE = "test/images/agnhost/porter"

# Upstream's agnhost image has a user whose group membership is defined in the image only.
_USERS = b"""\
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534::/:/bin/sh
user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh
"""
_GROUPS = b"""\
root:x:0:
nobody:x:65534:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
"""

# Debian's busybox lacks this applet.
_PRINTENV = b"""\
#!/bin/bash
[ "${!1+set}" ] && echo "${!1}"
"""

_LOCAL_BIN = (Entry("usr/local"), Entry("usr/local/bin"))


def archive(
    cache: Path, version: KubernetesVersion, kubernetes: Path, e2e: Path, say: Progress
) -> Path:
    """The archive of these images, built once for each version of its content.

    `kubernetes` and `e2e` are the folders of the programs of these recipes.

    :raises ClusterError: a program does not compile, or a package or module is unavailable.
    """
    ensure(_PACKAGES, say)
    busybox, bash = (Path(shutil.which(package.program) or "") for package in _PACKAGES)
    sources = sorted(_PROGRAMS.glob("*.go"))
    made_from = [Path(__file__), busybox, bash, *sources]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in made_from)).hexdigest()
    path = cache / "images" / f"{e2e.name}-{digest[:12]}.tar"
    with locked(path.with_name(f".{path.name}.lock")):
        if path.exists():
            return path
        say(f"building the images of the upstream tests in {path.parent}")
        upstream = find_go(cache, OLDEST, say).fetch("k8s.io/kubernetes", str(version)).folder
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            programs = {
                "agnhost": (kubernetes / "agnhost").read_bytes(),
                "nnp": (e2e / "nnp").read_bytes(),
            }
            for source in sources:
                built = Path(folder, source.stem)
                go_program(source.read_text(), source.stem, built, cache, say)
                programs[source.stem] = built.read_bytes()
            partial = Path(folder, path.name)
            images = _images(_base(busybox, bash), programs, upstream / _CERTIFICATE)
            write_archive(partial, images)
            partial.rename(path)
    return path


def _base(busybox: Path, bash: Path) -> tuple[Layer, ...]:
    """busybox, with bash beside its own shell.

    busybox's shell drops variables whose names are invalid in a shell, such as `data-1`, from the
    environment of the programs that it starts. The tests of ConfigMaps and Secrets, which read
    them, start `sh`; others start `/bin/sh` and expect the error messages of busybox's shell.
    """
    shell: Layer = (
        Entry("bin/bash", content=bash.read_bytes()),
        *_LOCAL_BIN,
        Entry("usr/local/bin/sh", 0o777, link="/bin/bash"),
        Entry("bin/printenv", content=_PRINTENV),
    )
    return busybox_layer(busybox), shell


def _images(base: tuple[Layer, ...], programs: dict[str, bytes], certificate: Path) -> list[Image]:
    agnhost: Layer = (
        Entry("agnhost", content=programs["agnhost"]),
        Entry("agnhost-2", link="agnhost", hard=True),
        Entry("uploads", 0o1777),
        Entry("etc/passwd", 0o644, _USERS),
        Entry("etc/group", 0o644, _GROUPS),
        *_LOCAL_BIN,
        Entry("usr/local/bin/curl", content=programs["curl"]),
        *(
            Entry(name, 0o644, (certificate / name).read_bytes())
            for name in ("localhost.crt", "localhost.key")
        ),
    )
    nautilus: Layer = (Entry("data.json", 0o644, b'{\n  "image": "nautilus.jpg"\n}\n'),)
    nnp: Layer = (*_LOCAL_BIN, Entry("usr/local/bin/nnp", 0o6755, programs["nnp"]))
    with_agnhost = (*base, agnhost)
    return [
        Image((BUSYBOX, BUSYBOX_SHORT, f"{_REGISTRY}/busybox:1.36.1-1"), base, command=("sh",)),
        Image((AGNHOST,), with_agnhost, ("/agnhost",), ("pause",)),
        Image(
            (f"{_REGISTRY}/nautilus:1.7",),
            (*with_agnhost, nautilus),
            ("/agnhost",),
            ("test-webserver",),
        ),
        Image((f"{_REGISTRY}/nonewprivs:1.3",), (*base, nnp), command=("nnp",)),
        Image((f"{_REGISTRY}/nonroot:1.4",), base, command=("sh",), user="1234"),
        _web_server("httpd:2.4.38-4", "usr/local/apache2/htdocs", base, programs),
        _web_server("httpd:2.4.39-4", "usr/local/apache2/htdocs", base, programs),
        _web_server("nginx:1.14-4", "usr/share/nginx/html", base, programs),
        _web_server("nginx:1.15-4", "usr/share/nginx/html", base, programs),
    ]


def _web_server(name: str, root: str, base: tuple[Layer, ...], programs: dict[str, bytes]) -> Image:
    parents = [str(parent) for parent in reversed(Path(root).parents)][1:]
    layer: Layer = (
        *(Entry(folder) for folder in (*parents, root)),
        Entry(f"{root}/index.html", 0o644, b"<html><body><h1>It works!</h1></body></html>\n"),
        *_LOCAL_BIN,
        Entry("usr/local/bin/webserver", content=programs["webserver"]),
    )
    return Image((f"{_REGISTRY}/{name}",), (*base, layer), command=("webserver", f"/{root}"))
