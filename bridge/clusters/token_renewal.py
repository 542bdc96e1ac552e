"""Renews the bridge's own ServiceAccount token in the remote before it expires.

Applies to a token that the kubeconfig itself contains and that expires; plugins, token files and
OIDC issuers renew theirs. The ServiceAccount requests its next token itself (TokenRequest), where
it may: with the audiences and the bound object of the kubeconfig's token, and with its lifetime, at
least `MIN_LIFETIME`. It does so when a part of the lifetime is left (`REMAINING`, at random, so
that replicas do not do it at once). `keep_renewed_token` keeps the token for the next start.

Failures never end a join: they are logged once each and retried until the token expires. Then the
remote rejects the credential, as one that was revoked, until the kubeconfig contains another.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from bridge.base.progress_lines import Caveat
from bridge.clusters.connection import Notify
from bridge.rbac import permissions
from sync.base.background_task import background_task
from sync.base.exception_summary import log_defects
from sync.kube import bearer_token
from sync.kube.api_errors import KubeError, Unreachable
from sync.kube.api_resources import SECRETS, SERVICE_ACCOUNTS
from sync.kube.bearer_token import AccountToken, RenewedToken
from sync.kube.client import KubeClient
from sync.kube.credentials import Credentials
from sync.kube.kubeconfig_ref import RENEWED_TOKEN_FILE
from translators.object_accessors import Object
from translators.timestamps import format_time, parse_time

log = logging.getLogger(__name__)

#: The shortest lifetime to request: that of a token of `kubectl create token`. It is also how long
#: a bridge may be stopped and still start again with the last token, but for `REMAINING`.
MIN_LIFETIME = timedelta(hours=1)
#: The part of the lifetime that is left when the token is renewed, at most and at least.
REMAINING = (0.5, 0.2)
#: Seconds between checks whether to renew: the event loop's timers ignore suspends, and the
#: kubeconfig may contain another token meanwhile. A check without a renewal makes no request.
CHECK_INTERVAL = 60.0
#: Time until the permission is reviewed again after it was denied.
DENIED_INTERVAL = timedelta(minutes=10)

Keep = Callable[[RenewedToken], Awaitable[None]]


def renewable_token(credentials: Credentials) -> AccountToken | None:
    """The kubeconfig's token, if it is one of a ServiceAccount that expires and that nothing else
    renews."""
    token = bearer_token.account_token(credentials.kubeconfig_token.own)
    return token if token is not None and token.expires is not None else None


async def may_renew(client: KubeClient, token: AccountToken) -> bool:
    """Whether the credential may create tokens of its own ServiceAccount. Raises KubeError."""
    required = permissions.for_own_token(token.namespace, token.name)
    return await permissions.are_granted(client, required)


class TokenRenewal:
    """Renews the token of one client. ``keep`` receives each new token; it raises OSError and
    KubeError."""

    def __init__(
        self,
        remote: KubeClient,
        *,
        keep: Keep,
        notify: Notify,
    ) -> None:
        self._remote = remote
        self._keep = keep
        self._notify = notify
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        self._remaining = self._rng.uniform(*REMAINING)
        self._not_before: datetime | None = None
        self._last_problem = ""

    async def run(self) -> None:
        """Renews the token whenever it is due, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            await self.renew_if_due()

    async def renew_if_due(self) -> None:
        """Renews the token if it is due."""
        with log_defects("the token of the remote"):
            token, now = renewable_token(self._remote.credentials), self._now()
            is_early = self._not_before is not None and now < self._not_before
            if token is None or is_early or not self._is_due(token, now):
                return
            self._not_before = None
            try:
                await self._renew(token)
            except (KubeError, TimeoutError) as error:
                reason = str(error) or "no answer in time"
                self._report(f"{token} cannot be renewed, and is retried: {reason}")

    async def announce(self) -> None:
        """Reports whether an expiring token is renewed. Raises KubeError."""
        credentials = self._remote.credentials
        token, end = renewable_token(credentials), credentials.token_expiry()
        if token is None or end is None:
            return
        text = f"remote: the token of {token} is valid until {format_time(end)}"
        if await may_renew(self._remote, token):
            self._notify(f"{text}, and the bridge renews it")
        else:
            self._notify(Caveat(f"{text}; {_how_to_allow()}"))

    def _now(self) -> datetime:
        """The time by the clock that the token's end is compared with."""
        return self._remote.server_clock.now() or datetime.now(UTC)

    def _is_due(self, token: AccountToken, now: datetime) -> bool:
        credentials = self._remote.credentials
        current, end = credentials.kubeconfig_token.renewed, credentials.token_expiry()
        if end is None:
            return False
        if current is None:
            lifetime = max(token.lifetime, MIN_LIFETIME)
        else:
            # The API server may have issued a shorter one.
            lifetime = current.expires - current.issued
        return end - now <= lifetime * self._remaining

    async def _renew(self, token: AccountToken) -> None:
        if not await may_renew(self._remote, token):
            self._not_before = self._now() + DENIED_INTERVAL
            self._report(f"{token} is not renewed: {_how_to_allow()}")
            return
        renewed = await self._request(token)
        self._remote.credentials.use_renewed_token(renewed)
        self._remaining = self._rng.uniform(*REMAINING)
        self._last_problem = ""
        until = format_time(renewed.expires)
        log.info("remote: the token of %s was renewed, and is valid until %s", token, until)
        try:
            await self._keep(renewed)
        except (KubeError, OSError) as error:
            reason = str(error) if isinstance(error, KubeError) else error.strerror
            self._report(
                f"{token} is kept in memory only ({reason}): a bridge that starts again after "
                "the kubeconfig's token has expired needs a new one"
            )

    async def _request(self, token: AccountToken) -> RenewedToken:
        """The next token. Raises KubeError."""
        origin = bearer_token.origin_of(self._remote.credentials.kubeconfig_token.own)
        spec: Object = {
            "expirationSeconds": round(max(token.lifetime, MIN_LIFETIME).total_seconds()),
            "audiences": list(token.audiences),
        }
        if token.bound_to is not None:
            spec["boundObjectRef"] = token.bound_to
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = SERVICE_ACCOUNTS.path(token.name, namespace=token.namespace, subresource="token")
        answer = await self._remote.request(
            "POST", path, body=body, timeout=permissions.REQUEST_SECONDS
        )
        try:
            status = answer["status"]
            text, expires = str(status["token"]), parse_time(str(status["expirationTimestamp"]))
        except (KeyError, TypeError, ValueError):
            text, expires = "", self._now()
        if not (text and text.isascii() and text.isprintable()):
            raise Unreachable("the response contains no token", side="remote", what=path)
        return RenewedToken(origin, text, self._now(), expires)

    def _report(self, problem: str) -> None:
        """Logs a problem, once while it lasts."""
        level = logging.DEBUG if problem == self._last_problem else logging.WARNING
        self._last_problem = problem
        log.log(level, "remote: the token of %s", problem)


