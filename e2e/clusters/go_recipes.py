"""Go modules and programs that are built. Pure, but for the sources of the own programs.

A recipe names a released module and the programs in it. Its go.mod is generated and stored in the
cache only: no downloaded file becomes part of this project.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.go_toolchain import OLDEST
from e2e.clusters.versions import (
    ARGO_CD,
    COREDNS,
    CSI_ATTACHER,
    CSI_PROVISIONER,
    DEFAULT_KUBERNETES,
    DESCHEDULER,
    ETCD,
    HELM,
    KIND,
    KUBELET_PLUGINS,
    KUEUE,
    KWOK,
    LOCAL_PATH_PROVISIONER,
    METRICS_SERVER,
    PROVISIONER_LIBRARY,
    SNAPSHOT_CONTROLLER,
    KubernetesVersion,
)

# Kubernetes requires the modules of its release at v0.0.0 and replaces them by folders of its
# source tree, which are also published as modules.
_STAGING = re.compile(r"^\s*(?:replace\s+)?(\S+)(?:\s+v\S+)?\s+=>\s+\./staging/\S+$", re.MULTILINE)
#: Any other module that it requires, and the version.
_REQUIRED = re.compile(r"^\t(\S+) (v(?!0\.0\.0(?:\s|$))\S+)(?: // indirect)?$", re.MULTILINE)
_GO = re.compile(r"^go\s+(\d+)\.(\d+)", re.MULTILINE)
#: A replacement by a published version.
_REPLACE = re.compile(r"^(?:replace |\t)(\S+(?: v\S+)? => \S+ v\S+)", re.M)
_GODEBUG = re.compile(r"^godebug\s+\S+=\S+$|^godebug\s+\([^)]*\)", re.MULTILINE)

# Simulated nodes and pods are Ready at once, Jobs complete at once, deletions take no time.
KWOK_STAGES = "stages.yaml"
_STAGES = (
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    "pod/fast/pod-ready",
    "pod/fast/pod-complete",
    "pod/fast/pod-delete",
)

COREDNS_PLUGINS = (
    "bind",
    "errors",
    "kubernetes",
    "loadbalance",
    # Those of manifests/coredns-server-block.conf.
    "metadata",
    "rewrite",
    "template",
    "view",
)
# Plugins of the configuration that kubeadm writes.
KUBEADM_COREDNS_PLUGINS = (
    "cache",
    "errors",
    "forward",
    "health",
    "kubernetes",
    "loadbalance",
    "loop",
    "metrics",
    "ready",
    "reload",
)

_Pairs = tuple[tuple[str, str], ...]

_PROGRAMS = Path(__file__).parent / "programs"
HOSTPATH_PROVISIONER_SOURCES = _PROGRAMS / "hostpath_provisioner"
CSI_DRIVER_SOURCES = _PROGRAMS / "csi_driver"
ARGO_CD_DIFF_SOURCES = _PROGRAMS / "argo_cd_diff"

ARGO_CD_MODULE = "github.com/argoproj/argo-cd/v3"
#: The Go release without which Argo CD's modules are not even downloaded.
ARGO_CD_GO = (1, 27)
HELM_CONTROLLER_MODULE = "github.com/fluxcd/helm-controller"
KUEUE_MODULE = "sigs.k8s.io/kueue"
KUEUE_PROGRAM = "kueue"

_KUBERNETES = "k8s.io/kubernetes"
_VERSION_VARIABLES = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One Go build: `programs` maps the name of the binary to its package.

    `tests` are packages whose tests are compiled into a program of the given name. `documents` are
    YAML files of the module's source that the programs need at run time: they are joined into one
    file of the given name beside the programs. `sources` are names and contents of the Go files of
    the package "." among the programs. `requirements` are further modules and their versions.
    `staging` is the version of the modules that are released together with Kubernetes. `go` is the
    oldest Go release that downloads the module.
    """

    name: str
    module: str
    version: str
    programs: _Pairs
    ldflags: str = "-s -w"
    staging: str = ""
    tests: _Pairs = ()
    documents: tuple[str, tuple[str, ...]] | None = None
    sources: _Pairs = ()
    requirements: _Pairs = ()
    go: tuple[int, int] = OLDEST

    @property
    def folder(self) -> str:
        """The build's folder in the cache."""
        return f"{self.name}-{self.version}"


def kubernetes(version: KubernetesVersion) -> Recipe:
    """The components of a cluster, kubectl, and the program of the upstream test image."""
    commands = (
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "kubelet",
        "kubectl",
    )
    return Recipe(
        name="kubernetes",
        module=_KUBERNETES,
        version=str(version),
        programs=(
            *((command, f"{_KUBERNETES}/cmd/{command}") for command in commands),
            ("agnhost", f"{_KUBERNETES}/test/images/agnhost"),
        ),
        ldflags=_stamped(version),
        staging=version.staging,
    )


