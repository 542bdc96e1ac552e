"""Resolves the address, TLS trust and credential of one API server, and renews them.

`load` reads a kubeconfig as kubectl does (``KUBECONFIG``, ``~/.kube/config``, contexts, exec
plugins, OIDC, tokens, client certificates), or in a pod without a kubeconfig the pod's service
account (`sync.kube.in_cluster`), whose token `ClientConfig.reload_token` follows.

- `ClientConfig.renew` reads the credential again, for rotated files and expired plugin tokens;
  concurrent callers share one read.
- `ClientConfig.use_renewed_token` replaces an expiring token of the kubeconfig. Later reads find it
  again (`sync.kube.renewed_token`), until the kubeconfig contains another token.
- `ClientConfig.recheck_files` reads everything again after a failed connection if the files have
  changed. The context of the first read stays. If address or CA changed, the first request checks
  that the cluster is the same one.

Failures raise `ClientConfigError` with one sentence that names the file and a remedy. Neither
errors nor reprs contain credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Coroutine
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sync.base import clock
from sync.base.safe_callbacks import Callbacks
from sync.kube import (
    bearer_token,
    credential_plugins,
    http_proxy,
    in_cluster,
    kubeconfig,
    oidc,
    renewed_token,
    tls_context,
)
from sync.kube.api_errors import ClientConfigError, Side
from sync.kube.kubeconfig_fields import KubeconfigError
from sync.kube.kubeconfig_ref import KubeconfigRef as KubeconfigRef  # noqa: PLC0414  # re-exported
from sync.kube.name_lookup import NameLookup
from sync.kube.renewed_token import KubeconfigToken, RenewedToken

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between reads of a credential that the server rejects: a plugin may open a browser.
RENEW_INTERVAL = 10.0
#: Seconds between checks of the files after failed connections.
RECHECK_INTERVAL = 5.0
#: Timeout in seconds for a credential plugin or an OIDC issuer: all rejected requests wait for it.
PLUGIN_SECONDS = 60.0

_BEARER = "Bearer "

#: OIDC tokens that were renewed by this process.
OIDC_TOKENS = oidc.RenewedTokens()


#: Seconds for which a date is used before the next one is parsed.
CLOCK_UPDATE_INTERVAL = 10.0


class ServerClock:
    """The clock of an API server, from the ``Date`` header of its responses.

    Times that a server decides by (when a token expires) are compared with its own clock, since the
    bridge's may be wrong by hours. Between two responses the time advances by `clock.now`.
    """

    def __init__(self) -> None:
        self._date: float | None = None
        self._read_at = 0.0

    def update(self, date: str | None) -> None:
        """Sets the clock from the ``Date`` header of a response just received."""
        now = clock.now()
        if date is None or (self._date is not None and now - self._read_at < CLOCK_UPDATE_INTERVAL):
            return
        try:
            self._date = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        self._read_at = now

    def now(self) -> datetime | None:
        """The server's time now; None before the first response with a date."""
        if self._date is None:
            return None
        return datetime.fromtimestamp(self._date + clock.now() - self._read_at, UTC)


