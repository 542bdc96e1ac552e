"""What a request is made of: what it asks, and what it has in common with all others.

Nothing here is sent; that is `sync.kube.transport`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multidict import CIMultiDict
from yarl import URL

from sync.kube.credentials import ClientConfig

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
Query = Mapping[str, str] | list[tuple[str, str]]


@dataclass(slots=True, repr=False)
class ApiRequest:
    """One request, ready to be sent more than once. It has no repr: the body can be a Secret."""

    method: str
    path: str
    query: Query | None
    subject: str
    data: bytes | None
    content_type: str
    """Of the body; empty without one."""
    accept: str
    seconds: float
    times_server: bool = True
    """Whether the time that it takes is that of the API server itself."""

    @property
    def what(self) -> str:
        """The request in an error's words."""
        words = f"{self.method} {self.path}"
        return f"{words} {self.subject}" if self.subject else words


class RequestDefaults:
    """What all requests have in common until the credential is read again."""

    __slots__ = ("_access", "_options", "_prefix", "_server", "_user_agent", "generation")

    def __init__(self, access: ClientConfig, user_agent: str) -> None:
        self.generation = access.generation
        self._access = access
        self._user_agent = user_agent
        self._server = URL(access.server, encoded=True)
        self._prefix = self._server.raw_path.rstrip("/")
        self._options: dict[tuple[str, str], dict[str, Any]] = {}

    def url(self, path: str, query: Query | None) -> URL:
        # Paths come quoted from `Resource.path`; quoting twice would name other objects.
        url = self._server.with_path(self._prefix + path, encoded=True)
        return url.with_query(query) if query else url

    def options(self, accept: str = JSON, content_type: str = "") -> dict[str, Any]:
        """Arguments for aiohttp. They are shared by requests: not to be changed."""
        made = self._options.get((accept, content_type))
        if made is None:
            made = self._options[accept, content_type] = self._made(accept, content_type)
        return made

    def _made(self, accept: str, content_type: str) -> dict[str, Any]:
        access = self._access
        # The one encoding that API servers have.
        headers = CIMultiDict(access.headers())
        headers.update({"User-Agent": self._user_agent, "Accept": accept})
        headers["Accept-Encoding"] = "gzip"
        if content_type:
            headers["Content-Type"] = content_type
        # No API server redirects; what does is a login page, and it would turn a POST into a GET.
        options: dict[str, Any] = {
            "headers": headers,
            "allow_redirects": False,
        }
        if access.ssl is not None:
            options["ssl"] = access.ssl
        if access.server_hostname:
            options["server_hostname"] = access.server_hostname
        if access.proxy:
            options["proxy"] = access.proxy
        return options
