"""The image of kind's nodes: the one that kind publishes, or one composed here.

`kindest/node` is used if a registry is reachable. Otherwise an image with the same contract is
composed: a small Debian with systemd, containerd and the CNI plugins; the node's files from kind's
own module; kubeadm and the Kubernetes programs that the native backend builds; the control plane's
images, each with one static program, preloaded into containerd. The Docker engine keeps it, named
after the versions of its content; `e2e.clusters.node_image_prune` decides for how long.

Differences from the published image: the pod network is a veth pair for each pod, configured with
the node's pod range, instead of kindnetd (`e2e.clusters.kind_control` adds the routes between the
nodes of a cluster from outside), and there is no storage provisioner.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters import go_build, go_recipes, node_image_prune, system_packages
from e2e.clusters.cluster import Progress, Settings
from e2e.clusters.docker_engine import Engine
from e2e.clusters.errors import CommandFailed, MissingTool
from e2e.clusters.go_build import locked
from e2e.clusters.go_toolchain import OLDEST, find_go
from e2e.clusters.mounts import unmount_below
from e2e.clusters.node_preload import Parts, preload
from e2e.clusters.run_command import run
from e2e.clusters.versions import COREDNS, ETCD, KIND, KubernetesVersion

AUTO, STOCK, LOCAL = "auto", "stock", "local"

# Part of the image's name: increase it when the composition changes.
_EDITION = 2
_REPOSITORY = "cluster-bridge/node"
_DEBIAN = "bookworm"
_PACKAGES = (
    "bash",
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "ethtool",
    "hostname",
    "iproute2",
    "iptables",
    "jq",
    "kmod",
    "libseccomp2",
    "mount",
    "procps",
    "runc",
    "systemd",
    "util-linux",
)

_PULL_TIMEOUT = 600.0
_DEBOOTSTRAP_TIMEOUT = 1200.0
_IMPORT_TIMEOUT = 600.0

_CNI_PLUGINS = ("host-local", "loopback", "portmap", "ptp")

# Services of Debian's systemd that a node does not need, by the folder that starts them.
_WANTED_BY = (
    "lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "lib/systemd/system/multi-user.target.wants/*",
    "lib/systemd/system/local-fs.target.wants/*",
    "lib/systemd/system/sockets.target.wants/*udev*",
    "lib/systemd/system/sockets.target.wants/*initctl*",
    "lib/systemd/system/basic.target.wants/*",
    "etc/systemd/system/*.wants/*",
)
_UNITS = ("kubelet", "containerd", "undo-mount-hacks", "pod-network")

_POD_NETWORK = """\
#!/bin/sh
# Writes the configuration of the pod network when this node has its pod range.
set -eu
folder=/etc/cni/net.d
kubeconfig=/etc/kubernetes/kubelet.conf
cidr=
while [ -z "$cidr" ]; do
    sleep 0.5
    [ -e "$kubeconfig" ] || continue
    cidr=$(kubectl --kubeconfig "$kubeconfig" get node "$(hostname)" \\
        -o 'jsonpath={.spec.podCIDR}' 2>/dev/null) || cidr=
done
mkdir -p "$folder"
sed "s#POD_CIDR#$cidr#" /kind/pod-network.json >"$folder/.partial"
mv "$folder/.partial" "$folder/10-pod-network.conflist"
"""
_POD_NETWORK_UNIT = """\
[Unit]
Description=Pod network of this node
After=kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/bin/pod-network
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""
# Routed and not bridged, as natively (see `e2e.clusters.native_node`); packets that leave the node
# have its address, as with kindnetd.
_POD_NETWORK_CONFIG = {
    "cniVersion": "0.4.0",
    "name": "pod-network",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": True,
            "mtu": 1500,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "POD_CIDR"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
    ],
}
# kind applies these to a new cluster: it requires a file of each, with an object in it.
_CNI_MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: pod-network
  namespace: kube-system
data:
  written-by: pod-network.service of the node