class ClientConfig:
    """Address, TLS trust and credential of one API server, as client-go's rest.Config. `renew`
    replaces the values, so callers read them again for each request."""

    def __init__(self, ref: KubeconfigRef, *, side: Side) -> None:
        self.ref = ref
        self.side: Side = side
        self.server = ""
        """``https://host:port[/prefix]`` without a trailing slash."""
        self.context = ""
        """The name of the kubeconfig context."""
        self.namespace = ""
        """The namespace of that context; "" if it names none."""
        self.ssl: ssl.SSLContext | None = None
        """None for plain http."""
        self.ssl_http2: ssl.SSLContext | None = None
        """As `ssl`, for connections that use HTTP/2."""
        self.server_clock = ServerClock()
        """The clock of the API server."""
        self.server_hostname: str | None = None
        """The name in the server's certificate if it is not the host (tls-server-name)."""
        self.proxy: str | None = None
        """The URL of the HTTP proxy: proxy-url of the kubeconfig, else from the environment."""
        self.client_certificate: bytes | None = None
        """The client certificate as PEM, if the credential is one."""
        self.renews_itself = False
        """Whether the credential is renewed without a person's help."""
        self.kubeconfig_token = KubeconfigToken()
        self.impersonation: list[tuple[str, str]] = []
        """``Impersonate-*`` headers (``as`` in a kubeconfig)."""
        self.generation = 0
        """How often the credential was read; 0 before the first time."""
        self.in_cluster = False
        """Whether the credential is the pod's service account."""
        self.identifying_namespace = "kube-system"
        """The namespace whose UID identifies the cluster."""
        self.cluster_uid: str | None = None
        """The UID of that namespace, once the cluster must stay the same."""
        self.unconfirmed = False
        """Whether address or CA changed and the cluster behind them was not checked yet."""
        self.confirming = asyncio.Lock()
        """Held while the cluster is checked."""
        self.renewed: Callbacks[[]] = Callbacks(f"{side}: credentials read again")
        """Called when the credential or address has changed: failed requests may succeed now."""
        self._reloaded_at = 0.0
        self._rechecked = -RECHECK_INTERVAL
        self._last_problem = ""
        self._authorization: str | None = None
        self._authorities: bytes | None = None
        self._sources: dict[Path, str] = {}
        self._renewed = -RENEW_INTERVAL
        self._lock = asyncio.Lock()
        self._reads: set[asyncio.Future[Any]] = set()

    def __repr__(self) -> str:
        return f"<ClientConfig {self.side} {self.server} context={self.context!r}>"

    @cached_property
    def name_lookup(self) -> NameLookup:
        """The addresses of the server and of the proxy."""
        return NameLookup()

    @property
    def host(self) -> str:
        return urlsplit(self.server).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.server)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def authorization(self) -> dict[str, str]:
        """The Authorization header; empty with a client certificate."""
        return {"Authorization": self._authorization} if self._authorization else {}

    def headers(self) -> list[tuple[str, str]]:
        """The headers of every request: credential and impersonation."""
        return [*self.authorization().items(), *self.impersonation]

    def reload_token(self) -> None:
        """Reads the token of the pod's service account again every `in_cluster.RELOAD_SECONDS`."""
        if not self.in_cluster or clock.now() - self._reloaded_at < in_cluster.RELOAD_SECONDS:
            return
        self._reloaded_at = clock.now()
        # The next reload, or a 401, may succeed.
        with contextlib.suppress(OSError):
            header = f"Bearer {in_cluster.token()}"
            if header != self._authorization:
                self._authorization = header
                self.generation += 1

    def token_expiry(self) -> datetime | None:
        """When the bearer token that is sent expires; None if it does not show that."""
        if self.kubeconfig_token.renewed is not None:
            return self.kubeconfig_token.renewed.expires
        header = self.authorization().get("Authorization", "")
        return bearer_token.expiry(header.removeprefix(_BEARER))

    def use_renewed_token(self, renewed: RenewedToken) -> None:
        """Sends this token from now on, unless the kubeconfig contains another one than that from
        which it descends."""
        if renewed.origin != renewed_token.origin_of(self.kubeconfig_token.own):
            return
        self.kubeconfig_token.use(self.kubeconfig_token.own, renewed)
        self._authorization = f"{_BEARER}{renewed.token}"
        self.generation += 1
        self.renewed()

    @property
    def is_verified(self) -> bool:
        """Whether the server's certificate is verified."""
        return self.ssl is not None and self.ssl.verify_mode is ssl.CERT_REQUIRED

    async def renew(self, seen: int) -> bool:
        """Reads the credential again, unless that happened within `RENEW_INTERVAL`.

        ``seen`` is the `generation` that the server rejected. Returns whether the credential was
        read again since then. Raises ClientConfigError. A read continues when its caller is
        cancelled: a plugin may take longer than a request, and would otherwise be started over and
        over.
        """
        if not self.generation:
            return await self._renew(seen)
        return await asyncio.shield(self._start_read(self._renew(seen)))

    def recheck_files(self) -> None:
        """Checks the files after a failed connection, at most every `RECHECK_INTERVAL`. If one has
        changed, everything is read again in the background, and `renewed` is called. Without a
        change no plugin runs."""
        now = clock.now()
        if not self._sources or now - self._rechecked < RECHECK_INTERVAL:
            return
        self._rechecked = now
        if kubeconfig.changed(self._sources):
            self._start_read(self._reload())

    @property
    def authorities(self) -> bytes | None:
        """The CA certificates (PEM) that verify the server; None for those of the system."""
        return self._authorities

    def confirm_cluster(self, cluster_uid: str) -> None:
        """Compares the cluster behind a new address or CA, by the UID of its identifying namespace,
        with the one that was joined. Raises ClientConfigError for another one."""
        if self.cluster_uid is not None and cluster_uid != self.cluster_uid:
            self.recheck_files()
            raise self._error(
                f"it leads to another cluster now: {self.identifying_namespace} has the UID "
                f"{cluster_uid}, and had {self.cluster_uid}; name the previous cluster in it "
                "again, or restart the bridge to join the other one"
            )
        self.unconfirmed = False

    def _start_read(self, reading: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(reading)
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)
        # Retrieves the exception, so that asyncio does not log it; waiters have it too.
        task.add_done_callback(lambda it: it.cancelled() or it.exception())
        return task

    async def _renew(self, seen: int) -> bool:
        async with self._lock:
            if self.generation != seen:
                return True
            if clock.now() - self._renewed < RENEW_INTERVAL:
                return False
            self._renewed = clock.now()
            self.kubeconfig_token.rejected = (self._authorization or "").removeprefix(_BEARER)
            await self._load_again()
            return True

    async def _reload(self) -> None:
        async with self._lock:
            if not kubeconfig.changed(self._sources):
                return  # read again meanwhile
            try:
                await self._load_again()
            except ClientConfigError as error:
                # The last credential stays: the files may be half written.
                level = logging.DEBUG if str(error) == self._last_problem else logging.WARNING
                self._last_problem = str(error)
                log.log(level, "cannot read the changed credentials: %s", error)

    async def _load_again(self) -> None:
        endpoint, credential = self._endpoint(), self._credential()
        await self._load()
        self._last_problem = ""
        self.generation += 1
        if self.generation == 1:
            return
        if endpoint != self._endpoint():
            message = "%s: the address, the CA or the proxy changed; the server is %s"
            log.info(message, self.side, self.server)
            self.unconfirmed = self.cluster_uid is not None
        if endpoint != self._endpoint() or credential != self._credential():
            self.renewed()

    def _endpoint(self) -> tuple[object, ...]:
        trust = (self._authorities, self.server_hostname, self.is_verified)
        return self.server, *trust, self.proxy

    def _credential(self) -> tuple[object, ...]:
        return self._authorization, self.client_certificate, self.impersonation

    async def _load(self) -> None:
        if self._is_in_cluster():
            self._use_service_account()
            return
        present = self._present_files()
        try:
            async with asyncio.timeout(PLUGIN_SECONDS), credential_plugins.kill_on_exit():
                # The first context stays: another current-context may be another cluster.
                name = self.ref.context or self.context or None
                settings = await kubeconfig.read(present, name, OIDC_TOKENS)
        except (KubeconfigError, oidc.OidcError) as problem:
            raise self._error(str(problem)) from None
        except TimeoutError:
            raise self._error(
                "its credential plugin or OIDC issuer did not answer in "
                f"{PLUGIN_SECONDS:.0f} s; run `kubectl --kubeconfig {self.ref.files()} version`"
            ) from None
        except OSError as error:
            raise self._error(f"{error.strerror or 'cannot be read'}: {error.filename}") from error
        folders = {file.absolute().parent for file in present}
        renewed = self.kubeconfig_token.find_renewed(settings.token, folders)
        if renewed is not None:
            settings.authorization = f"{_BEARER}{renewed.token}"
        self._apply(settings)
        self.kubeconfig_token.use(settings.token, renewed)

    def _is_in_cluster(self) -> bool:
        """Whether to use the pod's service account: as kubectl, if no kubeconfig is named or found.
        The first decision stays."""
        if self.generation:
            return self.in_cluster
        named = self.ref.path is not None or self.ref.context is not None
        return not named and in_cluster.available() and not self._found_files()

    def _use_service_account(self) -> None:
        self.in_cluster = True
        settings = kubeconfig.ResolvedContext(host=in_cluster.server(), context=in_cluster.CONTEXT)
        try:
            # Not among the sources: `reload_token` follows it.
            token = in_cluster.token()
            settings.ca = settings.content(in_cluster.ca_file())
        except OSError as error:
            part = "CA" if error.filename == str(in_cluster.ca_file()) else "token"
            raise self._error(
                f"the pod's {part} cannot be read: {error.strerror}: {error.filename}"
            ) from error
        self._reloaded_at = clock.now()
        settings.authorization = f"Bearer {token}"
        settings.renews_itself = True
        settings.namespace = in_cluster.namespace()
        self._apply(settings)

    def _found_files(self) -> list[Path]:
        return [path for path in self.ref.paths() if path.exists()]

    def _present_files(self) -> list[Path]:
        present = self._found_files()
        if not present:
            option = "--kubeconfig" if self.side == "remote" else "--home-kubeconfig"
            raise self._error(f"no such file; name another with {option}")
        return present

    def _apply(self, settings: kubeconfig.ResolvedContext) -> None:
        if (server := _http_url(settings.host)) is None:
            raise self._error("its cluster's server is not an http(s) URL without a user")
        authorization = settings.authorization or ""
        if not (authorization.isprintable() and authorization.isascii()):
            raise self._error("its token contains characters that cannot be sent, such as newlines")
        try:
            proxy = settings.proxy or http_proxy.from_environment(server)
            if proxy:
                http_proxy.check(proxy)
        except ValueError as error:
            raise self._error(str(error)) from None
        try:
            context = http2 = None
            if server.startswith("https:"):
                context = tls_context.client_context(settings)
                http2 = tls_context.client_context(settings, protocol="h2")
        except KubeconfigError as problem:
            raise self._error(str(problem)) from None
        # Nothing raises from here on: a read takes effect as a whole or not at all.
        self.ssl, self.ssl_http2 = context, http2
        self.server, self.proxy = server, proxy
        self.context, self.namespace = settings.context, settings.namespace
        self.server_hostname = settings.tls_server_name
        self.client_certificate = settings.cert
        self.impersonation = settings.impersonation
        self.renews_itself = settings.renews_itself
        self._authorization = authorization or None
        self._sources = settings.sources
        self._authorities = settings.ca

    def _error(self, message: str) -> ClientConfigError:
        what = f"service account in {in_cluster.FOLDER}" if self.in_cluster else None
        return ClientConfigError(message, side=self.side, what=what or f"kubeconfig {self.ref}")


def _http_url(server: str) -> str | None:
    """The URL without query and fragment, which kubectl drops; None if it is not usable."""
    try:
        parts = urlsplit(server)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    # `urlsplit` skips line breaks and white space at the ends.
    if not (usable and server.isprintable() and server == server.strip()) or "@" in parts.netloc:
        return None
    return parts._replace(query="", fragment="").geturl().rstrip("/")


async def load(ref: KubeconfigRef, *, side: Side) -> ClientConfig:
    """Reads the kubeconfig. Contacts no API server (plugins may). Raises ClientConfigError."""
    access = ClientConfig(ref, side=side)
    await access.renew(0)
    return access