def kubernetes_e2e(version: KubernetesVersion) -> Recipe:
    """The upstream end-to-end tests, their parallel runner, and a program of their images.

    The module determines the version of Ginkgo.
    """
    return Recipe(
        name="kubernetes-e2e",
        module=_KUBERNETES,
        version=str(version),
        programs=(
            ("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
            ("nnp", f"{_KUBERNETES}/test/images/nonewprivs"),
        ),
        tests=(("e2e.test", f"{_KUBERNETES}/test/e2e"),),
        ldflags=_stamped(version),
        staging=version.staging,
    )


def etcd() -> Recipe:
    """The API server's store."""
    module = "go.etcd.io/etcd/server/v3"
    return Recipe("etcd", module, ETCD, (("etcd", module),))


def kwok() -> Recipe:
    """The controller of simulated nodes."""
    module = "sigs.k8s.io/kwok"
    return Recipe(
        name="kwok",
        module=module,
        version=KWOK,
        programs=(("kwok", f"{module}/cmd/kwok"),),
        documents=(KWOK_STAGES, tuple(f"kustomize/stage/{stage}.yaml" for stage in _STAGES)),
    )


def kubeadm(version: KubernetesVersion) -> Recipe:
    """The installer that builds a control plane from static pods."""
    return Recipe(
        name="kubeadm",
        module=_KUBERNETES,
        version=str(version),
        programs=(("kubeadm", f"{_KUBERNETES}/cmd/kubeadm"),),
        ldflags=_stamped(version),
        staging=version.staging,
    )


def tools(version: KubernetesVersion) -> Recipe:
    """kubectl and the program of the upstream test image, for a kind cluster."""
    return Recipe(
        name="kubernetes-tools",
        module=_KUBERNETES,
        version=str(version),
        programs=(
            ("kubectl", f"{_KUBERNETES}/cmd/kubectl"),
            ("agnhost", f"{_KUBERNETES}/test/images/agnhost"),
        ),
        ldflags=_stamped(version),
        staging=version.staging,
    )


def coredns() -> Recipe:
    """The DNS server of a native cluster, with the plugins that `e2e.clusters.coredns` uses; all
    plugins would include clients of every cloud."""
    return _coredns("coredns-with-views", COREDNS_PLUGINS)


def kubeadm_coredns() -> Recipe:
    """The DNS server of a cluster created by kubeadm."""
    return _coredns("coredns-kubeadm", KUBEADM_COREDNS_PLUGINS)


def _coredns(name: str, with_plugins: tuple[str, ...]) -> Recipe:
    module = "github.com/coredns/coredns"
    plugins = [f'\t_ "{module}/plugin/{plugin}"\n' for plugin in with_plugins]
    imports = "".join([f'\t"{module}/coremain"\n', *plugins])
    main = f"package main\n\nimport (\n{imports})\n\nfunc main() {{ coremain.Run() }}\n"
    return _beside_kubernetes(
        name,
        programs=(("coredns", "."),),
        requirements=((module, COREDNS),),
        sources=(("main.go", main),),
    )


def add_ons() -> Recipe:
    """metrics-server, rancher's provisioner of directories of a node, and the tests' own."""
    metrics_server = "sigs.k8s.io/metrics-server"
    local_path = "github.com/rancher/local-path-provisioner"
    return _beside_kubernetes(
        "add-ons",
        programs=(
            ("metrics-server", f"{metrics_server}/cmd/metrics-server"),
            ("local-path-provisioner", local_path),
            ("hostpath-provisioner", "."),
        ),
        requirements=(
            (metrics_server, METRICS_SERVER),
            (local_path, LOCAL_PATH_PROVISIONER),
            ("sigs.k8s.io/sig-storage-lib-external-provisioner/v11", PROVISIONER_LIBRARY),
        ),
        sources=_own_sources(HOSTPATH_PROVISIONER_SOURCES),
    )


def _beside_kubernetes(
    name: str, *, programs: _Pairs, requirements: _Pairs, sources: _Pairs
) -> Recipe:
    """Programs with the versions that Kubernetes requires of all modules, so that packages which
    were compiled for it are not compiled again: seconds instead of minutes for each program.

    The programs must be of about its age, or they do not compile.
    """
    version = KubernetesVersion.parse(DEFAULT_KUBERNETES)
    return Recipe(
        name=f"{name}-{_digest(sources, requirements)}",
        module=_KUBERNETES,
        version=str(version),
        programs=programs,
        staging=version.staging,
        sources=sources,
        requirements=requirements,
    )


def _own_sources(folder: Path) -> _Pairs:
    """Names and contents of the Go files of an own program."""
    return tuple((file.name, file.read_text()) for file in sorted(folder.glob("*.go")))


def _digest(*parts: _Pairs) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


_SNAPSHOTTER = "github.com/kubernetes-csi/external-snapshotter/v8"


def snapshot_controller() -> Recipe:
    """The controller that creates a VolumeSnapshotContent for each VolumeSnapshot."""
    programs = (("snapshot-controller", f"{_SNAPSHOTTER}/cmd/snapshot-controller"),)
    return Recipe("snapshot-controller", _SNAPSHOTTER, SNAPSHOT_CONTROLLER, programs)


def csi_driver() -> Recipe:
    """The tests' own CSI driver, and two sidecars of Kubernetes for it, which share packages; the
    name contains the hash of the driver's sources."""
    module = "github.com/kubernetes-csi/external-provisioner/v5"
    sources = _own_sources(CSI_DRIVER_SOURCES)
    return Recipe(
        name=f"csi-driver-{_digest(sources)}",
        module=module,
        version=CSI_PROVISIONER,
        programs=(
            ("csi-driver", "."),
            ("csi-provisioner", f"{module}/cmd/csi-provisioner"),
            ("csi-snapshotter", f"{_SNAPSHOTTER}/cmd/csi-snapshotter"),
        ),
        sources=sources,
        requirements=((_SNAPSHOTTER, SNAPSHOT_CONTROLLER), ("k8s.io/kubelet", KUBELET_PLUGINS)),
    )


def csi_attacher() -> Recipe:
    """The sidecar that attaches volumes of a CSI driver, by VolumeAttachments."""
    module = "github.com/kubernetes-csi/external-attacher/v4"
    programs = (("csi-attacher", f"{module}/cmd/csi-attacher"),)
    return Recipe("csi-attacher", module, CSI_ATTACHER, programs)


def kueue() -> Recipe:
    """The manager of job queues; it requires all clients of its integrations: 1,800 packages."""
    return Recipe(
        KUEUE_PROGRAM, KUEUE_MODULE, KUEUE, ((KUEUE_PROGRAM, f"{KUEUE_MODULE}/cmd/kueue"),)
    )


def descheduler() -> Recipe:
    """The evictor of pods that other nodes suit better."""
    module = "sigs.k8s.io/descheduler"
    return Recipe(
        "descheduler", module, DESCHEDULER, (("descheduler", f"{module}/cmd/descheduler"),)
    )


def helm() -> Recipe:
    """The installer of charts."""
    module = "helm.sh/helm/v3"
    return Recipe("helm", module, HELM, (("helm", f"{module}/cmd/helm"),))


def argo_cd() -> Recipe:
    """All of Argo CD in one program; its name selects the part (``ARGOCD_BINARY_NAME``)."""
    programs = (("argocd", f"{ARGO_CD_MODULE}/cmd"),)
    return Recipe("argocd", ARGO_CD_MODULE, ARGO_CD, programs, go=ARGO_CD_GO)


def argo_cd_diff() -> Recipe:
    """The tests' own program that compares objects by Argo CD's library."""
    module = "github.com/argoproj/argo-cd/gitops-engine/v3"
    sources = _own_sources(ARGO_CD_DIFF_SOURCES)
    name = f"argo-cd-diff-{_digest(sources)}"
    programs = (("argo-cd-diff", "."),)
    return Recipe(name, module, ARGO_CD, programs, sources=sources, go=ARGO_CD_GO)


def kind() -> Recipe:
    """Clusters in Docker."""
    return Recipe("kind", "sigs.k8s.io/kind", KIND, (("kind", "sigs.k8s.io/kind"),))


def go_mod(recipe: Recipe, upstream: str) -> str:
    """The go.mod of a recipe, from the go.mod of its module.

    Replacements and debug settings apply only in the main module, so they are copied; the module
    determines all other versions, Kubernetes also those of modules that the requirements share
    with it.
    """
    go = _GO.search(upstream)
    lines = [
        f"module cluster-bridge.invalid/{recipe.name}",
        "",
        f"go {go[1]}.{go[2]}" if go else "go 1.21",
        *_GODEBUG.findall(upstream),
        "",
        f"require {recipe.module} {recipe.version}",
        *(f"require {module} {version}" for module, version in recipe.requirements),
        "",
        *(f"replace {module}" for module in _REPLACE.findall(upstream)),
    ]
    if recipe.staging:
        lines += [f"replace {m} => {m} {recipe.staging}" for m in _STAGING.findall(upstream)]
    if recipe.staging and recipe.requirements:
        lines += [f"replace {m} => {m} {version}" for m, version in _REQUIRED.findall(upstream)]
    return "\n".join(lines).rstrip() + "\n"


def go_needed(upstream: str) -> tuple[int, int]:
    """The Go release that a module requires."""
    go = _GO.search(upstream)
    return (int(go[1]), int(go[2])) if go else (1, 21)


def _stamped(version: KubernetesVersion) -> str:
    """Linker flags that set the version of a Kubernetes program."""
    stamps = {
        "gitVersion": str(version),
        "gitMajor": str(version.major),
        "gitMinor": str(version.minor),
        "gitTreeState": "clean",
    }
    flags = [f"-X {_VERSION_VARIABLES}.{name}={value}" for name, value in stamps.items()]
    return " ".join(["-s -w", *flags])
