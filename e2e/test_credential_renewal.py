"""After each renewal of its credential, a client sends new requests, watches and execs with the new
one, as the API server's audit log shows."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from e2e.api_server_users import Users, serving
from e2e.clusters.cluster import Cluster
from e2e.renewed_credentials import (
    ACCOUNT,
    CREDENTIAL_ID,
    KINDS,
    Credential,
    OidcTokens,
    PluginCertificate,
    PodAccount,
)
from e2e.second_api_server import native_control
from sync.kube import in_cluster
from sync.kube.api_errors import ApiError
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.kube.credentials import RENEW_INTERVAL, load
from sync.kube.http_upgrade import open_upgrade

RENEWALS = 3
#: The audit log's verb and resource of each operation in `_use`.
OPERATIONS = (
    *("get pods", "watch pods", "watch configmaps"),
    *("create pods/exec", "get pods/attach"),
)
_UPGRADE = (("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4.channel.k8s.io"))
_WEBSOCKET = "v5.channel.k8s.io"


@dataclass(frozen=True, slots=True)
class Generation:
    """The time between two renewals of a credential."""

    name: str
    """The name of the object of all its operations."""
    identity: str
    """The user name or the credential ID of the credential."""
    rejected: bool
    """Whether each operation first meets a 401 for the previous credential."""


@dataclass(frozen=True, slots=True)
class Event:
    """An answer in the audit log."""

    code: int
    identities: frozenset[str]
    """The user name and the credential ID."""


#: The answers in the audit log by object name and operation.
Events = Mapping[tuple[str, str], Sequence[Event]]


@dataclass(frozen=True, slots=True)
class Renewals:
    """The generations of one credential, and their events."""

    credential: Credential
    generations: Sequence[Generation]
    events: Events


#: The renewals of each kind of credential, or what they failed with.
Outcomes = Mapping[type[Credential], Renewals | BaseException]


@pytest.fixture(scope="module")
def renewals(clusters: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """All kinds of credential, renewed at the same time."""
    remote = clusters["remote"]
    native_control(remote)
    namespace = f"renewal-{uuid.uuid4().hex[:6]}"
    try:
        _prepare(remote, namespace)
        return asyncio.run(_collect(remote, namespace, tmp_path_factory.mktemp("renewals")))
    finally:
        remote.kubectl("delete", "namespace", namespace, "--wait=false")


def _prepare(cluster: Cluster, namespace: str) -> None:
    """Grants every authenticated user all permissions in a namespace."""
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("create", "serviceaccount", ACCOUNT, "-n", namespace)
    grant = ("--clusterrole=cluster-admin", "--group=system:authenticated")
    cluster.kubectl("create", "rolebinding", "all", *grant, "-n", namespace)


async def _collect(cluster: Cluster, namespace: str, folder: Path) -> Outcomes:
    async with serving(cluster, folder) as users:
        credentials = [
            kind(users, cluster, namespace, folder / str(number))
            for number, kind in enumerate(KINDS)
        ]
        pod = next(found for found in credentials if isinstance(found, PodAccount))
        with (
            mock.patch.object(in_cluster, "FOLDER", pod.folder),
            mock.patch.dict(os.environ, pod.environment()),
        ):
            collected = await asyncio.gather(*map(_renew, credentials), return_exceptions=True)
    events = _events(users, namespace)
    return {
        kind: found if isinstance(found, BaseException) else Renewals(credential, found, events)
        for kind, credential, found in zip(KINDS, credentials, collected, strict=True)
    }


async def _renew(credential: Credential) -> Sequence[Generation]:
    """Uses the credential with one client, before and after each renewal. Watches stay open."""
    await credential.issue()
    config = await load(credential.ref, side="remote")
    generations, rejected = [], False
    loop = asyncio.get_running_loop()
    async with KubeClient(config) as client, AsyncExitStack() as watches:
        for number in range(RENEWALS + 1):
            if number:
                # The client reads a rejected credential again at the earliest then.
                next_read = loop.time() + RENEW_INTERVAL
                rejected = await credential.replace(client, number)
                await asyncio.sleep(next_read - loop.time())
            await credential.adopt(client)
            name = f"{credential.name}-{number}"
            await _use(client, watches, credential.namespace, name)
            generations.append(Generation(name, credential.issued.identity, rejected))
    return generations


async def _use(client: KubeClient, watches: AsyncExitStack, namespace: str, name: str) -> None:
    """Sends all operations at the same time, so that each meets a rejected credential. The objects
    do not exist."""
    path = f"/api/v1/namespaces/{namespace}"
    query = {"watch": "1", "fieldSelector": f"metadata.name={name}"}

    async def request() -> None:
        assert await client.find(PODS, name, namespace=namespace) is None

    async def exec_command() -> None:
        command, what = (("command", "true"), ("stdout", "1")), f"{path}/pods/{name}/exec"
        response = await open_upgrade(client, "POST", what, command, _UPGRADE)
        response.close()
        assert response.status == 404, response

    async def attach() -> None:
        with pytest.raises(ApiError, match="answered 404"):
            async with client.websocket(
                f"{path}/pods/{name}/attach", query={}, protocol=_WEBSOCKET
            ):
                pass

    async with asyncio.TaskGroup() as group:
        for operation in (
            request(),
            watches.enter_async_context(client.stream(f"{path}/pods", query=query)),
            watches.enter_async_context(client.shared_stream(f"{path}/configmaps", query=query)),
            exec_command(),
            attach(),
        ):
            group.create_task(operation)


def _events(users: Users, namespace: str) -> Events:
    found = defaultdict(list)
    for line in users.audit_log.read_text().splitlines():
        event = json.loads(line)
        what = event.get("objectRef", {})
        if what.get("namespace") == namespace and event["userAgent"].startswith("cluster-bridge"):
            resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
            operation = f"{event['verb']} {resource}"
            user = event["user"]
            identities = [user.get("username"), *user.get("extra", {}).get(CREDENTIAL_ID, ())]
            answer = Event(event["responseStatus"]["code"], frozenset(filter(None, identities)))
            found[what.get("name", ""), operation].append(answer)
    return found


def _problems(renewals: Renewals) -> Iterator[str]:
    """The differences between the audit log and the credentials that were issued."""
    identities = [generation.identity for generation in renewals.generations]
    if len(set(identities)) != RENEWALS + 1:
        yield f"not a new credential after each renewal: {identities}"
    for generation in renewals.generations:
        for operation in OPERATIONS:
            events = renewals.events.get((generation.name, operation), ())
            accepted = [event for event in events if event.code != 401]
            if generation.rejected and accepted == events:
                yield f"{generation.name}: {operation} not with the previous credential first"
            if not accepted:
                yield f"{generation.name}: no answer to {operation}"
            if wrong := [
                event for event in accepted if generation.identity not in event.identities
            ]:
                yield f"{generation.name}: {operation} not as {generation.identity}: {wrong}"


def _renewals_of(renewals: Outcomes, kind: type[Credential]) -> Renewals:
    found = renewals[kind]
    if isinstance(found, BaseException):
        raise found
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_new_operations_use_the_renewed_credential(
    renewals: Outcomes, kind: type[Credential]
) -> None:
    problems = list(_problems(_renewals_of(renewals, kind)))
    assert not problems, "\n".join(problems)


def test_plugin_runs_once_for_each_certificate(
    renewals: Outcomes,
) -> None:
    """Operations that are rejected at the same time share one run."""
    plugin = _renewals_of(renewals, PluginCertificate).credential
    assert isinstance(plugin, PluginCertificate)
    assert plugin.runs() == RENEWALS + 1


def test_kubeconfig_has_the_last_refresh_token(
    renewals: Outcomes,
) -> None:
    oidc = _renewals_of(renewals, OidcTokens).credential
    assert isinstance(oidc, OidcTokens)
    assert oidc.written_refresh_token() == oidc.login.refresh_token
    assert oidc.users.issuer.rejected_refreshes == 0, "a refresh token was presented again"
