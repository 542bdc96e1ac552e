"""Bearer tokens: what they state about themselves, and those that replace an expiring one.

`expiry` is the end of any JWT. `account_token` describes a token of a ServiceAccount, by the claims
that API servers write (pkg/serviceaccount of kubernetes/kubernetes). The API server verifies them.

The kubeconfig itself is never written: a token that replaces its own is kept, so that a restart can
use it. A renewed token belongs to the kubeconfig's token that it descends from, by a digest of
that: once the kubeconfig contains another token, the renewed one counts no more. It is kept

- in the user's state directory (``XDG_STATE_HOME``), under that digest, so that every command that
  reads the kubeconfig finds it; files have mode 0600, the directory 0700, and files of expired
  tokens are deleted when another one is kept;
- as the file `RENEWED_TOKEN_FILE` (`sync.kube.kubeconfig_ref`) beside the kubeconfig, where an
  installed bridge mounts that key of its state Secret.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sync.base.private_file import state_directory, write_private_file
from translators.object_accessors import Object
from translators.timestamps import format_time, parse_time

_SUBJECT = "system:serviceaccount:"
#: The kinds of objects that a token can be bound to, by the claim that names the object. A token of
#: a pod names the pod's node too, so the order matters.
_BOUND_KINDS = {"pod": "Pod", "secret": "Secret", "node": "Node"}


@dataclass(frozen=True, slots=True)
class AccountToken:
    """The claims of a ServiceAccount's token."""

    namespace: str
    name: str
    expires: datetime | None
    """None: never, as the tokens in Secrets of type kubernetes.io/service-account-token."""
    lifetime: timedelta
    """From its issue to its end; zero if it does not expire."""
    audiences: tuple[str, ...]
    bound_to: Object | None
    """The ``boundObjectRef`` of the TokenRequest; the token ends with this object."""

    def __str__(self) -> str:
        return f"ServiceAccount {self.namespace}/{self.name}"


def expiry(token: str) -> datetime | None:
    """When a JWT expires (``exp``); None if it does not show that, or is no JWT."""
    return _moment(_claims(token).get("exp"))


def account_token(token: str) -> AccountToken | None:
    """Describes the token of a ServiceAccount; None for any other token."""
    claims = _claims(token)
    subject = str(claims.get("sub") or "")
    namespace, _, name = subject.removeprefix(_SUBJECT).partition(":")
    if not (subject.startswith(_SUBJECT) and namespace and name):
        return None
    issued, expires = _moment(claims.get("iat")), _moment(claims.get("exp"))
    audiences = claims.get("aud") or ()
    return AccountToken(
        namespace,
        name,
        expires,
        expires - issued if issued is not None and expires is not None else timedelta(),
        tuple(map(str, audiences)) if isinstance(audiences, list) else (str(audiences),),
        _bound_to(claims.get("kubernetes.io")),
    )


def _bound_to(claim: object) -> Object | None:
    if not isinstance(claim, dict):
        return None
    for key, kind in _BOUND_KINDS.items():
        found = claim.get(key)
        if isinstance(found, dict) and found.get("name"):
            fields = {"name": found["name"], "uid": found.get("uid")}
            return {"apiVersion": "v1", "kind": kind, **{k: v for k, v in fields.items() if v}}
    return None


def _claims(token: str) -> Object:
    """The claims of a JWT; {} if the token is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _moment(claim: object) -> datetime | None:
    if not isinstance(claim, int | float):
        return None
    try:
        return datetime.fromtimestamp(claim, UTC)
    except (ValueError, OverflowError, OSError):
        return None


# -- renewed tokens ------------------------------------------------------------------------------


#: The directory below the XDG state directory (XDG Base Directory Specification).
_STATE = ("cluster-bridge", "renewed-tokens")


@dataclass(frozen=True, slots=True)
class RenewedToken:
    """A token that replaces the one in a kubeconfig."""

    origin: str
    """The digest of the kubeconfig's token."""
    token: str = field(repr=False)
    issued: datetime
    expires: datetime

    def encode(self) -> bytes:
        """The content of its file."""
        issued, expires = format_time(self.issued), format_time(self.expires)
        content = {"origin": self.origin, "token": self.token, "issued": issued, "expires": expires}
        return json.dumps(content).encode()


def origin_of(token: str) -> str:
    """The digest that identifies a kubeconfig's token; a token cannot be guessed from it."""
    return hashlib.sha256(token.encode()).hexdigest()


def find(token: str, files: Iterable[Path]) -> Iterator[RenewedToken]:
    """The tokens that are kept for the ``token`` of a kubeconfig, in these files or the state
    directory. Files that cannot be read count as absent."""
    origin = origin_of(token)
    paths = [*files]
    with contextlib.suppress(OSError):
        paths.append(state_directory(*_STATE) / origin)
    for path in paths:
        found = _read(path)
        if found is not None and found.origin == origin:
            yield found


def latest(token: str, kept: Iterable[RenewedToken], *, rejected: str = "") -> RenewedToken | None:
    """The kept token to use instead of the kubeconfig's ``token``: the one that expires last. None
    if the kubeconfig's expires later.

    ``rejected`` is the token that the API server rejected last: the other of the two is used next.
    """
    end = expiry(token)
    usable = [
        renewed
        for renewed in kept
        if renewed.token != rejected and (end is None or renewed.expires > end or token == rejected)
    ]
    return max(usable, key=lambda renewed: renewed.expires, default=None)


class KubeconfigToken:
    """The bearer token that a kubeconfig itself contains, and the renewed one that is used instead
    of it."""

    def __init__(self) -> None:
        self.own = ""
        """Empty if the credential of the kubeconfig is another."""
        self.renewed: RenewedToken | None = None
        """The token in use; None if that is `own`."""
        self.rejected = ""
        """The token that the API server rejected last."""
        self._last: RenewedToken | None = None

    def find_renewed(self, own: str, files: Iterable[Path]) -> RenewedToken | None:
        """The token to use instead of ``own``, which the kubeconfig contains now."""
        if not own:
            return None
        kept = list(find(own, files))
        if self._last is not None and self._last.origin == origin_of(own):
            kept.append(self._last)
        return latest(own, kept, rejected=self.rejected)

    def use(self, own: str, renewed: RenewedToken | None) -> None:
        """Records what is used from now on. The last renewed token is remembered, even if it could
        not be kept and the API server rejects it meanwhile."""
        self.own, self.renewed = own, renewed
        self._last = renewed or self._last


def forget(token: str) -> None:
    """Deletes the file in the user's state directory that is kept for the ``token`` of a
    kubeconfig. Raises OSError."""
    (state_directory(*_STATE) / origin_of(token)).unlink(missing_ok=True)


def keep(renewed: RenewedToken) -> Path:
    """Writes the token to the user's state directory, and deletes those that expired before it was
    issued. Returns the file. Raises OSError."""
    directory = state_directory(*_STATE)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / renewed.origin
    write_private_file(path, renewed.encode())
    for other in directory.iterdir():
        found = _read(other)
        if found is not None and found.expires < renewed.issued:
            other.unlink(missing_ok=True)
    return path


def _read(path: Path) -> RenewedToken | None:
    try:
        content = json.loads(path.read_bytes())
        return RenewedToken(
            str(content["origin"]),
            str(content["token"]),
            parse_time(content["issued"]),
            parse_time(content["expires"]),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
