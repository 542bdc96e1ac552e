"""The control plane of one native cluster: etcd, API server, controllers, scheduler.

All components listen in the cluster's network namespace; clients outside reach only the API
server, at the node's address. etcd serves plain HTTP on the namespace's loopback and does not sync
to disk: a cluster lives as long as its machine is up.
"""

from __future__ import annotations

from pathlib import Path

from e2e.clusters.certificates import Authority, service_account_keys, write_kubeconfig
from e2e.clusters.cluster import API_SERVER
from e2e.clusters.native_site import Site

# Requests per second that the controllers may send: the defaults (20 and 50) would limit every
# benchmark.
API_QPS = 2000
API_BURST = 4000

# A cold start of two clusters on two cores takes about 8 s.
START_TIMEOUT = 120.0

# Seconds between two checks of a HorizontalPodAutoscaler; the default is 15.
AUTOSCALER_PERIOD = 3
# Logs every answered request, without content, except those of the cluster's own components. At
# most two files of this many MB.
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]
- level: None
  users: ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"]
- level: Metadata
"""
AUDIT_LOG = "audit.log"
_AUDIT_MB = 500
# Mutating admission policies: beta and disabled by default in 1.34 and 1.35, always available from
# 1.36 on.
MUTATING_POLICIES = (
    "--feature-gates=MutatingAdmissionPolicy=true",
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
)

ETCD = "etcd"
CONTROLLERS = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
DNS = "coredns"
METRICS = "metrics-server"
COMPONENTS = (ETCD, API_SERVER, CONTROLLERS, SCHEDULER)


def write_credentials(site: Site) -> None:
    """Writes all certificates, keys and kubeconfig files of the cluster."""
    plan, name = site.plan, site.spec.name
    authority = Authority.create(site.pki, "ca", f"{name}-ca")
    node, node_ip = site.node_names[0], str(plan.node.ip)
    kubernetes = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    names = [*kubernetes, "kubernetes.default.svc.cluster.local", "localhost", name]
    hosts = [*names, node_ip, str(plan.api_service), "127.0.0.1"]
    authority.issue("apiserver", "kube-apiserver", hosts=hosts)
    (site.folder / "audit-policy.yaml").write_text(AUDIT_POLICY)
    masters = ("system:masters",)
    authority.issue("apiserver-kubelet-client", "kube-apiserver-kubelet-client", groups=masters)
    authority.issue(
        "kubelet-serving", f"system:node:{node}", groups=("system:nodes",), hosts=[node, node_ip]
    )
    Authority.create(site.pki, "front-proxy-ca", f"{name}-front-proxy-ca").issue(
        "front-proxy-client", "front-proxy-client"
    )
    service_account_keys(site.pki)
    clients = {
        "admin": ("kubernetes-admin", masters),
        CONTROLLERS: (f"system:{CONTROLLERS}", ()),
        SCHEDULER: (f"system:{SCHEDULER}", ()),
        "kube-proxy": ("system:kube-proxy", ()),
        DNS: (f"system:{DNS}", ()),
        METRICS: (f"system:{METRICS}", ()),
        "kubelet": (f"system:node:{node}", ("system:nodes",)),
    }
    for component, (user, groups) in clients.items():
        pair = authority.issue(component, user, groups=groups)
        admin = component == "admin"
        write_kubeconfig(
            site.settings.kubeconfig(name) if admin else site.kubeconfig(component),
            context=name,
            server=site.server,
            authority=site.pki / "ca.crt",
            client=pair,
            user=user,
        )


def start(site: Site, programs: Path, etcd: Path) -> None:
    """Starts all components and returns when the API server is ready.

    :raises StartFailed: a component ended, or did not become ready in time.
    """
    run = site.supervisor
    run.start(ETCD, etcd_command(site, etcd))
    run.start(API_SERVER, api_server_command(site, programs))
    api = site.api
    site.wait("the API server was ready", api.ready, (API_SERVER, ETCD), START_TIMEOUT)
    api.close()
    run.start(CONTROLLERS, controllers_command(site, programs))
    run.start(SCHEDULER, scheduler_command(site, programs))


def etcd_command(site: Site, folder: Path) -> list[str | Path]:
    """The command line of etcd."""
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return [
        folder / "etcd",
        f"--name={site.spec.name}",
        f"--data-dir={site.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={site.spec.name}={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        # 4 GiB instead of 2: room for a benchmark of many thousand pods.
        "--quota-backend-bytes=4294967296",
    ]


def api_server_command(site: Site, folder: Path) -> list[str | Path]:
    """The command line of the API server."""
    pki, plan = site.pki, site.plan
    issuer = "https://kubernetes.default.svc.cluster.local"
    return [
        folder / API_SERVER,
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={plan.node.ip}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={plan.services}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki / 'front-proxy-client.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy-client.key'}",
        # The API server dials endpoints of aggregated APIs itself, as with kind and kubeadm.
        "--enable-aggregator-routing=true",
        f"--service-account-issuer={issuer}",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--authorization-mode=Node,RBAC",
        # As kubeadm and kind do.
        "--enable-bootstrap-token-auth=true",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={site.folder / 'audit-policy.yaml'}",
        f"--audit-log-path={site.folder / AUDIT_LOG}",
        f"--audit-log-maxsize={_AUDIT_MB}",
        "--audit-log-maxbackup=1",
        f"--cert-dir={pki}",
        *(MUTATING_POLICIES if site.settings.kubernetes.minor in (34, 35) else ()),
    ]


def controllers_command(site: Site, folder: Path) -> list[str | Path]:
    """The command line of the controller manager."""
    pki, kubeconfig = site.pki, site.kubeconfig(CONTROLLERS)
    return [
        folder / CONTROLLERS,
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--cluster-name={site.spec.name}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        "--use-service-account-credentials=true",
        "--allocate-node-cidrs=false",
        "--leader-elect=false",
        f"--horizontal-pod-autoscaler-sync-period={AUTOSCALER_PERIOD}s",
        f"--kube-api-qps={API_QPS}",
        f"--kube-api-burst={API_BURST}",
        f"--cert-dir={pki}",
    ]


def scheduler_command(site: Site, folder: Path) -> list[str | Path]:
    """The command line of the scheduler."""
    kubeconfig = site.kubeconfig(SCHEDULER)
    return [
        folder / SCHEDULER,
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        f"--kube-api-qps={API_QPS}",
        f"--kube-api-burst={API_BURST}",
        f"--cert-dir={site.pki}",
    ]
