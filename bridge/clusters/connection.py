"""Connects to a cluster by its kubeconfig, and describes errors of its API server to a person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

from bridge.base.command_error import PreflightError
from bridge.rbac import permissions
from sync.kube import bearer_token
from sync.kube.api_errors import (
    ApiError,
    ApiServerCertificateError,
    Forbidden,
    KubeError,
    Side,
    Unauthorized,
    Unreachable,
)
from sync.kube.api_resources import NAMESPACES
from sync.kube.bearer_token import AccountToken
from sync.kube.client import KubeClient
from sync.kube.credentials import Credentials, load
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, text_or_empty, uid_of
from translators.timestamps import format_time

#: Seconds to load a kubeconfig (with its credential plugin) and to get a first response, and for
#: all checks of a join: a person waits for this.
CONNECT_SECONDS = 14.0
#: Characters of the version of an API server.
VERSION_LIMIT = 100

#: Receives one line of progress for a person.
Notify = Callable[[str], None]


@asynccontextmanager
async def connect(ref: KubeconfigRef, *, side: Side, notify: Notify) -> AsyncIterator[KubeClient]:
    """A client whose API server has responded once. Raises PreflightError."""
    with as_preflight_errors(side):
        async with asyncio.timeout(CONNECT_SECONDS):
            credentials = await load(ref, side=side)
            async with KubeClient(credentials) as probe:
                try:
                    version = await probe.request(
                        "GET", "/version", timeout=permissions.REQUEST_SECONDS
                    )
                except Unauthorized as error:
                    if message := _expired_token_message(credentials):
                        raise PreflightError(message) from error
                    raise
    server, context = credentials.endpoint.server, credentials.context
    notify(f"{side}: {server} (context {context}), {git_version(version) or '?'}")
    async with KubeClient(credentials) as client:
        yield client


@contextmanager
def as_preflight_errors(side: Side | None = None) -> Iterator[None]:
    """Raises PreflightError in place of a KubeError or TimeoutError of its block.

    ``side`` names the cluster in the message of a timeout, which does not know it.
    """
    try:
        yield
    except KubeError as error:
        raise PreflightError(describe_error(error)) from error
    except TimeoutError as error:
        where = f"{side}: " if side else ""
        raise PreflightError(
            f"{where}no answer in {CONNECT_SECONDS:.0f} s, from an API server or from the "
            "kubeconfig's credential plugin; try `kubectl version` with the same kubeconfig"
        ) from error


def describe_error(error: KubeError) -> str:
    """One sentence for a person: which side, what failed, and what to do next."""
    text = str(error)
    if isinstance(error, ApiServerCertificateError):
        return text
    if isinstance(error, Unauthorized):
        return (
            f"{error.side}: the API server does not accept the kubeconfig's credential (expired, "
            "revoked, or of another cluster); get a new one and join again"
        )
    if isinstance(error, Forbidden):
        return f"{text}; ask the cluster's administrator for that permission"
    if isinstance(error, Unreachable):
        return f"{text}; check that the server in the kubeconfig is up and can be reached from here"
    if isinstance(error, ApiError):
        return f"{text}; `kubectl get --raw /readyz` with the same kubeconfig shows its health"
    return text


def new_token_command(token: AccountToken) -> str:
    """The command that creates another token for the account, to run in its cluster."""
    return f"`kubectl create token {token.name} -n {token.namespace} --duration 24h`"


def _expired_token_message(credentials: Credentials) -> str:
    """What to do if the credential is a ServiceAccount's token that has expired; "" otherwise."""
    token = bearer_token.account_token(credentials.kubeconfig_token.own)
    end = credentials.token_expiry()
    if token is None or end is None or end > datetime.now(UTC):
        return ""
    side = credentials.side
    renews = ", and a bridge renews it only while it runs" if side == "remote" else ""
    return (
        f"{side}: the token of {token} expired at {format_time(end)}{renews}; put a new one "
        f"into the kubeconfig ({new_token_command(token)} in that cluster) and join again; an "
        "installed bridge gets it by `bridge upgrade NODE --kubeconfig FILE`"
    )


def git_version(response: Object) -> str:
    """The version in a response to ``GET /version``, such as v1.34.4; "" if it has no valid one."""
    version = text_or_empty(response.get("gitVersion"))
    return version if len(version) <= VERSION_LIMIT else ""


async def cluster_uid(client: KubeClient) -> str:
    """The UID of the namespace kube-system, which identifies a cluster. Raises KubeError."""
    path = NAMESPACES.path("kube-system")
    namespace: Object = await client.request("GET", path, timeout=permissions.REQUEST_SECONDS)
    return uid_of(namespace)
