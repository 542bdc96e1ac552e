"""How to reach one API server and as whom.

`load` reads a kubeconfig as kubectl does (``KUBECONFIG``, ``~/.kube/config``, contexts, exec
plugins, OIDC, tokens, client certificates) and gives an `Access`. `Access.renew` reads it again,
so that rotated files and expired plugin tokens are taken up; concurrent callers share one read.
`sync.kube.reader` does the reading. In a pod where there is none, the pod's service account is
taken (`sync.kube.incluster`), whose token `Access.look` takes up as it is renewed.

A plugin that is given up, or that nobody waits for any more, is ended (`sync.kube.plugins`).

Failures are `AccessError` with one sentence that names the file and what to do. Credentials are
in no error and no repr.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import ssl
import stat
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import yaml

from sync.kube import incluster, plugins
from sync.kube.errors import AccessError, Side
from sync.kube.kubeconfig import KubeconfigRef as KubeconfigRef  # noqa: PLC0414  # re-exported
from sync.kube.reader import Settings, reader
from sync.kube.sessions import Sessions

#: A credential that the server refused is read again at most this often, in seconds: an exec
#: plugin may start a browser or count against a quota.
RENEW_INTERVAL = 10.0
#: Seconds for a credential plugin or an OIDC issuer: all requests that were refused wait for it.
PLUGIN_SECONDS = 60.0

_NO_ENTRY = re.compile(
    r"Expected object with name (?P<name>.*?) in .*/(?P<kind>context|cluster|user)s list$",
    re.DOTALL,
)


class Access:
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
        self.sessions = Sessions()
        """What upgraded connections go on with, so that each takes less."""
        self.server_hostname: str | None = None
        """The name to verify the certificate by, where it is not the host (tls-server-name)."""
        self.proxy: str | None = None
        self.client_certificate: str | None = None
        """The file with the certificate that proves who we are, where one does."""
        self.generation = 0
        """Counts the readings of the credential; 0 before the first."""
        self.in_cluster = False
        """Whether this is the pod's own service account."""
        self._looked = 0.0
        self._authorization: str | None = None
        self._renewed = -RENEW_INTERVAL
        self._lock = asyncio.Lock()
        self._readings: set[asyncio.Future[bool]] = set()

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

    def look(self) -> None:
        """Takes a pod's token up when it has been renewed in its file; else does nothing."""
        if not self.in_cluster or time.monotonic() - self._looked < incluster.LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        # The next look, or a refusal by the server, may find it.
        with contextlib.suppress(OSError):
            header = f"Bearer {incluster.token()}"
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
        reading = asyncio.ensure_future(self._renew(seen))
        self._readings.add(reading)
        reading.add_done_callback(self._read)
        return await asyncio.shield(reading)

    def _read(self, reading: asyncio.Future[bool]) -> None:
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
            await self._load()
            self.generation += 1
            return True

    async def _load(self) -> None:
        if self._is_in_cluster():
            self._take_account()
            return
        present = self._present_files()
        kubernetes = reader()
        settings = Settings()
        plugin_errors = _PluginErrors()
        log = logging.getLogger("kubernetes.aio.config.kube_config")
        log.addHandler(plugin_errors)
        log.propagate = False
        try:
            async with asyncio.timeout(PLUGIN_SECONDS), plugins.ended():
                loader = await kubernetes.load_kube_config(
                    config_file=self.ref.files(),
                    context=self.ref.context or _current_context(present),
                    client_configuration=settings,
                    persist_config=False,
                )
        # NB: neither these errors' own text nor they as a cause: they quote the file with its keys.
        except kubernetes.ConfigException as error:
            raise self._error(_config_words(str(error))) from None
        except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
            raise self._error(
                "it is not a kubeconfig, or its context has no user; see `kubectl config view`"
            ) from None
        except aiohttp.ClientError:
            raise self._error("its OIDC issuer did not renew the token; log in again") from None
        except TimeoutError:
            raise self._error(
                "its credential plugin or OIDC issuer gave no answer in "
                f"{PLUGIN_SECONDS:.0f} s; run `kubectl --kubeconfig {self.ref.files()} version`"
            ) from None
        except OSError as error:
            # What has no name is a file that the reader makes: certificates that stand in the
            # kubeconfig itself go through one, for OpenSSL.
            where = error.filename or "a temporary file; TMPDIR says where these are made"
            raise self._error(f"{error.strerror or 'cannot be read'}: {where}") from error
        finally:
            log.removeHandler(plugin_errors)
        if plugin_errors.seen:
            raise self._error(
                "the credential plugin (users[].user.exec) failed; run `kubectl "
                f"--kubeconfig {self.ref.files()} version` to see why"
            )
        self._take(settings)
        self.context = str(loader.current_context["name"])
        self.namespace = str((loader.current_context["context"] or {}).get("namespace") or "")

    def _is_in_cluster(self) -> bool:
        """kubectl's rule: the pod's own account, where no kubeconfig is named or there."""
        named = self.ref.path is not None or self.ref.context is not None
        return not named and incluster.available() and not self._found_files()

    def _take_account(self) -> None:
        self.context, self.in_cluster = incluster.CONTEXT, True
        try:
            token = incluster.token()
        except OSError as error:
            raise self._error(
                f"the pod's token cannot be read: {error.strerror}: {error.filename}"
            ) from error
        self._looked = time.monotonic()
        self.namespace = incluster.namespace()
        settings = Settings(host=incluster.server(), ssl_ca_cert=str(incluster.ca_file()))
        settings.api_key["BearerToken"] = f"Bearer {token}"
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
        for path in present:
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "it is not a text file"
                raise self._error(f"it cannot be read: {why}") from error
            if stat.S_ISREG(path.stat().st_mode) and not text.strip():
                raise self._error("the file is empty")
        return present

    def _take(self, settings: Settings) -> None:
        server = settings.host
        if not _is_http(server):
            raise self._error(f"its cluster's server is not an http(s) URL: {server}")
        self.server = server.rstrip("/")
        self.server_hostname = settings.tls_server_name
        self.proxy = settings.proxy
        self.client_certificate = settings.cert_file
        # A token file ends with a newline, which is no part of the token.
        authorization = (settings.api_key.get("BearerToken") or "").strip()
        if not authorization.isprintable():
            raise self._error("its token holds characters that cannot be sent, such as newlines")
        self._authorization = authorization or None
        self.ssl = self._ssl_context(settings) if server.startswith("https") else None

    def _ssl_context(self, settings: Settings) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
            # OpenSSL's own settings on a machine can allow older ones.
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if not settings.verify_ssl:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if settings.cert_file:
                # The password is for OpenSSL, which else asks the terminal for that of the key.
                context.load_cert_chain(settings.cert_file, keyfile=settings.key_file, password="")
        except (OSError, ValueError) as error:
            raise self._error(
                "its certificate-authority, client-certificate or client-key is not valid PEM, "
                "or they do not belong together"
            ) from error
        # Upgrades (exec, attach, port-forward) exist in HTTP/1.1 only, and aiohttp speaks no other.
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _error(self, message: str) -> AccessError:
        what = f"service account in {incluster.FOLDER}" if self.in_cluster else None
        return AccessError(message, side=self.side, what=what or f"kubeconfig {self.ref}")


