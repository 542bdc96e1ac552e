"""The real node of one native cluster: containerd, kubelet, kube-proxy and CNI configuration.

Everything that a node usually keeps in a fixed place of the machine is below the cluster's folder,
because several kubelets share this machine. `clean` removes the files whose place is fixed.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import yaml

from e2e.clusters.cluster import Progress
from e2e.clusters.errors import StartFailed
from e2e.clusters.native_control_plane import API_BURST, API_QPS
from e2e.clusters.native_site import Site
from e2e.clusters.run_command import run
from e2e.clusters.system_packages import CNI_PLUGINS

CONTAINERD = "containerd"
KUBELET = "kubelet"
KUBE_PROXY = "kube-proxy"
COMPONENTS = (CONTAINERD, KUBELET, KUBE_PROXY)

# The namespace in which the kubelet looks for images in containerd.
CRI_NAMESPACE = "k8s.io"

START_TIMEOUT = 120.0
# Restarts of a kubelet that ended, as by systemd (Restart=always).
KUBELET_RESTARTS = 3
IMPORT_TIMEOUT = 120.0

# inotify instances per user: twice the number that kind's documentation recommends.
WATCHERS = 1024
_WATCHERS = Path("/proc/sys/fs/inotify/max_user_instances")

# Results of libcni, the kubelet's links to logs, and sockets of containerd's shims: the path of
# none can be configured.
_CNI_RESULTS = Path("/var/lib/cni/results")
_CONTAINER_LOGS = Path("/var/log/containers")
_SHIM_SOCKETS = Path("/run/containerd/s")


def allow_watchers(say: Progress) -> None:
    """Raises the machine's limit of inotify instances if it is too low for several sets of
    clusters: kubelet, containerd and shims use dozens each, and fail without a message."""
    if int(_WATCHERS.read_text()) < WATCHERS:
        say(f"raising fs.inotify.max_user_instances to {WATCHERS}")
        _WATCHERS.write_text(str(WATCHERS))


def start_containerd(site: Site, pause: str, archive: Path) -> None:
    """Starts containerd and imports the images of `archive`; returns when both are done.

    :raises StartFailed: containerd ended or did not answer.
    :raises CommandFailed: the archive could not be imported.
    """
    for folder in (_containerd(site), site.folder / "cni", site.folder / "cni-state"):
        folder.mkdir(parents=True, exist_ok=True)
    config = _containerd(site) / "config.toml"
    config.write_text(containerd_config(site, pause))
    conflist = json.dumps(cni_config(site), indent=2)
    (site.folder / "cni" / "10-cluster-bridge.conflist").write_text(conflist)
    site.supervisor.start(CONTAINERD, [CONTAINERD, "--config", config, "--log-level", "info"])
    site.wait("it answered", lambda: _answers(site), (CONTAINERD,), START_TIMEOUT)
    load(site, archive)


def load(site: Site, archive: Path) -> None:
    """Imports an image archive."""
    command = [*_ctr(site), "images", "import", archive]
    run(command, timeout=IMPORT_TIMEOUT)


def start(site: Site, programs: Path) -> None:
    """Starts kubelet and kube-proxy; needs containerd and a ready API server."""
    own = _kubelet(site)
    for folder in ("root", "logs", "plugins", "manifests"):
        (own / folder).mkdir(parents=True, exist_ok=True)
    config = own / "config.yaml"
    config.write_text(yaml.safe_dump(kubelet_config(site), sort_keys=False))
    site.supervisor.start(
        KUBELET,
        [
            programs / KUBELET,
            f"--config={config}",
            f"--kubeconfig={site.kubeconfig(KUBELET)}",
            f"--root-dir={own / 'root'}",
            f"--cert-dir={site.pki}",
            f"--hostname-override={site.node_names[0]}",
            f"--node-ip={site.plan.node.ip}",
        ],
    )
    proxy = site.folder / "kube-proxy.yaml"
    proxy.write_text(yaml.safe_dump(kube_proxy_config(site), sort_keys=False))
    site.supervisor.start(KUBE_PROXY, [programs / KUBE_PROXY, f"--config={proxy}"])


def wait(site: Site) -> None:
    """Waits until the node is Ready; restarts a kubelet that ended.

    All kubelets of a machine listen for device plugins on one socket in /var/lib/kubelet, whose
    path is fixed: each removes the other's first, and of two that start in the same moment one
    fails ("address already in use").

    :raises StartFailed: a component ended, or the node was not Ready in time.
    """
    api, wanted = site.api, set(site.node_names)
    parts = (KUBELET, CONTAINERD, KUBE_PROXY)
    for left in reversed(range(KUBELET_RESTARTS + 1)):
        try:
            site.wait(
                "the node was Ready", lambda: api.ready_nodes() >= wanted, parts, START_TIMEOUT
            )
            break
        except StartFailed:
            if not left or site.supervisor.running(KUBELET):
                raise
            site.supervisor.start_again(KUBELET)
    api.close()


def clean(site: Site) -> None:
    """Removes files of the ended processes outside the cluster's folder."""
    tasks = _containerd(site) / "state" / "io.containerd.runtime.v2.task"
    for file in tasks.glob("*/*/address"):
        socket = Path(file.read_text().strip().removeprefix("unix://"))
        if socket.parent == _SHIM_SOCKETS:
            socket.unlink(missing_ok=True)
    loopbacks = [f"cni-loopback-{task.name}-*" for task in tasks.glob("*/*")]
    for pattern in (f"{cni_name(site)}-*", *loopbacks):
        for result in _CNI_RESULTS.glob(pattern):
            result.unlink(missing_ok=True)
    for link in _CONTAINER_LOGS.glob("*.log"):
        with contextlib.suppress(OSError):
            if link.readlink().is_relative_to(_kubelet(site)):
                link.unlink()


