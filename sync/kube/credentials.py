"""How to reach one API server and as whom.

`load` reads a kubeconfig as kubectl does (``KUBECONFIG``, ``~/.kube/config``, contexts, exec
plugins, OIDC, tokens, client certificates) and gives a `ClientConfig`. `ClientConfig.renew` reads
it again, so that rotated files and expired plugin tokens are taken up; concurrent callers share one
read. After a failed connection `ClientConfig.recheck_files` reads it again where its files have
changed, so that a rotated CA and a server that moved are followed. The context stays the one of the
first reading, and where address or CA changed, the first request asks whether this is still the
same cluster. `sync.kube.kubeconfig` does the reading. In a pod where there is none, the pod's
service account is taken (`sync.kube.in_cluster`), whose token `ClientConfig.reload_token` takes up
as it is renewed.

A plugin that is given up, or that nobody waits for any more, is ended
(`sync.kube.credential_plugins`).

Failures are `ClientConfigError` with one sentence that names the file and what to do. Credentials
are in no error and no repr.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sync.base.callbacks import Callbacks
from sync.kube import credential_plugins, http_proxy, in_cluster, kubeconfig, oidc, tls_context
from sync.kube.errors import ClientConfigError, Side
from sync.kube.kubeconfig_ref import KubeconfigRef as KubeconfigRef  # noqa: PLC0414  # re-exported  # noqa: PLC0414  # re-exported
from sync.kube.server_clock import ServerClock
from sync.kube.tls_session_cache import TlsSessionCache

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A credential that the server refused is read again at most this often, in seconds: an exec
#: plugin may start a browser or count against a quota.
RENEW_INTERVAL = 10.0
#: After a failed connection the files are looked at again at most this often, in seconds.
RECHECK_INTERVAL = 5.0
#: Seconds for a credential plugin or an OIDC issuer: all requests that were refused wait for it.
PLUGIN_SECONDS = 60.0

#: What OIDC refresh tokens of this process's kubeconfigs were renewed to.
_OIDC = oidc.RenewedTokens()


class ClientConfig:
    """Address, trust and credential of one API server. Read `ssl` and `authorization` for each
    request anew: `renew` replaces them."""

    def __init__(self, ref: KubeconfigRef, *, side: Side) -> None:
        self.ref = ref
        self.side: Side = side
        self.server = ""
        """``https://host:port[/prefix]``, no slash at the end."""
        self.context = ""
        """The name of the context in use."""
        self.namespace = ""
        """The namespace of that context; "" where it names none."""
        self.ssl: ssl.SSLContext | None = None
        """None for plain http."""
        self.tls_sessions = TlsSessionCache()
        """What upgraded connections go on with, so that each takes less."""
        self.server_clock = ServerClock()
        """The clock of the API server."""
        self.server_hostname: str | None = None
        """The name to verify the certificate by, where it is not the host (tls-server-name)."""
        self.proxy: str | None = None
        """The URL of the HTTP proxy: the kubeconfig's proxy-url, else the environment's."""
        self.client_certificate: bytes | None = None
        """The certificate that proves who we are, as PEM, where one does."""
        self.impersonation: list[tuple[str, str]] = []
        """The headers by which requests are made as somebody else (``as`` in a kubeconfig)."""
        self.generation = 0
        """Counts the readings of the credential; 0 before the first."""
        self.in_cluster = False
        """Whether this is the pod's own service account."""
        self.cluster_uid: str | None = None
        """The UID of the cluster's kube-system, where it has to stay the same."""
        self.unconfirmed = False
        """Whether the address or the CA changed, and nobody has asked yet which cluster answers."""
        self.confirming = asyncio.Lock()
        """Held by who asks."""
        self.renewed: Callbacks[[]] = Callbacks(f"{side}: credentials read again")
        """Called when another credential was read: what failed may work now."""
        self._looked = 0.0
        self._rechecked = -RECHECK_INTERVAL
        self._complaint = ""
        self._authorization: str | None = None
        self._authorities: bytes | None = None
        self._sources: dict[Path, str] = {}
        self._renewed = -RENEW_INTERVAL
        self._lock = asyncio.Lock()
        self._readings: set[asyncio.Future[Any]] = set()

    def __repr__(self) -> str:
        return f"<Access {self.side} {self.server} context={self.context!r}>"

    @property
    def host(self) -> str:
        """The API server's host name or address."""
        return urlsplit(self.server).hostname or ""

    @property
    def port(self) -> int:
        """The API server's port."""
        parts = urlsplit(self.server)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def authorization(self) -> dict[str, str]:
        """The header that proves who we are; empty with a client certificate."""
        return {"Authorization": self._authorization} if self._authorization else {}

    def headers(self) -> list[tuple[str, str]]:
        """The headers that every request needs: the credential, and whom it impersonates. Without
        the latter a request would have all permissions of the credential."""
        return [*self.authorization().items(), *self.impersonation]

    def reload_token(self) -> None:
        """Takes a pod's token up when it has been renewed in its file; else does nothing."""
        if not self.in_cluster or time.monotonic() - self._looked < in_cluster.LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        # The next look, or a refusal by the server, may find it.
        with contextlib.suppress(OSError):
            header = f"Bearer {in_cluster.token()}"
            if header != self._authorization:
                self._authorization = header
                self.generation += 1

    @property
    def is_verified(self) -> bool:
        """Whether the server has to prove that it is the one that is meant."""
        return self.ssl is not None and self.ssl.verify_mode is ssl.CERT_REQUIRED

    async def renew(self, seen: int) -> bool:
        """Reads the credential again, unless that was done in the last `RENEW_INTERVAL`.

        ``seen`` is the `generation` that the server refused. Returns whether the credential is
        another reading than that one, so that a retry may succeed.

        A reading that has begun goes on where who asked gives up: a plugin may take longer than any
        one request may, and would else be started over and over.
        """
        if not self.generation:
            return await self._renew(seen)
        return await asyncio.shield(self._begin(self._renew(seen)))

    def recheck_files(self) -> None:
        """Has the files looked at after a connection failed: where one has changed since it was
        read (a rotated CA, a server that moved), all is read again in the background, and `renewed`
        is called. At most every `RECHECK_INTERVAL`; without a change nothing is run or asked."""
        now = time.monotonic()
        if not self._sources or now - self._rechecked < RECHECK_INTERVAL:
            return
        self._rechecked = now
        if kubeconfig.changed(self._sources):
            self._begin(self._reload())

    def confirm_cluster(self, cluster_uid: str) -> None:
        """Takes the UID of the cluster that answers at the new address. Raises AccessError where it
        is another cluster: its objects would be taken for those of the one that was joined."""
        if self.cluster_uid is not None and cluster_uid != self.cluster_uid:
            self.recheck_files()
            raise self._error(
                f"it leads to another cluster now: kube-system has the UID {cluster_uid}, and had "
                f"{self.cluster_uid}; name the former cluster in it again, or restart the bridge "
                "to join the other one"
            )
        self.unconfirmed = False

    def _begin(self, reading: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(reading)
        self._readings.add(task)
        task.add_done_callback(self._read)
        return task

    def _read(self, reading: asyncio.Future[Any]) -> None:
        self._readings.discard(reading)
        if not reading.cancelled():
            reading.exception()  # Whoever still waits has it, too.

    async def _renew(self, seen: int) -> bool:
        async with self._lock:
            if self.generation != seen:
                return True
            if time.monotonic() - self._renewed < RENEW_INTERVAL:
                return False
            self._renewed = time.monotonic()
            await self._load_again()
            return True

    async def _reload(self) -> None:
        async with self._lock:
            if not kubeconfig.changed(self._sources):
                return  # It was read again meanwhile.
            try:
                await self._load_again()
            except ClientConfigError as error:
                # What was read last stays; the files may be half written.
                level = logging.DEBUG if str(error) == self._complaint else logging.WARNING
                self._complaint = str(error)
                log.log(level, "the changed credentials cannot be read: %s", error)

    async def _load_again(self) -> None:
        place, credential = self._place(), self._credential()
        await self._load()
        self._complaint = ""
        self.generation += 1
        if self.generation == 1:
            return
        if place != self._place():
            said = "%s: the address, the CA or the proxy has changed; the server is %s"
            log.info(said, self.side, self.server)
            self.unconfirmed = self.cluster_uid is not None
        if place != self._place() or credential != self._credential():
            self.renewed()

    def _place(self) -> tuple[object, ...]:
        """What decides which cluster answers."""
        trust = (self._authorities, self.server_hostname, self.is_verified)
        return self.server, *trust, self.proxy

    def _credential(self) -> tuple[object, ...]:
        """What decides whether it accepts us."""
        return self._authorization, self.client_certificate, self.impersonation

    async def _load(self) -> None:
        if self._is_in_cluster():
            self._take_account()
            return
        present = self._present_files()
        try:
            async with asyncio.timeout(PLUGIN_SECONDS), credential_plugins.kill_on_exit():
                # Once read the context stays: another current-context may be another cluster.
                name = self.ref.context or self.context or None
                settings = await kubeconfig.read(present, name, _OIDC)
        except (kubeconfig.KubeconfigError, oidc.OidcError) as problem:
            raise self._error(str(problem)) from None
        except TimeoutError:
            raise self._error(
                "its credential plugin or OIDC issuer gave no answer in "
                f"{PLUGIN_SECONDS:.0f} s; run `kubectl --kubeconfig {self.ref.files()} version`"
            ) from None
        except OSError as error:
            raise self._error(f"{error.strerror or 'cannot be read'}: {error.filename}") from error
        self._take(settings)

    def _is_in_cluster(self) -> bool:
        """kubectl's rule: the pod's own account, where no kubeconfig is named or there. What was
        read once stays: a kubeconfig that is missing for a moment is not the pod's account."""
        if self.generation:
            return self.in_cluster
        named = self.ref.path is not None or self.ref.context is not None
        return not named and in_cluster.available() and not self._found_files()

    def _take_account(self) -> None:
        self.in_cluster = True
        settings = kubeconfig.ResolvedContext(host=in_cluster.server(), context=in_cluster.CONTEXT)
        try:
            # Not among the sources: `look` follows it.
            token = in_cluster.token()
            settings.ca = settings.content(in_cluster.ca_file())
        except OSError as error:
            what = "CA" if error.filename == str(in_cluster.ca_file()) else "token"
            raise self._error(
                f"the pod's {what} cannot be read: {error.strerror}: {error.filename}"
            ) from error
        self._looked = time.monotonic()
        settings.authorization = f"Bearer {token}"
        settings.namespace = in_cluster.namespace()
        self._take(settings)

    def _found_files(self) -> list[Path]:
        files = [Path(p).expanduser() for p in self.ref.files().split(os.pathsep) if p]
        return [p for p in files if p.exists()]

    def _present_files(self) -> list[Path]:
        """kubectl's rule: of a list of files those that exist count, and one must."""
        present = self._found_files()
        if not present:
            option = "--kubeconfig" if self.side == "remote" else "--home-kubeconfig"
            raise self._error(f"no such file; name another with {option}")
        return present

    def _take(self, settings: kubeconfig.ResolvedContext) -> None:
        server = settings.host
        if not _is_http(server):
            raise self._error(f"its cluster's server is not an http(s) URL: {server}")
        authorization = settings.authorization or ""
        if not (authorization.isprintable() and authorization.isascii()):
            raise self._error("its token holds characters that cannot be sent, such as newlines")
        try:
            proxy = settings.proxy or http_proxy.from_environment(server)
            if proxy:
                http_proxy.check(proxy)
        except ValueError as error:
            raise self._error(str(error)) from None
        try:
            context = tls_context.client_context(settings) if server.startswith("https") else None
        except kubeconfig.KubeconfigError as problem:
            raise self._error(str(problem)) from None
        # From here on nothing raises: a reading counts as a whole.
        self.ssl, self.server, self.proxy = context, server.rstrip("/"), proxy
        self.context, self.namespace = settings.context, settings.namespace
        self.server_hostname = settings.tls_server_name
        self.client_certificate = settings.cert
        self.impersonation = settings.impersonation
        self._authorization = authorization or None
        self._sources = settings.sources
        self._authorities = settings.ca

    def _error(self, message: str) -> ClientConfigError:
        what = f"service account in {in_cluster.FOLDER}" if self.in_cluster else None
        return ClientConfigError(message, side=self.side, what=what or f"kubeconfig {self.ref}")


def _is_http(server: str) -> bool:
    try:
        parts = urlsplit(server)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


async def load(ref: KubeconfigRef, *, side: Side) -> ClientConfig:
    """Reads the kubeconfig. Raises AccessError; talks to no API server (plugins may)."""
    access = ClientConfig(ref, side=side)
    await access.renew(0)
    return access
