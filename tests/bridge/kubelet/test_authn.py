"""The users that client certificates and bearer tokens authenticate."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from multidict import CIMultiDict

from bridge.kubelet.authn import (
    ANONYMOUS,
    AUTHENTICATED,
    TOKEN_PROTOCOL,
    UNAUTHENTICATED,
    InvalidCredentialError,
    User,
    bearer_token,
    certificate_user,
    reviewed_user,
    websocket_token,
)

NOW = 1_800_000_000.0


def certificate(*names: tuple[str, str], ends: float = 60.0) -> dict[str, Any]:
    """A result of `ssl.SSLObject.getpeercert` for a certificate that expires in ``ends``
    seconds."""
    end = time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(NOW + ends))
    return {"subject": tuple((name,) for name in names), "notAfter": end}


def user_of(*names: tuple[str, str], ends: float = 60.0) -> User | None:
    return certificate_user(certificate(*names, ends=ends), b"der", now=NOW)


def test_certificate_user_has_groups_and_credential_id() -> None:
    found = user_of(
        ("organizationName", "masters"), ("organizationName", "ops"), ("commonName", "admin")
    )
    assert found is not None
    assert (found.name, found.groups, found.uid) == ("admin", ("masters", "ops", AUTHENTICATED), "")
    ((key, (identity,)),) = found.extra
    assert key == "authentication.kubernetes.io/credential-id"
    assert identity.startswith("X509SHA256=")
    assert len(identity) == len("X509SHA256=") + 64


def test_last_common_name_counts() -> None:
    found = user_of(("commonName", "one"), ("commonName", "two"))
    assert found is not None
    assert found.name == "two"


def test_certificate_user_has_uid() -> None:
    uid = "1.3.6.1.4.1.57683.2"
    found = user_of(("commonName", "admin"), (uid, "u-1"))
    assert found is not None
    assert found.uid == "u-1"
    for uids in ([(uid, "")], [(uid, "u-1"), (uid, "u-2")]):
        with pytest.raises(InvalidCredentialError):
            user_of(("commonName", "admin"), *uids)


def test_certificate_without_user_name() -> None:
    assert certificate_user({}, b"", now=NOW) is None
    assert user_of(("organizationName", "masters")) is None
    assert user_of(("commonName", "")) is None
    assert user_of(("commonName", ANONYMOUS)) is None


def test_certificate_that_expired_after_the_handshake_is_invalid() -> None:
    with pytest.raises(InvalidCredentialError):
        user_of(("commonName", "admin"), ends=-60.0)


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("Bearer abc", "abc"),
        (" bearer abc ", "abc"),
        ("Bearer abc def", "abc"),
        ("bearer  abc", None),
        ("Basic abc", None),
        ("Bearerabc", None),
    ],
)
def test_token_is_read_from_the_authorization_header(header: str, token: str | None) -> None:
    assert bearer_token(CIMultiDict(Authorization=header)) == token


@pytest.mark.parametrize("token", ["a\x7fb", "\udcff", "ä"])
def test_malformed_bearer_tokens_are_invalid(token: str) -> None:
    with pytest.raises(InvalidCredentialError):
        bearer_token(CIMultiDict(Authorization=f"Bearer {token}"))


def offered(*protocols: str, upgrade: str = "WebSocket") -> CIMultiDict[str]:
    headers = CIMultiDict(Upgrade=upgrade)
    headers.extend([("Sec-WebSocket-Protocol", protocol) for protocol in protocols])
    return headers


def encoded(token: bytes) -> str:
    return TOKEN_PROTOCOL + urlsafe_b64encode(token).decode().rstrip("=")


def test_websocket_token_is_read_from_the_subprotocols() -> None:
    token = encoded(b"to>?ken")
    assert websocket_token(offered(f"v4.channel.k8s.io, {token}")) == "to>?ken"
    assert websocket_token(offered(token, "v4.channel.k8s.io")) == "to>?ken"
    assert websocket_token(offered("v4.channel.k8s.io")) is None
    assert websocket_token(offered()) is None
    assert websocket_token(offered(token, "v4", upgrade="SPDY/3.1")) is None
    assert websocket_token(offered(TOKEN_PROTOCOL, "v4")) is None


@pytest.mark.parametrize(
    "protocols",
    [
        [encoded(b"token")],
        [encoded(b"token"), encoded(b"another"), "v4"],
        [TOKEN_PROTOCOL + "!", "v4"],
        [TOKEN_PROTOCOL + "YQ==", "v4"],
        [encoded(b"\xff\xfe"), "v4"],
        [encoded("ä".encode()), "v4"],
    ],
)
def test_malformed_websocket_tokens_are_invalid(protocols: list[str]) -> None:
    with pytest.raises(InvalidCredentialError):
        websocket_token(offered(*protocols))


def test_user_of_a_token_review() -> None:
    user = {"username": "alice", "groups": ["people"], "uid": "7", "extra": {"b": ["1"], "a": []}}
    assert reviewed_user({"authenticated": True, "user": user}) == User(
        "alice", ("people", AUTHENTICATED), "7", (("a", ()), ("b", ("1",)))
    )
    for group in (AUTHENTICATED, UNAUTHENTICATED):
        found = reviewed_user({"authenticated": True, "user": {"username": "a", "groups": [group]}})
        assert found is not None
        assert found.groups == (group,)
    assert reviewed_user({}) is None
    assert reviewed_user({"authenticated": False, "user": user}) is None
    assert reviewed_user({"authenticated": True, "user": {}}) is None
    assert reviewed_user({"authenticated": True, "user": {"username": ANONYMOUS}}) is None
