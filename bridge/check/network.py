"""Checks of the ways between the two clusters: the kubelet API with its certificate, and pods."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from bridge.check.finding import Finding, error, info, ok, warning
from bridge.check.subject import Probe, Subject
from bridge.kubelet.certificate import CertificateError, ServingCertificate, from_files
from bridge.preflight import permissions, podnetwork, relaycidr
from bridge.preflight.checks import own_address
from bridge.preflight.home_api import HomeApi, home_api_of
from sync.kube.errors import ApiError, Forbidden
from sync.kube.resources import NODES
from translators.policy import HostPort
from translators.types import Object, name_of, namespace_of

#: Seconds for a connection from here.
CONNECT = 3.0
#: A serving certificate that nobody renews is warned of when it has no longer to live.
SOON = timedelta(days=7)


# -- home → bridge -------------------------------------------------------------------------


async def kubelet_api(subject: Subject) -> list[Finding]:
    """BRG401 of a node that exists: asked through home's API server, as kubectl logs is."""
    at = _endpoint(subject.known)
    if at is None:
        return [error("BRG401", "home", "the node does not tell where its kubelet API is")]
    path = NODES.path(subject.name, subresource="proxy/healthz")
    try:
        await subject.at_home.read(path, timeout=permissions.QUESTION)
    except ApiError as refused:
        if isinstance(refused, Forbidden) and refused.reason == "Forbidden":
            said = "not checked: the credential may not get nodes/proxy at home"
            return [info("BRG401", "home", said)]
        said = f"home's API server does not reach it at {at}: {refused.message}"
        return [error("BRG401", "home", said)]
    return [ok("BRG401", "home", f"home's API server reaches it at {at}")]


async def address(subject: Subject) -> list[Finding]:
    """BRG401 and BRG406 before a join: where it would listen."""
    from bridge.kubelet.server import ListenError, listening

    here = subject.settings.address or await own_address(subject.at_home)
    port = subject.settings.port
    at = HostPort(here, port)
    found = [info("BRG401", "home", f"home's API server would dial {at}; tried when it is joined")]
    try:
        listening(here, port).close()
    except ListenError as taken:
        return [*found, error("BRG406", "home", str(taken))]
    return [*found, ok("BRG406", "home", f"{at} is free" if port else f"{here} has free ports")]


def _endpoint(node: Object) -> HostPort | None:
    """Where the Node says that its kubelet API is."""
    status = node.get("status") or {}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    for known in status.get("addresses") or ():
        if known.get("type") == "InternalIP" and port:
            return HostPort(str(known["address"]), int(port))
    return None


# -- the certificate -----------------------------------------------------------------------


async def served_certificate(subject: Subject) -> list[Finding]:
    """BRG402 to BRG404 of a node that exists, by a connection from here."""
    at = _endpoint(subject.known)
    if at is None:
        return []
    der = await _certificate_at(at)
    if der is None:
        return [info("BRG402", "home", f"not checked: {at} cannot be reached from here")]
    pair = ServingCertificate(ssl.DER_cert_to_PEM_cert(der).encode(), b"")
    return list(_of_certificate(pair, subject.name, at.host))