"""
_STORAGE_MANIFEST = """\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
  annotations:
    storageclass.kubernetes.io/is-default-class: "true"
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
"""


@dataclass(frozen=True, slots=True)
class NodeImage:
    """An image that the engine has or can pull, and its Kubernetes version."""

    name: str
    kubernetes: KubernetesVersion

    @property
    def local(self) -> bool:
        """Whether it is composed here."""
        return self.name.startswith(f"{_REPOSITORY}:")


def choose(engine: Engine, settings: Settings, say: Progress) -> NodeImage:
    """The node image that the settings request; composes it if necessary.

    :raises MissingTool: it must be composed, and this process is not root, or this is not Debian.
    :raises ClusterError: the requested image is unavailable.
    """
    wanted, version = settings.node_image, settings.kubernetes
    stock = NodeImage(stock_name(version), KubernetesVersion.parse(version.kind_node))
    if wanted == STOCK:
        return stock
    if wanted not in {AUTO, LOCAL}:
        return NodeImage(wanted, version)
    local = NodeImage(local_name(version), version)
    if engine.has_image(local.name):
        node_image_prune.note_use(engine, local.name)
        return local
    if wanted == AUTO:
        if engine.has_image(stock.name):
            return stock
        if not engine.private:  # which cannot reach a registry
            say(f"pulling {stock.name}")
            pulled = engine.docker("pull", stock.name, check=False, timeout=_PULL_TIMEOUT)
            if pulled.returncode == 0:
                return stock
            say("the image cannot be pulled")
    with locked(settings.cache / ".node-image.lock"):
        if not engine.has_image(local.name):
            node_image_prune.remove_partial(settings.cache)
            build_image(engine, settings, local.name, say)
            node_image_prune.prune(engine, _REPOSITORY, say)
    return local


def stock_name(version: KubernetesVersion) -> str:
    """The image that kind publishes for this minor release."""
    return f"kindest/node:{version.kind_node}"


def local_name(version: KubernetesVersion) -> str:
    """The image composed here for this release and the versions in it."""
    content = repr((_EDITION, KIND, ETCD, COREDNS, _DEBIAN, _PACKAGES))
    return f"{_REPOSITORY}:{version}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


# -- composition -------------------------------------------------------------------


def build_image(engine: Engine, settings: Settings, name: str, say: Progress) -> None:
    """Composes the node image and imports it into the Docker engine. Raises MissingTool."""
    if os.geteuid() != 0:
        raise MissingTool(
            "there is no node image, and only root can compose one",
            where=stock_name(settings.kubernetes),
            next_step="pull or load that image, or run this as root",
        )
    started = time.monotonic()
    system_packages.ensure(system_packages.NODE_IMAGE, say)
    parts = _parts(settings, say)
    settings.cache.mkdir(parents=True, exist_ok=True)
    say(f"composing {name} (once: the Docker engine keeps it)")
    with tempfile.TemporaryDirectory(dir=settings.cache, prefix=node_image_prune.PARTIAL) as folder:
        root = Path(folder, "root")
        try:
            _install_debian(root, say)
            _install_node(root, parts, settings.kubernetes)
            say("preloading the control plane's images")
            preload(root, parts, settings, say)
            say("importing it into the Docker engine")
            _import(engine, root, name)
        finally:
            unmount_below(root)
    say(f"composed {name} in {time.monotonic() - started:.0f} s")


def _parts(settings: Settings, say: Progress) -> Parts:
    cache, version = settings.cache, settings.kubernetes
    return Parts(
        kubernetes=go_build.programs(go_recipes.kubernetes(version), cache, say),
        kubeadm=go_build.programs(go_recipes.kubeadm(version), cache, say),
        etcd=go_build.programs(go_recipes.etcd(), cache, say),
        coredns=go_build.programs(go_recipes.kubeadm_coredns(), cache, say),
        kind=find_go(cache, OLDEST, say).fetch(go_recipes.kind().module, KIND).folder,
    )


def _install_debian(root: Path, say: Progress) -> None:
    say(f"installing Debian {_DEBIAN} with {len(_PACKAGES)} packages into a folder")
    include = f"--include={','.join(_PACKAGES)}"
    command: list[str | Path] = ["debootstrap", "--variant=minbase", include, _DEBIAN, root]
    run([*command, *_mirror()], timeout=_DEBOOTSTRAP_TIMEOUT)
    shutil.rmtree(root / "var/cache/apt")
    shutil.rmtree(root / "var/lib/apt/lists")
    for folder in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / folder, ignore_errors=True)


def _mirror() -> list[str]:
    """The mirror of this release that apt uses; empty if unknown (debootstrap has a default)."""
    wanted = "$(RELEASE) $(COMPONENT) $(CREATED_BY) $(REPO_URI)"
    targets = run(["apt-get", "indextargets", "--format", wanted], check=False).stdout
    for line in targets.splitlines():
        fields = line.split()
        if fields[:3] == [_DEBIAN, "main", "Packages"]:
            return fields[3:]
    return []


def _install_node(root: Path, parts: Parts, version: KubernetesVersion) -> None:
    _copy_files_of_kind(parts.kind / "images/base/files", root)
    for program in ("kubelet", "kubectl"):
        shutil.copy2(parts.kubernetes / program, root / "usr/bin" / program)
    shutil.copy2(parts.kubeadm / "kubeadm", root / "usr/bin/kubeadm")
    # kind's files expect the programs here.
    for program in ("containerd", "containerd-shim-runc-v2", "ctr"):
        (root / "usr/local/bin" / program).symlink_to(f"/usr/bin/{program}")
    plugins = root / "opt/cni/bin"
    plugins.mkdir(parents=True)
    for plugin in _CNI_PLUGINS:
        shutil.copy2(root / system_packages.CNI_PLUGINS.relative_to("/") / plugin, plugins / plugin)
    (root / "etc/kubernetes/manifests").mkdir(parents=True)
    _write(root / "kind/version", str(version))
    _write(root / "kind/manifests/default-cni.yaml", _CNI_MANIFEST)
    _write(root / "kind/manifests/default-storage.yaml", _STORAGE_MANIFEST)
    _write(root / "kind/pod-network.json", json.dumps(_POD_NETWORK_CONFIG, indent=2))
    _write(root / "usr/local/bin/pod-network", _POD_NETWORK, mode=0o755)
    _write(root / "etc/systemd/system/pod-network.service", _POD_NETWORK_UNIT)
    _configure_containerd(root)
    _configure_systemd(root)


def _copy_files_of_kind(files: Path, root: Path) -> None:
    """Copies the node's files; files of a module are read-only and have no modes."""
    for file in sorted(files.rglob("*")):
        if file.is_file():
            relative = file.relative_to(files)
            program = "bin" in relative.parts
            _write(root / relative, file.read_text(), mode=0o755 if program else 0o644)


