"""The credentials of API servers, which renew themselves.

A client is made of `Credentials`. They have two values, an `Endpoint` and a `Credential`, which are
replaced together: one read of a kubeconfig yields both, and no request must send the credential of
one read to the address of another. `load` returns those of a kubeconfig as kubectl finds it
(``KUBECONFIG``, ``~/.kube/config``, contexts), or in a pod without a kubeconfig those of the pod's
service account. `CertificateCredentials` add the virtual node's certificate to the endpoint of
others.

- `Credentials.renew` reads a rejected credential again, for rotated files and expired plugin
  tokens; concurrent callers share one read.
- `Credentials.recheck_files` reads everything again after a failed connection if the files have
  changed. The context of the first read stays.
- `Credentials.use_renewed_token` replaces an expiring token of the kubeconfig. Later reads find it
  again (`sync.kube.bearer_token`), until the kubeconfig contains another token.

A read that fails changes nothing. Failures raise `ClientConfigError` with one sentence that names
the file and a remedy. Neither errors nor reprs contain credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from sync.base import clock
from sync.base.safe_callbacks import Callbacks
from sync.kube import (
    bearer_token,
    credential_plugins,
    in_cluster,
    kubeconfig,
    kubeconfig_loader,
    oidc,
)
from sync.kube.api_errors import ClientConfigError, Side
from sync.kube.bearer_token import KubeconfigToken, RenewedToken
from sync.kube.endpoint import Credential, Endpoint, client_context, usable_proxy, usable_server
from sync.kube.kubeconfig import KubeconfigError
from sync.kube.kubeconfig_ref import KubeconfigRef

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between reads of a credential that the server rejects: a plugin may open a browser.
RENEW_INTERVAL = 10.0
#: Seconds between checks of the files after failed connections.
RECHECK_INTERVAL = 5.0
#: Timeout in seconds for a credential plugin or an OIDC issuer: all rejected requests wait for it.
PLUGIN_SECONDS = 60.0

#: OIDC tokens that were renewed by this process.
OIDC_TOKENS = oidc.RenewedTokens()


class Credentials:
    """The endpoint and the credential of one API server. Callers read them for each request."""

    def __init__(self, ref: KubeconfigRef, *, side: Side) -> None:
        self.ref = ref
        self.side: Side = side
        self.endpoint = Endpoint("")
        """Empty before the first read."""
        self.credential = Credential()
        self.tls: ssl.SSLContext | None = None
        """The context of both; None for plain http."""
        self.tls_http2: ssl.SSLContext | None = None
        """As `tls`, for connections that use HTTP/2."""
        self.context = ""
        """The name of the kubeconfig context."""
        self.namespace = ""
        """The namespace of that context; "" if it names none."""
        self.renews_itself = False
        """Whether the credential is renewed without a person's help."""
        self.kubeconfig_token = KubeconfigToken()
        self.generation = 0
        """How often endpoint or credential were read; 0 before the first time."""
        self.in_cluster = False
        """Whether the credential is the pod's service account."""
        self.renewed: Callbacks[[]] = Callbacks(f"{side}: credentials read again")
        """Called when endpoint or credential have changed: failed requests may succeed now."""

    def __repr__(self) -> str:
        server, context = self.endpoint.server, self.context
        return f"<{type(self).__name__} {self.side} {server} context={context!r}>"

    async def renew(self, seen: int) -> bool:
        """Whether there are other credentials than those of the generation ``seen``, which the
        server rejected; reads them again if it may help. Raises ClientConfigError."""
        return self.generation != seen

    def recheck_files(self) -> None:
        """Checks the files after a failed connection; reads them in the background if one has
        changed."""

    def reload_token(self) -> None:
        """Reads a token that another program renews in its file, if it is time to."""

    def token_expiry(self) -> datetime | None:
        """When the bearer token that is sent expires; None if it does not show that."""
        if self.kubeconfig_token.renewed is not None:
            return self.kubeconfig_token.renewed.expires
        return bearer_token.expiry(self.credential.bearer_token)

    def use_renewed_token(self, renewed: RenewedToken) -> None:
        """Sends this token from now on, unless the kubeconfig contains another one than that from
        which it descends."""
        if renewed.origin != bearer_token.origin_of(self.kubeconfig_token.own):
            return
        self.kubeconfig_token.use(self.kubeconfig_token.own, renewed)
        self.credential = _with_token(self.credential, renewed.token)
        self.generation += 1
        self.renewed()

    def error(self, message: str) -> ClientConfigError:
        """The error for a problem with these credentials."""
        what = f"service account in {in_cluster.FOLDER}" if self.in_cluster else None
        return ClientConfigError(message, side=self.side, what=what or f"kubeconfig {self.ref}")

    def _use(self, endpoint: Endpoint, credential: Credential) -> None:
        """Replaces both. Raises ClientConfigError, and changes nothing then."""
        contexts: list[ssl.SSLContext | None] = [None, None]
        if endpoint.uses_tls:
            try:
                contexts = [
                    client_context(endpoint, credential, protocol=protocol)
                    for protocol in ("http/1.1", "h2")
                ]
            except KubeconfigError as problem:
                raise self.error(str(problem)) from None
        previous = self.endpoint, self.credential
        self.endpoint, self.credential = endpoint, credential
        self.tls, self.tls_http2 = contexts
        self.generation += 1
        if self.generation > 1 and previous != (endpoint, credential):
            self.renewed()


