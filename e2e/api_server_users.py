"""An API server with users of every kind of credential, an OIDC issuer, and a proxy.

`serving` runs all three. The kubeconfigs of `e2e.kubeconfig_table` refer to addresses and
credentials by the names in `Users.words`. The users are new for each server and have no permissions
except `admin`, who is in system:masters.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from aiohttp import web
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from e2e.clusters.certificates import BACKDATE, VALIDITY, Authority, Pair
from e2e.clusters.cluster import Cluster
from e2e.clusters.native import NativeControl
from e2e.second_api_server import SERVER_NAME, SecondApiServer

#: Lines of the static token file: token, user, UID, groups. Some tokens look like other types of
#: YAML than strings.
_TOKENS = """\
token-alice,alice,uid-alice,"developers,testers"
token-bob,bob,uid-bob
token-admin,admin,uid-admin,"system:masters"
12345,number,uid-number
True,boolean,uid-boolean
2024-01-01,date,uid-date
12:30:45,time,uid-time
"""
_CLIENT_ID = "kubectl"
_LOOPBACK = "127.0.0.1"
_PROXY_CREDENTIAL = "proxy-user:proxy-password"
#: Seconds for which tokens are valid, or have been expired.
_LIFETIME = 3600


@dataclass(frozen=True, slots=True)
class Users:
    """The running server. ``words`` are the values of the names in kubeconfigs."""

    words: Mapping[str, str]
    audit_log: Path
    clients: Authority
    """Signs client certificates."""
    issuer: Issuer


@asynccontextmanager
async def serving(cluster: Cluster, folder: Path) -> AsyncIterator[Users]:
    """Runs a second API server of a native cluster, the issuer and the proxy for the block. The
    audit log is complete after it."""
    control = cluster.control
    assert isinstance(control, NativeControl)
    pki = control.site.pki
    clients = Authority.create(folder / "clients", "ca", "test-clients")
    authorities = folder / "client-authorities.crt"
    own = clients.files.certificate.read_text()
    authorities.write_text((pki / "ca.crt").read_text() + own)
    tokens = folder / "tokens.csv"
    tokens.write_text(_TOKENS)
    async with AsyncExitStack() as stack:
        issuer = Issuer(Authority.create(folder / "issuer", "ca", "test-issuer"))
        url = await stack.enter_async_context(issuer.listening(cluster.host_address))
        flags = (
            f"--client-ca-file={authorities}",
            f"--token-auth-file={tokens}",
            f"--oidc-issuer-url={url}",
            f"--oidc-ca-file={issuer.authority.files.certificate}",
            f"--oidc-client-id={_CLIENT_ID}",
            "--oidc-username-claim=sub",
            "--oidc-username-prefix=-",
            "--oidc-groups-claim=groups",
            "--oidc-signing-algs=ES256",
        )
        server = SecondApiServer(cluster, folder, *flags)
        await asyncio.to_thread(server.__enter__)
        stack.push_async_callback(asyncio.to_thread, server.__exit__)
        proxy = _Proxy(cluster.node_ip, server.port)
        plain = await stack.enter_async_context(await proxy.listening())
        context = _server_context(issuer.authority.issue("proxy", "proxy", hosts=[_LOOPBACK]))
        secure = await stack.enter_async_context(await proxy.listening(context))
        account = cluster.kubectl("create", "token", "default", "-n", "default").stdout.strip()
        words = {
            **_server_words(server),
            **_certificate_words(clients),
            **issuer.words(),
            "proxy": f"{_LOOPBACK}:{plain.sockets[0].getsockname()[1]}",
            "https_proxy": f"{_LOOPBACK}:{secure.sockets[0].getsockname()[1]}",
            "proxy_credential": _PROXY_CREDENTIAL,
            "account": account,
            **{name: f"token-{name}" for name in ("alice", "bob", "admin")},
            "expired_account": _expired(account, pki / "sa.key"),
        }
        yield Users(words, server.audit_log, clients, issuer)


def _server_words(server: SecondApiServer) -> dict[str, str]:
    config = yaml.safe_load(server.write_kubeconfig().kubeconfig.read_text())
    fields = config["clusters"][0]["cluster"]
    authority, address = fields["certificate-authority-data"], urlsplit(fields["server"]).netloc
    return {
        "server": fields["server"],
        "address": address,
        "host": address.partition(":")[0],
        "name": SERVER_NAME,
        "port": str(server.port),
        "ca": authority,
        "ca_pem": base64.b64decode(authority).decode(),
    }


def _certificate_words(clients: Authority) -> dict[str, str]:
    """The pairs of two users, and one that has expired: NAME_cert and NAME_key in base64,
    NAME_cert_pem and NAME_key_pem."""
    words = {"other_ca": _base64(clients.files.certificate)}
    for name, validity in (("carol", VALIDITY), ("dave", VALIDITY), ("expired", -BACKDATE / 2)):
        pair = clients.issue(name, name, groups=["certified"], validity=validity)
        for part, file in (("cert", pair.certificate), ("key", pair.key)):
            words[f"{name}_{part}"] = _base64(file)
            words[f"{name}_{part}_pem"] = file.read_text()
            # In the JSON of an ExecCredential.
            words[f"{name}_{part}_json"] = json.dumps(file.read_text())
    return words


def _server_context(pair: Pair) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


# -- tokens ---------------------------------------------------------------------------------------


def _expired(token: str, key: Path) -> str:
    """The token of a ServiceAccount with an end in the past, signed with the cluster's key."""
    header, claims, _ = token.split(".")
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    end = int(time.time()) - _LIFETIME
    times = {"exp": end, "iat": end - _LIFETIME, "nbf": end - _LIFETIME}
    return _signed(private, _decoded(header), _decoded(claims) | times)


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a JSON Web Token."""
    return _decoded(token.split(".")[1])


def _decoded(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def _signed(
    key: ec.EllipticCurvePrivateKey, header: Mapping[str, Any], claims: Mapping[str, Any]
) -> str:
    """A JSON Web Token with the algorithm ES256."""
    parts = [_url_base64(json.dumps(part).encode()) for part in (header, claims)]
    signature = key.sign(".".join(parts).encode(), ec.ECDSA(hashes.SHA256()))
    numbers = (number.to_bytes(32, "big") for number in decode_dss_signature(signature))
    return ".".join([*parts, _url_base64(b"".join(numbers))])


def _url_base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


class Login:
    """The tokens of an OIDC user whose refresh tokens are accepted once. Each ID token is of
    another user: NAME-0, NAME-1…"""

    def __init__(self, issuer: Issuer, name: str, seconds: int) -> None:
        self._issuer, self._name, self._seconds = issuer, name, seconds
        self._numbers = itertools.count()
        self.renew()

    def renew(self) -> None:
        """Replaces the tokens."""
        self.user = f"{self._name}-{next(self._numbers)}"
        self.refresh_token = f"refresh-{self.user}"
        self.id_token = self._issuer.id_token(self._seconds, self.user)


class Issuer:
    """An OIDC issuer of tokens for the user `erin`, whose refresh token it accepts repeatedly, and
    for each `Login`."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.url = ""
        self.rejected_refreshes = 0
        """How often a client presented an unknown or used refresh token."""
        self._logins: list[Login] = []

    def log_in(self, name: str, seconds: int) -> Login:
        """The first tokens of a user; each ID token is valid for this time."""
        login = Login(self, name, seconds)
        self._logins.append(login)
        return login

    @asynccontextmanager
    async def listening(self, address: str) -> AsyncIterator[str]:
        """Listens at this address during the block; yields the URL of the issuer."""
        pair = self.authority.issue("serving", "issuer", hosts=[address])
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._discover)
        app.router.add_get("/keys", self._keys)
        app.router.add_post("/token", self._token)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, address, 0, ssl_context=_server_context(pair)).start()
        self.url = f"https://{address}:{runner.addresses[0][1]}"
        try:
            yield self.url
        finally:
            await runner.cleanup()

    def words(self) -> dict[str, str]:
        return {
            "issuer": self.url,
            "issuer_ca": _base64(self.authority.files.certificate),
            "issuer_ca_pem": self.authority.files.certificate.read_text(),
            "client_id": _CLIENT_ID,
            "erin": self.id_token(_LIFETIME),
            "expired_erin": self.id_token(-_LIFETIME),
        }

    def id_token(self, seconds: int, user: str = "erin") -> str:
        """A new ID token that expires after this time."""
        end = int(time.time()) + seconds
        times = {"exp": end, "iat": end - 2 * _LIFETIME}
        claims = {"iss": self.url, "aud": _CLIENT_ID, "sub": user, "groups": ["oidc"], **times}
        return _signed(self.authority.private_key, {"alg": "ES256", "kid": "1"}, claims)

    async def _discover(self, _: web.Request) -> web.Response:
        document = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }
        return web.json_response(document)

    async def _keys(self, _: web.Request) -> web.Response:
        public = self.authority.private_key.public_key().public_numbers()
        point = {name: _url_base64(getattr(public, name).to_bytes(32, "big")) for name in "xy"}
        key = {"kty": "EC", "crv": "P-256", "kid": "1", "alg": "ES256", "use": "sig", **point}
        return web.json_response({"keys": [key]})

    async def _token(self, request: web.Request) -> web.Response:
        refresh_token = (await request.post()).get("refresh_token")
        answer = {"access_token": "x", "token_type": "Bearer"}
        if refresh_token == "refresh-erin":
            return web.json_response(answer | {"id_token": self.id_token(_LIFETIME)})
        for login in self._logins:
            if refresh_token == login.refresh_token:
                login.renew()
                answer |= {"id_token": login.id_token, "refresh_token": login.refresh_token}
                return web.json_response(answer)
        self.rejected_refreshes += 1
        return web.json_response({"error": "invalid_grant"}, status=400)


