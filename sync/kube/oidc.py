"""Renews the ID token of a kubeconfig's ``oidc`` auth-provider, as client-go's plugin does.

Many issuers accept a refresh token once and return the next one with each response, so both tokens
are written back to the kubeconfig: atomically, with the file's mode, under kubectl's lock
(``FILE.lock``). If the file cannot be written, as in a mounted Secret, `RenewedTokens` keeps them
in memory.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import re
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote_plus
from weakref import WeakValueDictionary

import aiohttp
import cachetools
import yaml

from sync.kube import bearer_token
from sync.kube.kubeconfig import (
    YAML_ERRORS,
    Dumper,
    KubeconfigError,
    Loader,
    decode_base64,
    is_text,
)
from translators.object_accessors import Object

log = logging.getLogger(__name__)

#: Seconds before expiry at which an ID token is renewed (expiryDelta in client-go's oidc plugin).
EXPIRY_DELTA = 10.0
#: Bytes of an issuer's response to read.
RESPONSE_LIMIT = 2**20
#: Refresh tokens whose successors are kept.
MAX_KNOWN = 64
#: Error codes of an issuer that messages may contain (RFC 6749, 5.2).
_CODE = re.compile(r"[a-z_]{1,40}\Z")


class OidcError(Exception):
    """Raised when the issuer returns no token; the message has the cause and no secret."""


class RenewedTokens:
    """The newest tokens for each refresh token of a kubeconfig. All kubeconfigs of a process share
    them: two kubeconfigs with the same user must not use a refresh token twice."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._known: cachetools.LRUCache[str, tuple[str, str]] = cachetools.LRUCache(MAX_KNOWN)

    def lock(self, refresh_token: str) -> asyncio.Lock:
        """Held while this refresh token of a kubeconfig, or its successor, is used: an issuer that
        does not answer delays its own users only."""
        return self._locks.setdefault(refresh_token, asyncio.Lock())

    def newest(self, refresh_token: str, token: str) -> tuple[str, str]:
        """The refresh token and the ID token that replaced these."""
        return self._known.get(refresh_token, (refresh_token, token))

    def keep(self, configured: str, refresh_token: str, token: str) -> None:
        """Stores the tokens that replaced ``configured``, the refresh token of a kubeconfig."""
        self._known[configured] = (refresh_token, token)


def check(file: Path, config: Object) -> None:
    """Raises OidcError for a provider that kubectl rejects even if it needs no new token."""
    for key in ("client-id", "idp-issuer-url"):
        if not config.get(key):
            raise OidcError(f"oidc: {key} is missing in the auth-provider's config; log in again")
    token = str(config.get("id-token") or "")
    if token != token.strip():
        raise OidcError("oidc: id-token has white space around the token; log in again")
    _ssl_context(file, config)


async def id_token(file: Path, config: Object, renewed: RenewedTokens) -> str:
    """The ID token of the provider, renewed if it has expired. Raises OidcError."""
    async with renewed.lock(str(config.get("refresh-token") or "")):
        return await _id_token(file, config, renewed)


async def _id_token(file: Path, config: Object, renewed: RenewedTokens) -> str:
    configured = str(config.get("refresh-token") or "")
    refresh_token, token = renewed.newest(configured, str(config.get("id-token") or ""))
    if token and not _has_expired(token):
        return token
    if not refresh_token:
        raise OidcError("oidc: the ID token has expired and refresh-token is missing; log in again")
    answer = await _refresh(file, config, refresh_token)
    token = _text(answer, "id_token")
    if not token:
        raise OidcError("oidc: the issuer's response has no id_token; log in with scope openid")
    next_refresh_token = _text(answer, "refresh_token") or refresh_token
    renewed.keep(configured, next_refresh_token, token)
    _write_back(file, configured, {"id-token": token, "refresh-token": next_refresh_token})
    return token


def _has_expired(token: str) -> bool:
    """Whether the token has expired or is about to; also true if it is no JWT."""
    end = bearer_token.expiry(token)
    return end is None or end.timestamp() - EXPIRY_DELTA <= time.time()


async def _refresh(file: Path, config: Object, refresh_token: str) -> Object:
    issuer = str(config["idp-issuer-url"]).rstrip("/")
    context = _ssl_context(file, config)
    try:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context), trust_env=True
        ) as session:
            discovered = await _json(session, "GET", f"{issuer}/.well-known/openid-configuration")
            endpoint = _text(discovered, "token_endpoint")
            if not endpoint:
                raise OidcError("oidc: the issuer's configuration has no token_endpoint")
            return await _exchange_token(session, endpoint, config, refresh_token)
    except (aiohttp.ClientError, OSError, ValueError):
        # Not chained: the error can contain the request.
        raise OidcError(
            "oidc: the issuer did not renew the token: idp-issuer-url or its token_endpoint cannot "
            "be reached; check idp-issuer-url, or log in again"
        ) from None


