"""Connects to a cluster: kubeconfig, credential, certificate and API server (BRG101 to BRG105).

`check_connectivity` returns findings and, where the API server responds, a client, within
`CONNECT_SECONDS`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import orjson
from cryptography import x509

from bridge.checks.check_context import ClusterConnectivity
from bridge.checks.findings import Finding, error, info, ok, warning
from bridge.clusters import token_renewal
from bridge.clusters.connection import git_version, new_token_command
from bridge.rbac import permissions
from sync.kube import bearer_token
from sync.kube.api_errors import (
    ApiError,
    ApiServerCertificateError,
    ClientConfigError,
    KubeError,
    Side,
    Unauthorized,
)
from sync.kube.api_server import seconds_of_date
from sync.kube.client import KubeClient
from sync.kube.credentials import Credentials, load
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.timestamps import format_time

#: Seconds to connect to one cluster; credential plugins may ask a person.
CONNECT_SECONDS = 12.0
#: Distinguishes the requests of a command from those of the bridge in audit logs.
USER_AGENT = "cluster-bridge-check"
#: Remaining lifetime at which a credential that nothing renews is a warning.
EXPIRY_WARNING = timedelta(days=7)


async def check_connectivity(
    stack: AsyncExitStack, ref: KubeconfigRef, side: Side
) -> ClusterConnectivity:
    """Connects to a cluster; ``stack`` closes the client.

    Raises nothing: the findings say what failed. A check that fails has no other finding.
    """
    cluster = ClusterConnectivity(side)
    credentials: Credentials | None = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            credentials = cluster.credentials = await load(ref, side=side)
            client = await stack.enter_async_context(KubeClient(credentials, user_agent=USER_AGENT))
            await _read_version(client, cluster)
            cluster.client = client
    except TimeoutError:
        text = "no answer in time, from the API server or from the credential plugin"
        failure: Finding | None = error("BRG101", side, text)
    except KubeError as problem:
        failure = _failure(problem)
    else:
        failure = None
    findings = []
    if credentials is not None:
        findings = [
            *_of_kubeconfig(credentials, cluster),
            await _check_expiry(credentials, cluster),
        ]
    if failure is not None:
        cluster.findings.append(failure)
        findings = [it for it in findings if it.id != failure.id]
    cluster.findings += findings
    return cluster


async def _read_version(client: KubeClient, cluster: ClusterConnectivity) -> None:
    """Requests the version, and compares the server's clock by its response."""
    start = time.time()
    async with asyncio.timeout(permissions.REQUEST_SECONDS), client.stream("/version") as response:
        with client.map_read_errors("/version"):
            raw = await client.limits.read(response, what="GET /version")
        date = response.headers.get("Date")
        cluster.clock_ahead = seconds_ahead(date, (start + time.time()) / 2)
    server = client.endpoint.server
    try:
        cluster.version = git_version(orjson.loads(raw))
    except (orjson.JSONDecodeError, AttributeError):
        text = f"{server} returns no version: is it an API server, or a proxy in front of one?"
        cluster.findings.append(error("BRG101", cluster.side, text))
        return
    cluster.findings.append(ok("BRG101", cluster.side, f"{server} answers"))
    cluster.findings.append(ok("BRG103", cluster.side, "the credential is accepted"))


def seconds_ahead(date: str | None, now: float) -> float | None:
    """Seconds that the Date is ahead; it is truncated, so half a second is added."""
    found = seconds_of_date(date)
    return None if found is None else found + 0.5 - now


def _failure(problem: KubeError) -> Finding:
    side = problem.side
    if isinstance(problem, ClientConfigError):
        return error("BRG102", side, f"{problem.what}: {problem.message}")
    if isinstance(problem, ApiServerCertificateError):
        return error("BRG105", side, problem.message)
    if isinstance(problem, Unauthorized):
        return error("BRG103", side, "the API server does not accept the credential (401)")
    if isinstance(problem, ApiError):
        return error("BRG101", side, f"the API server answers {problem.code}: {problem.message}")
    return error("BRG101", side, problem.message)


def _of_kubeconfig(credentials: Credentials, cluster: ClusterConnectivity) -> Iterator[Finding]:
    """Findings about the kubeconfig, after the attempt to connect."""
    side, ref, endpoint = credentials.side, credentials.ref, credentials.endpoint
    context = "" if ref.context else f" (context {credentials.context})"
    yield ok("BRG102", side, f"{ref}{context}")
    if not endpoint.uses_tls:
        yield warning("BRG105", side, "the API server is reached over plain http")
    elif endpoint.skips_verification:
        yield warning("BRG105", side, "the API server's certificate is not verified")
    elif cluster.client is not None:
        yield ok("BRG105", side, "the API server's certificate is verified")


async def _check_expiry(credentials: Credentials, cluster: ClusterConnectivity) -> Finding:
    """BRG104."""
    side, now, client = credentials.side, datetime.now(UTC), cluster.client
    account = bearer_token.account_token(credentials.kubeconfig_token.own)
    ends = (
        (_client_certificate_expiry(credentials.credential.certificate), "the client certificate"),
        (credentials.token_expiry(), "the token"),
    )
    known = [(end, what) for end, what in ends if end is not None]
    if not known:
        if side == "remote" and account is not None:
            text, command = f"the token of {account} never expires", new_token_command(account)
            hint = f"use one that the bridge renews: {command} in the remote creates it"
            return warning("BRG104", side, text, hint)
        return info("BRG104", side, "the credential does not show when it expires")
    end, what = min(known)
    if end <= now:
        text = f"{what} has expired, at {format_time(end)}"
        if client is not None:
            return warning("BRG104", side, f"{text}, but the API server still accepts it")
        return error("BRG104", side, text)
    text = f"{what} is valid until {format_time(end)}"
    if credentials.renews_itself:
        return ok("BRG104", side, f"{text}, and renews itself")
    if side == "remote" and client is not None and await _is_renewed(client):
        return ok("BRG104", side, f"{text}, and the bridge renews it")
    return warning("BRG104", side, text) if end - now < EXPIRY_WARNING else ok("BRG104", side, text)


async def _is_renewed(client: KubeClient) -> bool:
    """Whether a bridge with this credential renews it."""
    token = token_renewal.renewable_token(client.credentials)
    try:
        async with asyncio.timeout(permissions.REQUEST_SECONDS):
            return token is not None and await token_renewal.may_renew(client, token)
    except (KubeError, TimeoutError):
        return False


def _client_certificate_expiry(certificate: bytes) -> datetime | None:
    """When the client certificate (PEM) ends; None if there is none."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError:
        return None
