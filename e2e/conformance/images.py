"""Stand-ins for the images that the upstream tests ask for, under the names they know.

No registry is needed: agnhost and nnp are upstream's programs, built from its module; everything
else is busybox, and a web server of forty lines for httpd and nginx. An image does here what the
selected tests ask of it, and no more.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from e2e.clusters.build import go_program, locked
from e2e.clusters.images import (
    AGNHOST,
    BUSYBOX,
    BUSYBOX_SHORT,
    Entry,
    Image,
    Layer,
    busybox_layer,
    write_archive,
)
from e2e.clusters.model import Progress
from e2e.clusters.toolchain import OLDEST, find_go
from e2e.clusters.versions import KubernetesVersion

# Part of the cached archive's name: raise it when the images below change.
_EDITION = 1

_REGISTRY = "registry.k8s.io/e2e-test-images"

# Where upstream's agnhost image takes its certificate from.
_CERTIFICATE = "test/images/agnhost/porter"

# Answers with the files of a folder and nothing else: a file that was moved away is 404, which the
# tests of StatefulSets rely on. It ends on SIGTERM at once, which busybox's httpd as process 1 of
# a container does not.
_WEB_SERVER = """\
package main

import (
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	root := os.Args[1]
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGWINCH)
	go func() {
		<-ended
		os.Exit(0)
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Path
		if name == "/" {
			name = "/index.html"
		}
		content, err := os.ReadFile(filepath.Join(root, filepath.Clean(name)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.Write(content)
	})
	if err := http.ListenAndServe(":80", nil); err != nil {
		println(err.Error())
		os.Exit(1)
	}
}
"""

# The image has no bash; its applets run what the tests write for one.
_BASH = b'#!/bin/sh\nexec /bin/sh "$@"\n'

# Upstream's agnhost has a user that belongs to a group by the image alone.
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


def archive(
    cache: Path, version: KubernetesVersion, kubernetes: Path, e2e: Path, say: Progress
) -> Path:
    """The archive of these images, made once for each version of busybox and Kubernetes.

    `kubernetes` and `e2e` are the folders of the programs of these recipes.

    :raises ClusterError: the web server does not compile, or upstream's module cannot be had.
    """
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    key = hashlib.sha256(busybox.read_bytes()).hexdigest()[:12]
    path = cache / "images" / f"{e2e.name}-busybox-{key}-{_EDITION}.tar"
    with locked(path.with_name(f".{path.name}.lock")):
        if path.exists():
            return path
        say(f"making the images of the upstream tests in {path.parent}")
        source = find_go(cache, OLDEST, say).fetch("k8s.io/kubernetes", str(version)).folder
        server = path.with_name(f".{path.name}.server")
        go_program(_WEB_SERVER, "webserver", server, cache, say)
        certificate = tuple(
            Entry(name, 0o644, (source / _CERTIFICATE / name).read_bytes())
            for name in ("localhost.crt", "localhost.key")
        )
        partial = path.with_name(f".{path.name}.partial")
        agnhost = _agnhost((kubernetes / "agnhost").read_bytes(), certificate)
        base = busybox_layer(busybox)
        nnp = (
            Entry("usr/local/bin"),
            Entry("usr/local/bin/nnp", 0o6755, (e2e / "nnp").read_bytes()),
        )
        write_archive(partial, _images(base, agnhost, nnp, server.read_bytes()))
        server.unlink()
        partial.rename(path)
    return path


def _images(base: Layer, agnhost: Layer, nnp: Layer, server: bytes) -> list[Image]:
    nautilus: Layer = (Entry("data.json", 0o644, b'{\n  "image": "nautilus.jpg"\n}\n'),)
    return [
        Image((BUSYBOX, BUSYBOX_SHORT, f"{_REGISTRY}/busybox:1.36.1-1"), (base,), command=("sh",)),
        Image((AGNHOST,), (base, agnhost), ("/agnhost",), ("pause",)),
        Image(
            (f"{_REGISTRY}/nautilus:1.7",),
            (base, agnhost, nautilus),
            ("/agnhost",),
            ("test-webserver",),
        ),
        Image((f"{_REGISTRY}/nonewprivs:1.3",), (base, nnp), command=("nnp",)),
        Image((f"{_REGISTRY}/nonroot:1.4",), (base,), command=("sh",), user="1234"),
        _web_server("httpd", ("2.4.38-4", "2.4.39-4"), "/usr/local/apache2/htdocs", base, server),
        _web_server("nginx", ("1.14-4", "1.15-4"), "/usr/share/nginx/html", base, server),
    ]


def _agnhost(program: bytes, certificate: Layer) -> Layer:
    return (
        Entry("agnhost", content=program),
        Entry("agnhost-2", link="agnhost", hard=True),
        Entry("uploads", 0o1777),
        Entry("bin/bash", content=_BASH),
        Entry("etc/passwd", 0o644, _USERS),
        Entry("etc/group", 0o644, _GROUPS),
        *certificate,
    )


def _web_server(name: str, tags: tuple[str, ...], root: str, base: Layer, program: bytes) -> Image:
    folders = [part.as_posix().lstrip("/") for part in reversed(Path(root).parents)][1:]
    page = b"<html><body><h1>It works!</h1></body></html>\n"
    layer: Layer = (
        *(Entry(folder) for folder in (*folders, root.lstrip("/"))),
        Entry(f"{root.lstrip('/')}/index.html", 0o644, page),
        Entry("usr/local"),
        Entry("usr/local/bin"),
        Entry(f"usr/local/bin/{name}", content=program),
    )
    names = tuple(f"{_REGISTRY}/{name}:{tag}" for tag in tags)
    return Image(names, (base, layer), command=(name, root))