def _text(answer: Object, name: str) -> str:
    """The field of an issuer's answer; "" if it is absent. Raises OidcError."""
    value = answer.get(name)
    if value is not None and not (is_text(value) and value == value.strip()):
        raise OidcError(
            f"oidc: the {name} in the issuer's response is not a valid string; log in again"
        )
    return value or ""


async def _exchange_token(
    session: aiohttp.ClientSession, endpoint: str, config: Object, refresh_token: str
) -> Object:
    """Sends the client secret in a header; if the issuer rejects that, in the form, as
    golang.org/x/oauth2 does."""
    client, secret = str(config["client-id"]), str(config.get("client-secret") or "")
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    pair = f"{quote_plus(client)}:{quote_plus(secret)}".encode()
    basic = {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    try:
        return await _json(session, "POST", endpoint, data=form, headers=basic)
    except _InvalidClient:
        form |= {"client_id": client}
        form |= {"client_secret": secret} if secret else {}
        return await _json(session, "POST", endpoint, data=form)


class _InvalidClient(OidcError):
    """Raised when the issuer does not recognise the client."""


async def _json(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    data: dict[str, str] | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Object:
    headers = {"Accept": "application/json", **headers}
    async with session.request(
        method, url, data=data, headers=headers, allow_redirects=False
    ) as response:
        raw = bytearray()
        async for chunk in response.content.iter_any():
            raw += chunk
            if len(raw) > RESPONSE_LIMIT:
                raise OidcError(f"oidc: the issuer's response exceeds {RESPONSE_LIMIT} bytes")
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = None
    if response.status < 300 and isinstance(answer, dict):
        return answer
    code = str(answer.get("error") or "") if isinstance(answer, dict) else ""
    if code == "invalid_grant":
        raise OidcError(
            "oidc: the issuer does not accept the refresh token (invalid_grant): it has expired, "
            "was revoked, or has been used by another program; log in again"
        )
    if code == "invalid_client" or (response.status == 401 and data is not None):
        raise _InvalidClient("oidc: the issuer does not accept the client (invalid_client)")
    detail = f" ({code})" if _CODE.match(code) else ""
    raise OidcError(f"oidc: the issuer answered {response.status}{detail}; log in again")


def _ssl_context(file: Path, config: Object) -> ssl.SSLContext:
    data, path = (config.get(f"idp-certificate-authority{end}") for end in ("-data", ""))
    try:
        if data:
            text = decode_base64(str(data)).decode()
            return ssl.create_default_context(cadata=text)
        if path:
            return ssl.create_default_context(cafile=file.absolute().parent / str(path))
    except (OSError, ValueError):
        raise OidcError("oidc: idp-certificate-authority is not valid PEM") from None
    return ssl.create_default_context()


def _write_back(file: Path, configured: str, tokens: dict[str, str]) -> None:
    """Replaces the refresh token ``configured`` in the kubeconfig; if that fails, logs a
    warning."""
    path = Path(os.path.realpath(file))
    try:
        with _locked(path):
            config = yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506
            if _replace(config, configured, tokens):
                _write(path, yaml.dump(config, Dumper=Dumper, sort_keys=False))
    except (OSError, KubeconfigError, *YAML_ERRORS, AttributeError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "the file has changed"
        log.warning(
            "kubeconfig %s: cannot write the renewed OIDC tokens (%s); they are kept in memory: "
            "log in again before the next start of the bridge",
            file,
            reason,
        )


def _replace(config: Object, configured: str, tokens: dict[str, str]) -> bool:
    """Replaces the tokens in ``config``; returns whether a user has the refresh token
    ``configured``."""
    replaced = False
    for entry in config.get("users") or ():
        provider = (entry.get("user") or {}).get("auth-provider") or {}
        settings = provider.get("config") or {}
        if provider.get("name") == "oidc" and settings.get("refresh-token") == configured:
            settings.update(tokens)
            replaced = True
    return replaced


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds kubectl's lock of a kubeconfig (lockFile in client-go's tools/clientcmd/loader.go)."""
    lock = path.with_name(f"{path.name}.lock")
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    before = path.stat()
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), before.st_mode & 0o7777)
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