class CertificateCredentials(Credentials):
    """A client certificate and its key (PEM) with the endpoint of ``account``.

    The bridge has two identities in the home cluster: its own account, and the virtual node, whose
    certificate that cluster signed. Impersonation is the account's only. Raises ClientConfigError
    if certificate and key cannot be used.
    """

    def __init__(self, account: Credentials, certificate: bytes, key: bytes) -> None:
        super().__init__(account.ref, side=account.side)
        self._account = account
        self.in_cluster = account.in_cluster
        self.context, self.namespace = account.context, account.namespace
        self.renews_itself = True
        self.replace_certificate(certificate, key)
        account.renewed.add(self._follow)

    def replace_certificate(self, certificate: bytes, key: bytes) -> None:
        """Uses this certificate from now on; open connections continue with the previous one.
        Raises ClientConfigError."""
        self._use(self._account.endpoint, Credential(certificate=certificate, key=key))

    def recheck_files(self) -> None:
        self._account.recheck_files()

    def _follow(self) -> None:
        if self._account.endpoint != self.endpoint:
            self._use(self._account.endpoint, self.credential)


class _ReadCredentials(Credentials, ABC):
    """Credentials that are read from files."""

    def __init__(self, ref: KubeconfigRef, *, side: Side) -> None:
        super().__init__(ref, side=side)
        self._sources = kubeconfig.Sources()
        self._renewed_at = -RENEW_INTERVAL
        self._rechecked_at = -RECHECK_INTERVAL
        self._last_problem = ""
        self._lock = asyncio.Lock()
        self._reads: set[asyncio.Future[Any]] = set()

    @abstractmethod
    async def _read(self) -> None:
        """Reads and uses everything. Raises ClientConfigError."""

    async def renew(self, seen: int) -> bool:
        """Reads the credential again, unless that happened within `RENEW_INTERVAL`.

        A read continues when its caller is cancelled: a plugin may take longer than a request, and
        would otherwise be started over and over.
        """
        if not self.generation:
            return await self._renew(seen)
        return await asyncio.shield(self._start_read(self._renew(seen)))

    def recheck_files(self) -> None:
        """Checks the files at most every `RECHECK_INTERVAL`. Without a change no plugin runs."""
        now = clock.now()
        if now - self._rechecked_at < RECHECK_INTERVAL:
            return
        self._rechecked_at = now
        if self._sources.have_changed():
            self._start_read(self._reload())

    def _start_read(self, reading: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(reading)
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)
        # Retrieves the exception, so that asyncio does not log it; waiters have it too.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _renew(self, seen: int) -> bool:
        async with self._lock:
            if self.generation != seen:
                return True
            if clock.now() - self._renewed_at < RENEW_INTERVAL:
                return False
            self._renewed_at = clock.now()
            self.kubeconfig_token.rejected = self.credential.bearer_token
            await self._read_again()
            return True

    async def _reload(self) -> None:
        async with self._lock:
            if not self._sources.have_changed():
                return  # read again meanwhile
            try:
                await self._read_again()
            except ClientConfigError as error:
                # The last credential stays: the files may be half written.
                level = logging.DEBUG if str(error) == self._last_problem else logging.WARNING
                self._last_problem = str(error)
                log.log(level, "cannot read the changed credentials: %s", error)

    async def _read_again(self) -> None:
        endpoint = self.endpoint
        await self._read()
        self._last_problem = ""
        if self.generation > 1 and endpoint != self.endpoint:
            message = "%s: the address, the CA or the proxy changed; the server is %s"
            log.info(message, self.side, self.endpoint.server)