def cni_name(site: Site) -> str:
    """The name of the cluster's pod network."""
    return f"cluster-bridge.{site.settings.prefix}.{site.spec.name}"


def cni_config(site: Site) -> dict[str, Any]:
    """Connects every pod to the namespace by a veth pair; the namespace routes.

    Because pods are routed and not bridged, a packet from a pod to a Service that leads to a pod
    of the same node, or back to itself, always passes the rules of kube-proxy.
    """
    ipam = {
        "type": "host-local",
        "dataDir": str(site.folder / "cni-state"),
        "ranges": [[{"subnet": str(site.plan.pods)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "0.4.0",
        "name": cni_name(site),
        "plugins": [
            {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        ],
    }


def containerd_config(site: Site, pause: str) -> str:
    """containerd's configuration (version 2, which 1.6 and later read)."""
    own = _containerd(site)
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{own / "root"}"
state = "{own / "state"}"
# Without file systems that need their own disks, and without /opt/containerd.
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
address = "{_socket(site)}"

[{cri}]
sandbox_image = "{pause}"
# If containerd's own score is raised, a sandbox may not lower it.
restrict_oom_score_adj = true
# Pods' namespaces are mounted below our folder, so that what is left of them can be found.
# Pods' namespaces are mounted below the cluster's folder, so that remains can be found.
enable_unprivileged_ports = true
enable_unprivileged_icmp = true

[{cri}.cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{site.folder / "cni"}"

[{cri}.containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{own / "runc"}"
"""


def kubelet_config(site: Site) -> dict[str, Any]:
    """The kubelet's configuration for a small shared machine, whose disk is not the kubelet's."""
    own, serving = _kubelet(site), site.pair("kubelet-serving")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{_socket(site)}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(site.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{site.cgroups.name}",
        "enforceNodeAllocatable": [],
        # From 1.35 on a kubelet rejects cgroup version 1 by default.
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDomain": "cluster.local",
        "clusterDNS": [str(site.plan.dns)],
        "podLogsDir": str(own / "logs"),
        "volumePluginDir": str(own / "plugins"),
        "maxPods": 250,
        # Changes of ConfigMaps and Secrets appear in volumes within seconds.
        "syncFrequency": "10s",
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "registryPullQPS": 100,
        "registryBurst": 200,
        "serializeImagePulls": False,
        "kubeAPIQPS": API_QPS,
        "kubeAPIBurst": API_BURST,
        "eventRecordQPS": 0,
        "serverTLSBootstrap": False,
        # The disk belongs to the machine: a full disk must not evict pods or remove images.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
    }


def kube_proxy_config(site: Site) -> dict[str, Any]:
    """kube-proxy's configuration: iptables in the cluster's namespace, no machine-wide limits."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(site.kubeconfig(KUBE_PROXY))},
        "hostnameOverride": site.node_names[0],
        "mode": "iptables",
        "clusterCIDR": str(site.plan.pods),
        "iptables": {"minSyncPeriod": "0s"},
        # Zero keeps the kernel's settings, which are the machine's.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def _containerd(site: Site) -> Path:
    return site.folder / "containerd"


def _kubelet(site: Site) -> Path:
    return site.folder / "kubelet"


def _socket(site: Site) -> Path:
    return _containerd(site) / "containerd.sock"


def _ctr(site: Site) -> list[str | Path]:
    return ["ctr", "--address", _socket(site), "--namespace", CRI_NAMESPACE]


def _answers(site: Site) -> bool:
    if not _socket(site).exists():
        return False
    return run([*_ctr(site), "version"], check=False, timeout=10).returncode == 0
