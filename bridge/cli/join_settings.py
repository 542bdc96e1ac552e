"""What a join's options mean: `JoinSettings`, from a command line or from a configuration."""

from __future__ import annotations

from pathlib import Path

from bridge.base.settings import (
    JoinSettings,
    MetricsChoice,
    NetworkChoice,
    RelaySettings,
    ServingCertificate,
    SettingsError,
    check_address,
    check_claim,
    check_home_name,
    check_name,
    check_relay_address,
    check_relay_cidr,
    parse_home_api,
    parse_namespaces,
    parse_ports,
)
from bridge.node.node_options import (
    parse_annotations,
    parse_labels,
    parse_limits,
    parse_node_selector,
    parse_taints,
)
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.translation_policy import DaemonSets, ServiceAccounts


def join_settings(
    *,
    kubeconfig: Path,
    context: str | None,
    home_kubeconfig: Path | None,
    home_context: str | None,
    name: str | None,
    labels: str | None,
    annotations: str | None,
    taints: str,
    node_selector: str | None,
    reserve: str | None,
    share: str,
    cpu: str | None,
    memory: str | None,
    pods: int | None,
    home_name: str | None,
    namespace_template: str,
    accept_namespaces: str | None,
    namespace_linger: float,
    network: NetworkChoice,
    relay_address: str | None,
    relay_ports: str | None,
    relay_cidr: str | None,
    relay_connections: int,
    relay_service_connections: int,
    relay_rate: float,
    relay_service_rate: float,
    relay_idle_timeout: float,
    relay_image: str | None,
    daemonsets: DaemonSets,
    service_accounts: ServiceAccounts,
    home_api_address: str | None,
    unschedulable_timeout: float | None,
    address: str | None,
    port: int,
    health_port: int | None,
    serving_certificate: ServingCertificate,
    cert_dir: Path | None,
    tls_cert_file: Path | None,
    tls_private_key_file: Path | None,
    anonymous_auth: bool,
    metrics: MetricsChoice,
    take_over_claim: str | None,
) -> JoinSettings:
    """Each parameter is the option of its name (`bridge.cli.join`). Raises SettingsError."""
    if (tls_cert_file is None) != (tls_private_key_file is None):
        raise SettingsError("--tls-cert-file and --tls-private-key-file go together")
    if tls_cert_file is not None and serving_certificate != "self-signed":
        raise SettingsError("--tls-cert-file and --serving-certificate exclude each other")
    if cert_dir is not None and serving_certificate != "csr":
        raise SettingsError("--cert-dir is of use with --serving-certificate csr only")
    for option, given in (("--relay-image", relay_image), ("--relay-cidr", relay_cidr)):
        if given and network not in ("relay", "auto"):
            raise SettingsError(
                f"{option} is of use with --network relay or auto, and not with {network}"
            )
    return JoinSettings(
        remote=KubeconfigRef(kubeconfig, context),
        home=KubeconfigRef(home_kubeconfig, home_context),
        name=check_name(name) if name is not None else None,
        home_name=check_home_name(home_name) if home_name is not None else None,
        address=check_address(address) if address is not None else None,
        port=port,
        health_port=health_port,
        template=namespace_template,
        network=network,
        relay=RelaySettings(
            address=check_relay_address(relay_address) if relay_address is not None else None,
            ports=parse_ports(relay_ports) if relay_ports is not None else None,
            connections=relay_connections,
            per_service=relay_service_connections,
            rate=relay_rate,
            service_rate=relay_service_rate,
            idle=relay_idle_timeout,
            image=relay_image or "",
            cidr=check_relay_cidr(relay_cidr) if relay_cidr is not None else None,
        ),
        labels=parse_labels(labels) if labels is not None else {},
        annotations=parse_annotations(annotations) if annotations is not None else {},
        taints=parse_taints(taints),
        daemonsets=daemonsets,
        accept_namespaces=parse_namespaces(accept_namespaces or ""),
        namespace_linger=namespace_linger,
        certificate=tls_cert_file,
        key=tls_private_key_file,
        serving=serving_certificate,
        cert_dir=cert_dir,
        anonymous_auth=anonymous_auth,
        service_accounts=service_accounts,
        metrics=metrics,
        home_api=parse_home_api(home_api_address) if home_api_address is not None else None,
        limits=parse_limits(reserve=reserve, share=share, cpu=cpu, memory=memory, pods=pods),
        node_selector=parse_node_selector(node_selector) if node_selector is not None else {},
        unschedulable_timeout=unschedulable_timeout,
        take_over_claim=check_claim(take_over_claim) if take_over_claim is not None else None,
    )
