"""Where an API server is, and what authenticates a client there, as values.

`Endpoint` is the cluster of a kubeconfig's context, `Credential` its user, of which an exec plugin
or an OIDC issuer may have returned a part. Neither changes: what renews them replaces them
(`sync.kube.credentials`). `client_context` makes the TLS context of both.

Without a ``proxy-url`` the environment selects the proxy, as Go's x/net/http/httpproxy:
``HTTPS_PROXY`` for https servers and ``HTTP_PROXY`` for others. ``NO_PROXY`` lists the servers that
are reached directly: hosts, domains (``example.com`` with all subdomains, ``.example.com`` without
the domain itself), addresses, ranges (``10.0.0.0/8``), or ``*``. An entry other than a range may
have a port. Lower-case names work too. ``localhost`` and loopback addresses never use a proxy of
the environment.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sync.base.tls_certificate import load_certificate
from sync.kube.kubeconfig import KubeconfigError

_PROXY_SCHEMES = ("http", "https")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an API server is, and how its certificate is verified. Raises KubeconfigError for a
    name that no host can have."""

    server: str
    """``http(s)://host:port[/prefix]`` without a trailing slash (`usable_server`)."""
    authorities: bytes | None = field(default=None, repr=False)
    """The CA certificates (PEM) that verify the server; None for those of the system."""
    skips_verification: bool = False
    """Whether any certificate of the server is accepted."""
    tls_server_name: str | None = None
    """The name in the server's certificate if it is not the host."""
    proxy: str | None = field(default=None, repr=False)
    """The URL of the HTTP proxy (`usable_proxy`), which may contain a password."""

    def __post_init__(self) -> None:
        proxy = urlsplit(self.proxy or "").hostname or ""
        names = {
            "server": self.host,
            "tls-server-name": self.tls_server_name or "",
            "proxy (proxy-url, HTTPS_PROXY or HTTP_PROXY)": proxy,
        }
        for field_name, name in names.items():
            try:
                name.encode("idna")
            except UnicodeError:  # an empty label, or one that is too long
                message = f"its cluster's {field_name} contains {name!r}, which is no host name"
                raise KubeconfigError(message) from None

    @property
    def host(self) -> str:
        return urlsplit(self.server).hostname or ""

    @property
    def port(self) -> int:
        return _port(self.server)

    @property
    def uses_tls(self) -> bool:
        return self.server.startswith("https:")


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """A header, a certificate and an impersonated user. No repr: nearly all of it is secret.

    Raises KubeconfigError for a header that cannot be sent.
    """

    authorization: str = ""
    """The value of the Authorization header; "" without one."""
    certificate: bytes = b""
    """The client certificate (PEM); b"" without one."""
    key: bytes = b""
    """Its private key (PEM)."""
    impersonation: tuple[tuple[str, str], ...] = ()
    """``Impersonate-*`` headers; names may repeat."""

    def __post_init__(self) -> None:
        if not (self.authorization.isprintable() and self.authorization.isascii()):
            raise KubeconfigError(
                "its token contains characters that cannot be sent, such as newlines"
            )

    @property
    def bearer_token(self) -> str:
        """The token in the header; "" if it has none."""
        scheme, _, token = self.authorization.partition(" ")
        return token if scheme == "Bearer" else ""

    def headers(self) -> list[tuple[str, str]]:
        """The headers that every request has."""
        sent = [("Authorization", self.authorization)] if self.authorization else []
        return [*sent, *self.impersonation]


def client_context(
    endpoint: Endpoint, credential: Credential, *, protocol: str = "http/1.1"
) -> ssl.SSLContext:
    """The TLS context of connections that offer ``protocol`` by ALPN (``h2`` for HTTP/2).

    The others offer HTTP/1.1 only: upgrades (exec, attach, port-forward) need it, and aiohttp
    supports nothing else. Raises KubeconfigError for certificates that cannot be used.
    """
    context = _verifying(endpoint.authorities)
    # The system's OpenSSL configuration may allow older versions.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if endpoint.skips_verification:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credential.certificate:
        _present(context, credential.certificate, credential.key)
    context.set_alpn_protocols([protocol])
    return context