def _how_to_allow() -> str:
    return (
        "the ServiceAccount may not create its own next token, so a new one is needed in the "
        "kubeconfig before that; `bridge rbac remote` prints what allows it"
    )


@asynccontextmanager
async def renewing_token(remote: KubeClient, *, keep: Keep, notify: Notify) -> AsyncIterator[None]:
    """Renews the token of ``remote`` while the block runs, and at its start if it is due."""
    renewal = TokenRenewal(remote, keep=keep, notify=notify)
    await renewal.renew_if_due()
    with contextlib.suppress(KubeError):
        await renewal.announce()
    async with background_task(renewal.run(), name="remote-token"):
        yield


async def keep_renewed_token(
    renewed: RenewedToken, home: KubeClient, secret: tuple[str, str] | None
) -> None:
    """Keeps the token in this Secret of home (namespace and name), if the credential may write it,
    else in the user's state directory. Raises KubeError and OSError."""
    if secret is not None:
        required = permissions.for_state_secret(*secret)
        if await permissions.are_granted(home, required):
            data = {RENEWED_TOKEN_FILE: base64.b64encode(renewed.encode()).decode()}
            namespace, name = secret
            await home.patch(SECRETS, name, {"data": data}, namespace=namespace, decode=False)
            return
    bearer_token.keep(renewed)
