"""The first questions to an API server: can it be reached, as whom, which version, what time.

`reached` answers them all with findings, and gives a client where there is one to go on with. It
ends within `LIMIT` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import orjson

from bridge.checks import credential_expiry
from bridge.checks.report import Finding, error, info, ok, warning
from bridge.rbac import permissions
from sync.kube.client import KubeClient
from sync.kube.credentials import ClientConfig, load
from sync.kube.errors import (
    ApiError,
    ApiServerCertificateError,
    ClientConfigError,
    KubeError,
    Side,
    Unauthorized,
)
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.timestamps import format_time

#: Seconds for one side; credential plugins may ask somebody.
CONNECT_SECONDS = 12.0
#: By which audit logs tell a person's command from the bridge.
USER_AGENT = "cluster-bridge-check"
#: A credential that nothing renews is warned of when it has no longer to live.
EXPIRY_WARNING = timedelta(days=7)


@dataclass(slots=True)
class Connectivity:
    """One side, as far as it was reached."""

    side: Side
    ref: KubeconfigRef | None
    client: KubeClient | None = None
    version: str = ""
    """As the server gives it, such as v1.34.4; "" where that is not known."""
    clock_ahead: float | None = None
    """Seconds that its clock is ahead of this machine's; None where that is not known."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def unavailable_reason(self) -> str:
        """Why there is no client, in half a sentence."""
        return f"{self.side} was not reached"


async def check_connectivity(
    stack: AsyncExitStack, ref: KubeconfigRef, side: Side, *, named: str = ""
) -> Connectivity:
    """Asks; the client is closed with ``stack``. People are told of the kubeconfig as ``named``."""
    its = Connectivity(side, ref)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            access = await load(ref, side=side)
            context = "" if ref.context else f" (context {access.context})"
            its.findings.append(ok("BRG102", side, f"{named or ref}{context}"))
            its.findings += _of_access(access)
            client = await stack.enter_async_context(KubeClient(access, user_agent=USER_AGENT))
            await _ask(client, its)
            its.client = client
    except TimeoutError:
        said = "no answer in time, from the API server or from the credential plugin"
        its.findings.append(error("BRG101", side, said))
    except KubeError as problem:
        its.findings.append(_problem(problem))
    return its


async def _ask(client: KubeClient, its: Connectivity) -> None:
    """The version, and the time by which the server answers."""
    access, begin = client.config, time.time()
    async with asyncio.timeout(permissions.REQUEST_SECONDS), client.stream("/version") as response:
        with client.map_read_errors("/version"):
            raw = await response.read()
        its.clock_ahead = _ahead(response.headers.get("Date", ""), (begin + time.time()) / 2)
    try:
        its.version = str(orjson.loads(raw).get("gitVersion") or "")
    except (orjson.JSONDecodeError, AttributeError):
        said = f"{access.server} gives no version: is it an API server, or a proxy before one?"
        its.findings.append(error("BRG101", its.side, said))
        return
    its.findings.append(ok("BRG101", its.side, f"{access.server} answers"))
    its.findings.append(ok("BRG103", its.side, "the credential is accepted"))


def _ahead(date: str, now: float) -> float | None:
    """A Date has whole seconds, cut off: half of one is added."""
    try:
        return parsedate_to_datetime(date).timestamp() + 0.5 - now
    except (ValueError, TypeError):
        return None


def _problem(problem: KubeError) -> Finding:
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


def _of_access(access: ClientConfig) -> Iterator[Finding]:
    """What the kubeconfig tells before anything is asked."""
    side = access.side
    if access.is_verified:
        yield ok("BRG105", side, "the API server's certificate is verified")
    elif access.ssl is None:
        yield warning("BRG105", side, "the API server is asked over plain http")
    else:
        yield warning("BRG105", side, "the API server's certificate is not verified")
    yield check_expiry(access)


def check_expiry(access: ClientConfig, now: datetime | None = None) -> Finding:
    """Whether the credential ends soon."""
    side, now = access.side, now or datetime.now(UTC)
    ends = {
        "the client certificate": credential_expiry.client_certificate_expiry(access),
        "the token": credential_expiry.token_expiry(access),
    }
    known = [(end, what) for what, end in ends.items() if end is not None]
    if not known:
        return info("BRG104", side, "the credential does not tell when it ends")
    end, what = min(known)
    if end <= now:
        return error("BRG104", side, f"{what} has expired, at {_at(end)}")
    said = f"{what} is good until {_at(end)}"
    if credential_expiry.renews_itself(access.ref, access.context):
        return ok("BRG104", side, f"{said}, and renews itself")
    return warning("BRG104", side, said) if end - now < EXPIRY_WARNING else ok("BRG104", side, said)


def _at(moment: datetime) -> str:
    return format_time(moment)
