"""Selects the HTTP proxy of a server from the environment, as Go's x/net/http/httpproxy.

``HTTPS_PROXY`` applies to https servers and ``HTTP_PROXY`` to others. ``NO_PROXY`` lists the
servers that are reached directly: hosts, domains (``example.com`` with all subdomains,
``.example.com`` subdomains alone), addresses, ranges (``10.0.0.0/8``), or ``*``. An entry other
than a range may have a port. Lower-case names work too. ``localhost`` and loopback addresses never
use a proxy of the environment. A kubeconfig's ``proxy-url`` takes precedence and is not looked up
here.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

#: Supported schemes of a proxy.
_SCHEMES = ("http", "https")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def from_environment(server: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The URL of the proxy for this server; None if it is reached directly."""
    parts = urlsplit(server)
    name = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    proxy = environ.get(name) or environ.get(name.lower())
    if not proxy:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    no_proxy = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if not _uses_proxy((parts.hostname or "").lower(), port, no_proxy):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def check(proxy: str) -> None:
    """Raises ValueError, without a password in it, for a proxy that cannot be used."""
    try:
        parts = urlsplit(proxy)
        valid = bool(parts.hostname) and parts.port != 0 and " " not in proxy
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("its proxy (proxy-url, HTTPS_PROXY or HTTP_PROXY) is not a URL")
    if parts.scheme not in _SCHEMES:
        raise ValueError(
            f"its proxy at {parts.hostname} has the unsupported scheme {parts.scheme}; "
            "use an http or https proxy (proxy-url, HTTPS_PROXY or HTTP_PROXY)"
        )


def _uses_proxy(host: str, port: int, no_proxy: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return False
    return not any(_matches(host, address, port, it) for it in no_proxy.lower().split(","))


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