class KubeconfigCredentials(_ReadCredentials):
    """The credentials of a kubeconfig's context."""

    async def _read(self) -> None:
        if not (present := self.ref.existing()):
            option = "--kubeconfig" if self.side == "remote" else "--home-kubeconfig"
            raise self.error(f"no such file; name another with {option}")
        sources = kubeconfig.Sources()
        try:
            async with asyncio.timeout(PLUGIN_SECONDS), credential_plugins.kill_on_exit():
                # The first context stays: another current-context may be another cluster.
                name = self.ref.context or self.context or None
                selection = kubeconfig.select(kubeconfig.read_files(sources, present), name)
                loaded = await kubeconfig_loader.load(selection, sources, OIDC_TOKENS)
            credential, files = loaded.credential, self.ref.renewed_token_files()
            renewed = self.kubeconfig_token.find_renewed(loaded.own_token, files)
            if renewed is not None:
                credential = _with_token(credential, renewed.token)
        except (KubeconfigError, oidc.OidcError) as problem:
            raise self.error(str(problem)) from None
        except TimeoutError:
            raise self.error(
                "its credential plugin or OIDC issuer did not answer in "
                f"{PLUGIN_SECONDS:.0f} s; run `kubectl --kubeconfig {self.ref.files()} version`"
            ) from None
        except OSError as error:
            raise self.error(f"{error.strerror or 'cannot be read'}: {error.filename}") from error
        self._use(loaded.endpoint, credential)
        self._sources = sources
        self.context, self.namespace = loaded.context, loaded.namespace
        self.renews_itself = loaded.renews_itself
        self.kubeconfig_token.use(loaded.own_token, renewed)


class ServiceAccountCredentials(_ReadCredentials):
    """The credentials of the pod's service account, whose token the kubelet renews."""

    def __init__(self, ref: KubeconfigRef, *, side: Side) -> None:
        super().__init__(ref, side=side)
        self.in_cluster = self.renews_itself = True
        self.context = in_cluster.CONTEXT
        self._reloaded_at = 0.0

    def reload_token(self) -> None:
        """Reads the token again every `in_cluster.RELOAD_SECONDS`."""
        if clock.now() - self._reloaded_at < in_cluster.RELOAD_SECONDS:
            return
        self._reloaded_at = clock.now()
        # The next reload, or a 401, may succeed.
        with contextlib.suppress(OSError, KubeconfigError):
            token = in_cluster.token()
            if token != self.credential.bearer_token:
                self.credential = _with_token(self.credential, token)
                self.generation += 1

    async def _read(self) -> None:
        sources = kubeconfig.Sources()
        try:
            # Not among the sources: `reload_token` follows it.
            token = in_cluster.token()
            authorities = sources.read(in_cluster.ca_file())
        except OSError as error:
            part = "CA" if error.filename == str(in_cluster.ca_file()) else "token"
            raise self.error(
                f"the pod's {part} cannot be read: {error.strerror}: {error.filename}"
            ) from error
        self._reloaded_at = clock.now()
        try:
            server = usable_server(in_cluster.server())
            endpoint = Endpoint(server, authorities=authorities, proxy=usable_proxy(server))
            credential = _with_token(Credential(), token)
        except KubeconfigError as problem:
            raise self.error(str(problem)) from None
        self._use(endpoint, credential)
        self._sources = sources
        self.namespace = in_cluster.namespace()


def _with_token(credential: Credential, token: str) -> Credential:
    return replace(credential, authorization=f"Bearer {token}")


async def load(ref: KubeconfigRef, *, side: Side) -> Credentials:
    """Reads the kubeconfig, or in a pod, if none is named or found, its service account, as
    kubectl. Contacts no API server (plugins may). Raises ClientConfigError."""
    is_named = ref.path is not None or ref.context is not None
    kind: type[_ReadCredentials] = KubeconfigCredentials
    if not is_named and in_cluster.available() and not ref.existing():
        kind = ServiceAccountCredentials
    credentials = kind(ref, side=side)
    await credentials.renew(0)
    return credentials
