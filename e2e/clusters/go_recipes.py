"""What is built with Go, and from what. Pure.

A recipe names a released module and the programs in it. Its go.mod is made here and lives in the
cache only: nothing that was fetched is part of this project.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from e2e.clusters.versions import (
    COREDNS,
    ETCD,
    HELM,
    KIND,
    KWOK,
    METRICS_SERVER,
    KubernetesVersion,
)

# Kubernetes requires the modules that it is released with at v0.0.0, and replaces them with
# folders of its own source tree; those folders are published as modules of their own.
_STAGING = re.compile(r"^\s*(?:replace\s+)?(\S+)(?:\s+v\S+)?\s+=>\s+\./staging/\S+$", re.MULTILINE)
_GO = re.compile(r"^go\s+(\d+)\.(\d+)", re.MULTILINE)
_GODEBUG = re.compile(r"^godebug\s+\S+=\S+$|^godebug\s+\([^)]*\)", re.MULTILINE)

# How simulated nodes and pods live: Ready at once, Jobs done at once, gone as soon as deleted.
KWOK_STAGES = "stages.yaml"
_STAGES = (
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    "pod/fast/pod-ready",
    "pod/fast/pod-complete",
    "pod/fast/pod-delete",
)

COREDNS_PLUGINS = ("bind", "errors", "kubernetes", "loadbalance", "template")
# What the configuration names that kubeadm gives it.
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

_KUBERNETES = "k8s.io/kubernetes"
_VERSION_VARIABLES = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One Go build: `programs` maps the name of the binary to its package.

    `tests` are packages whose tests are compiled into a program of the given name. `documents` are
    files of the module's source that the programs need at run time: they are joined, as YAML
    documents, into one file of the given name beside the programs. `source` is a main.go of ours,
    for the package "." among the programs.
    """

    name: str
    module: str
    version: str
    programs: tuple[tuple[str, str], ...]
    ldflags: str = "-s -w"
    staging: str = ""
    tests: tuple[tuple[str, str], ...] = ()
    documents: tuple[str, tuple[str, ...]] | None = None
    source: str = ""

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
    """The upstream end-to-end tests, what runs them in parallel, and a program of their images.

    Ginkgo's version is the one that the tests require: it follows from the module.
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
    """The store of the API server."""
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
    """What makes a control plane out of static pods."""
    return Recipe(
        name="kubeadm",
        module=_KUBERNETES,
        version=str(version),
        programs=(("kubeadm", f"{_KUBERNETES}/cmd/kubeadm"),),
        ldflags=_stamped(version),
        staging=version.staging,
    )


def tools(version: KubernetesVersion) -> Recipe:
    """kubectl, and the program of the upstream test image: where a cluster has its components."""
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
    """The DNS server of a native cluster, with the plugins that `e2e.clusters.coredns` uses.

    With all of them, clients of every cloud among these, it takes twice as long to build.
    """
    return _coredns("coredns", COREDNS_PLUGINS)


def kubeadm_coredns() -> Recipe:
    """The DNS server of a cluster that kubeadm made."""
    return _coredns("coredns-kubeadm", KUBEADM_COREDNS_PLUGINS)


def _coredns(name: str, with_plugins: tuple[str, ...]) -> Recipe:
    module = "github.com/coredns/coredns"
    plugins = [f'\t_ "{module}/plugin/{plugin}"\n' for plugin in with_plugins]
    imports = "".join([f'\t"{module}/coremain"\n', *plugins])
    return Recipe(
        name=name,
        module=module,
        version=COREDNS,
        programs=(("coredns", "."),),
        source=f"package main\n\nimport (\n{imports})\n\nfunc main() {{ coremain.Run() }}\n",
    )


def metrics_server() -> Recipe:
    """What `kubectl top` and HorizontalPodAutoscalers ask."""
    module = "sigs.k8s.io/metrics-server"
    programs = (("metrics-server", f"{module}/cmd/metrics-server"),)
    return Recipe("metrics-server", module, METRICS_SERVER, programs)


def helm() -> Recipe:
    """What installs charts."""
    module = "helm.sh/helm/v3"
    return Recipe("helm", module, HELM, (("helm", f"{module}/cmd/helm"),))


def kind() -> Recipe:
    """Clusters in Docker."""
    return Recipe("kind", "sigs.k8s.io/kind", KIND, (("kind", "sigs.k8s.io/kind"),))


def go_mod(recipe: Recipe, upstream: str) -> str:
    """The go.mod to build a recipe in, given the module's own go.mod.

    Replacements and debug settings of a module count only in the module that is built, so they
    are carried over; the versions of everything else follow from the module itself.
    """
    go = _GO.search(upstream)
    lines = [
        f"module cluster-bridge.invalid/{recipe.name}",
        "",
        f"go {go[1]}.{go[2]}" if go else "go 1.21",
        *_GODEBUG.findall(upstream),
        "",
        f"require {recipe.module} {recipe.version}",
        "",
    ]
    if recipe.staging:
        lines += [f"replace {m} => {m} {recipe.staging}" for m in _STAGING.findall(upstream)]
    return "\n".join(lines).rstrip() + "\n"


def go_needed(upstream: str) -> tuple[int, int]:
    """The Go release that a module asks for."""
    go = _GO.search(upstream)
    return (int(go[1]), int(go[2])) if go else (1, 21)


def _stamped(version: KubernetesVersion) -> str:
    """Linker flags by which a program of Kubernetes knows its version."""
    stamps = {
        "gitVersion": str(version),
        "gitMajor": str(version.major),
        "gitMinor": str(version.minor),
        "gitTreeState": "clean",
    }
    flags = [f"-X {_VERSION_VARIABLES}.{name}={value}" for name, value in stamps.items()]
    return " ".join(["-s -w", *flags])