def _verifying(authorities: bytes | None) -> ssl.SSLContext:
    if authorities is None:
        return ssl.create_default_context()
    # Comments of a bundle may contain any bytes; OpenSSL reads ASCII.
    text = authorities.decode("ascii", "ignore")
    wrong = KubeconfigError("its certificate-authority is not valid PEM")
    if not text.strip():
        raise wrong  # an empty text would select the system's CAs
    try:
        return ssl.create_default_context(cadata=text)
    except (OSError, ValueError):
        raise wrong from None


def _present(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    try:
        load_certificate(context, certificate, key)
    except ValueError:
        raise KubeconfigError(
            "its client-certificate or client-key is not valid PEM, or they do not belong together"
        ) from None
    except OSError as error:
        raise KubeconfigError(f"cannot create a file in memory: {error.strerror}") from error


# -- servers and proxies -------------------------------------------------------------------------


def usable_server(server: str) -> str:
    """The URL without query, fragment and trailing slash, as kubectl uses it. Raises
    KubeconfigError."""
    try:
        parts = urlsplit(server)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    # `urlsplit` skips line breaks and white space at the ends.
    if not (usable and server.isprintable() and server == server.strip()) or "@" in parts.netloc:
        raise KubeconfigError("its cluster's server is not an http(s) URL without a user")
    return parts._replace(query="", fragment="").geturl().rstrip("/")


def usable_proxy(server: str, proxy_url: str | None = None) -> str | None:
    """The proxy of the kubeconfig's cluster, else of the environment; None without one. Raises
    KubeconfigError, without a password in it."""
    proxy = proxy_url or proxy_of_environment(server)
    if not proxy:
        return None
    try:
        parts = urlsplit(proxy)
        usable = bool(parts.hostname) and parts.port != 0 and " " not in proxy
    except ValueError:
        usable = False
    if not usable:
        raise KubeconfigError("its proxy (proxy-url, HTTPS_PROXY or HTTP_PROXY) is not a URL")
    if parts.scheme not in _PROXY_SCHEMES:
        raise KubeconfigError(
            f"its proxy at {parts.hostname} has the unsupported scheme {parts.scheme}; "
            "use an http or https proxy (proxy-url, HTTPS_PROXY or HTTP_PROXY)"
        )
    return proxy


def proxy_of_environment(server: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The URL of the environment's proxy for this server; None if it is reached directly."""
    parts = urlsplit(server)
    name = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    proxy = environ.get(name) or environ.get(name.lower())
    if not proxy:
        return None
    no_proxy = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if not _uses_proxy((parts.hostname or "").lower(), _port(server), no_proxy):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _port(server: str) -> int:
    parts = urlsplit(server)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _uses_proxy(host: str, port: int, no_proxy: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return False
    return not any(_matches(host, address, port, entry) for entry in no_proxy.lower().split(","))


def _matches(host: str, address: _Address | None, port: int, entry: str) -> bool:
    entry = entry.strip()
    if entry == "*":
        return True
    if "/" in entry and (network := _network(entry)) is not None:
        return address is not None and address in network
    name, entry_port = _split(entry)
    if not name or (entry_port and entry_port != str(port)):
        return False
    if (named := _address(name)) is not None:
        return address == named
    name = name.removeprefix("*")
    return host.endswith(name if name.startswith(".") else f".{name}") or host == name


def _split(entry: str) -> tuple[str, str]:
    """Host and port of an entry, as net.SplitHostPort; the port is "" if there is none."""
    name, colon, port = entry.rpartition(":")
    bracketed = name.startswith("[") and name.endswith("]")
    if colon and (bracketed or ":" not in name):
        return name.strip("[]"), port
    return entry.strip("[]"), ""


def _address(host: str) -> _Address | None:
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None