def _configure_containerd(root: Path) -> None:
    path = root / "etc/containerd/config.toml"
    # A sandbox may not lower its score without CAP_SYS_RESOURCE (see `e2e.clusters.oci_runtime`).
    lowering, restricted = "restrict_oom_score_adj = false", "restrict_oom_score_adj = true"
    path.write_text(path.read_text().replace(lowering, restricted))
    spec = json.loads(run(["chroot", root, "ctr", "oci", "spec"]).stdout)
    hook = {"path": "/kind/bin/mount-product-files.sh"}
    spec.setdefault("hooks", {}).setdefault("createContainer", []).append(hook)
    spec["process"].pop("rlimits", None)
    (root / "etc/containerd/cri-base.json").write_text(json.dumps(spec))


def _configure_systemd(root: Path) -> None:
    for pattern in _WANTED_BY:
        for wanted in root.glob(pattern):
            wanted.unlink()
    with (root / "etc/systemd/journald.conf").open("a") as file:
        file.write("ReadKMsg=no\n")
    (root / "sbin/init").symlink_to("/lib/systemd/systemd")
    run(["chroot", root, "systemctl", "enable", *(f"{unit}.service" for unit in _UNITS)])
    # It registers binary formats for the whole kernel.
    run(["chroot", root, "systemctl", "mask", "systemd-binfmt.service"])


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _import(engine: Engine, root: Path, name: str) -> None:
    """Streams the folder to the engine as a tar archive."""
    changes = ["ENV container=docker", 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]']
    command = ["docker", "import", *(f"--change={it}" for it in changes), "-", name]
    environment = {**os.environ, **engine.environment}
    packing = ["tar", "--create", "--numeric-owner", "--xattrs", "--one-file-system"]
    packing += [f"--directory={root}", "."]
    with subprocess.Popen(packing, stdout=subprocess.PIPE) as tar:
        done = subprocess.run(
            command,
            stdin=tar.stdout,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_IMPORT_TIMEOUT,
        )
    if tar.returncode != 0 or done.returncode != 0:
        raise CommandFailed(f"docker import ended with {done.returncode}: {done.stderr}")