def _current_context(files: list[Path]) -> str | None:
    """Of a list of kubeconfigs the first one that has a current context decides, as in kubectl.

    `kubernetes` lets the last one decide; None leaves it what is to be said of it.
    """
    for file in files:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
        if config.get("current-context"):
            return str(config["current-context"])
    return None


class _PluginErrors(logging.Handler):
    """`kubernetes` logs a failing exec plugin and goes on without a credential: noticed here.

    The record itself is dropped: it can quote the plugin's output. Only what the task that made
    this logs is noticed: the other side's kubeconfig may be read at the same time.
    """

    def __init__(self) -> None:
        super().__init__(level=logging.ERROR)
        self.seen = False
        self._task = asyncio.current_task()

    def emit(self, _: logging.LogRecord) -> None:
        if asyncio.current_task() is self._task:
            self.seen = True


def _is_http(server: str) -> bool:
    try:
        parts = urlsplit(server)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def _config_words(message: str) -> str:
    """What a ConfigException means. Its own text names an entry by all that is in it."""
    if found := _NO_ENTRY.search(message):
        name, kind = found["name"], found["kind"]
        if kind == "context" and not name:
            return "no current-context is set; see `kubectl config use-context`"
        return f"it has no {kind} named {name!r}; see `kubectl config view`"
    if found := re.search(r"Expected key (?P<key>[\w-]+) in ", message):
        return f"the field {found['key']} is missing; see `kubectl config view`"
    if message.startswith("File does not exists: "):
        return f"no such file: {message.partition(': ')[2]}"
    if message.startswith("oidc: "):
        return f"{message}; log in again"
    return "it is incomplete; see `kubectl config view`"


async def load(ref: KubeconfigRef, *, side: Side) -> Access:
    """Reads the kubeconfig. Raises AccessError; talks to no API server (plugins may)."""
    access = Access(ref, side=side)
    await access.renew(0)
    return access