# -- the proxy ------------------------------------------------------------------------------------


class _Proxy:
    """An HTTP proxy with a password, and a SOCKS5 proxy without, on one port. Both connect to the
    API server for any address, so that a client without the proxy fails at an unknown host. The
    issuer's CA signs the certificate of an HTTPS proxy."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        credential = base64.b64encode(_PROXY_CREDENTIAL.encode())
        self._authorization = b"proxy-authorization: basic " + credential.lower()

    async def listening(self, context: ssl.SSLContext | None = None) -> asyncio.Server:
        """Listens on a free port, with TLS if there is a context."""
        return await asyncio.start_server(self.connected, _LOOPBACK, 0, ssl=context)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            first = await reader.readexactly(1)
            accept = self._accept_socks if first == b"\x05" else self._accept_http
            if await accept(reader, writer):
                far, out = await asyncio.open_connection(*self._target)
                await asyncio.gather(_forward(reader, out), _forward(far, writer))

    async def _accept_http(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        accepted = self._authorization in head.lower()
        status = b"200 OK" if accepted else b"407 Proxy Authentication Required"
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        return accepted

    async def _accept_socks(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """RFC 1928: no authentication; the requested host is a name."""
        (methods,) = await reader.readexactly(1)
        await reader.readexactly(methods)
        writer.write(b"\x05\x00")
        *_, length = await reader.readexactly(5)
        await reader.readexactly(length + 2)
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        return True


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