async def _certificate_at(at: HostPort) -> bytes | None:
    """What is shown there, verified by nobody; None where nothing answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(CONNECT):
            _, writer = await asyncio.open_connection(at.host, at.port, ssl=context)
    except (OSError, TimeoutError):
        return None
    shown: ssl.SSLObject = writer.get_extra_info("ssl_object")
    der = shown.getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT):
            await writer.wait_closed()
    return der


async def certificate_files(subject: Subject) -> list[Finding]:
    """BRG402 to BRG404 before a join, of the files that are named."""
    asked = subject.settings
    if asked.certificate is None or asked.key is None:
        if asked.serving == "csr":
            return [ok("BRG404", "home", "home is to sign it, when somebody approves")]
        return [info("BRG404", "home", "the bridge signs it itself; most API servers do not check")]
    try:
        pair = await asyncio.to_thread(from_files, asked.certificate, asked.key)
    except CertificateError as bad:
        return [error("BRG402", "home", str(bad))]
    here = asked.address
    if here is None and subject.home.client is not None:
        here = await own_address(subject.at_home)
    return list(_of_certificate(pair, subject.name, here or ""))


def _of_certificate(pair: ServingCertificate, node: str, host: str) -> Iterator[Finding]:
    from cryptography import x509

    from bridge.kubelet import making

    begin, end = making.lifetime(pair)
    now = datetime.now(UTC)
    until = end.strftime("%Y-%m-%dT%H:%M:%SZ")
    if end <= now:
        yield error("BRG402", "home", f"it has expired, at {until}")
    elif begin > now:
        yield error("BRG402", "home", f"it is not good before {begin:%Y-%m-%dT%H:%M:%SZ}")
    elif end - now < SOON:
        yield warning("BRG402", "home", f"it is good until {until} only")
    else:
        yield ok("BRG402", "home", f"it is good until {until}")
    missing = making.lacking(pair, node, [host] if host else [])
    if missing:
        yield warning("BRG403", "home", f"it is not good for {', '.join(missing)}")
    else:
        yield ok("BRG403", "home", "it is good for the node's name and address")
    leaf = x509.load_pem_x509_certificate(pair.certificate)
    if leaf.issuer == leaf.subject:
        yield info("BRG404", "home", "it is self-signed; most API servers do not check it")
    else:
        yield ok("BRG404", "home", f"signed by {leaf.issuer.rfc4514_string()}")


# -- pods ----------------------------------------------------------------------------------


async def pod_network(subject: Subject) -> list[Finding]:
    """BRG405, by a real connection from this machine."""
    network = subject.settings.network
    if network == "none":
        return [info("BRG405", "both", "--network none: pods do not need to reach each other")]
    if network == "relay":
        said = "--network relay: the bridge carries connections, and pods need not reach each other"
        return [info("BRG405", "both", said)]
    answers = await podnetwork.asked(subject.in_remote)
    count = answers.count
    if not count:
        return [info("BRG405", "both", "not checked: no pod of the remote is ready to be tried")]
    if silent := answers.silent:
        names = ", ".join(
            f"{namespace_of(it)}/{name_of(it)} at {podnetwork.address_of(it)}" for it in silent
        )
        said = f"from this machine no way to {len(silent)} of {count} pods tried: {names}"
        if network == "auto":
            return [info("BRG405", "both", f"{said}; --network auto would take relay")]
        return [warning("BRG405", "both", said)]
    if not answers.taken:
        said = f"from this machine {count} pod(s) refuse a connection; so can a firewall"
        return [info("BRG405", "both", said)]
    return [ok("BRG405", "both", f"from this machine {count} pod(s) of the remote answer")]


# -- remote pods → home --------------------------------------------------------------------


async def home_api(subject: Subject) -> list[Finding]:
    """BRG407."""
    if subject.settings.service_accounts != "home":
        return [
            info("BRG407", "remote", "pods have no identity at home, so they need no way there")
        ]
    given = subject.settings.home_api
    at = HomeApi(given) if given else await home_api_of(subject.at_home)
    return [ok("BRG407", "remote", f"pods find home's API server at {at}")]


async def relay_cidr(subject: Subject) -> list[Finding]:
    """BRG408, where a range is asked for."""
    relay = subject.settings.relay
    if relay.cidr is None:
        return []
    at = relay.address or subject.settings.address or await own_address(subject.at_home)
    if why := await relaycidr.unusable(relay.cidr, home=subject.at_home, address=at):
        return [error("BRG408", "home", why)]
    said = f"this machine may have {relay.cidr}; home's machines have to route it to {at}"
    return [ok("BRG408", "home", said)]


PROBES = (
    Probe("BRG401", kubelet_api, ("home", "node")),
    Probe("BRG401", address, ("home",), only_before=True),
    Probe("BRG402", served_certificate, ("node",)),
    Probe("BRG402", certificate_files, (), only_before=True),
    Probe("BRG405", pod_network, ("remote",)),
    Probe("BRG407", home_api, ("home",)),
    Probe("BRG408", relay_cidr, ("home",), only_before=True),
)
