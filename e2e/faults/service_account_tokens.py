"""A kubeconfig of the remote with a service account token, which can be revoked or expire."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from e2e.clusters.cluster import Cluster
from e2e.kubectl import get_one

_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Credential:
    """An administrative service account. Use as a context manager; ``kubeconfig`` has its token."""

    remote: Cluster
    account: str
    kubeconfig: Path

    @classmethod
    def of(cls, remote: Cluster, account: str, kubeconfig: Path) -> Credential:
        """A credential that is created on entry."""
        return cls(remote, account, kubeconfig)

    def __enter__(self) -> Credential:
        binding = ("create", "clusterrolebinding", self.account, "--clusterrole=cluster-admin")
        self.remote.kubectl(*binding, f"--serviceaccount={_NAMESPACE}:{self.account}")
        self.renew()
        return self

    def __exit__(self, *_: object) -> None:
        self.revoke()
        self.remote.kubectl("delete", "clusterrolebinding", self.account, check=False)

    def revoke(self) -> None:
        """Revokes all tokens of the account; the API server may cache them for ten seconds."""
        args = ("delete", "serviceaccount", self.account, "-n", _NAMESPACE, "--ignore-not-found")
        self.remote.kubectl(*args, check=False)

    def renew(self) -> None:
        """Writes a kubeconfig with a new token, of a new account if the old one was revoked."""
        self.remote.kubectl("create", "serviceaccount", self.account, "-n", _NAMESPACE, check=False)
        create = ("create", "token", self.account, "-n", _NAMESPACE)
        self._write(self.remote.kubectl(*create).stdout.strip())

    def expire(self, seconds: float, *, signing_key: Path, issuer: str) -> None:
        """Writes a kubeconfig with a token that expires so soon. API servers issue tokens for at
        least ten minutes, so the token is signed here with the cluster's key."""
        account = get_one(self.remote, "serviceaccount", self.account, namespace=_NAMESPACE)
        now = int(time.time())
        claims = {
            "iss": issuer,
            "aud": [issuer],
            "sub": f"system:serviceaccount:{_NAMESPACE}:{self.account}",
            "iat": now,
            "nbf": now - 5,
            "exp": now + int(seconds),
            "kubernetes.io": {
                "namespace": _NAMESPACE,
                "serviceaccount": {"name": self.account, "uid": account["metadata"]["uid"]},
            },
        }
        self._write(signed(claims, signing_key.read_bytes()))

    def _write(self, token: str) -> None:
        config = yaml.safe_load(self.remote.kubeconfig.read_text())
        users = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
        partial = self.kubeconfig.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(yaml.safe_dump({**config, "users": users}))
        partial.replace(self.kubeconfig)


def signed(claims: dict[str, object], key: bytes) -> str:
    """A JSON Web Token (ES256)."""
    private = serialization.load_pem_private_key(key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    head = {"alg": "ES256", "typ": "JWT"}
    body = ".".join(_text(json.dumps(part).encode()) for part in (head, claims))
    r, s = decode_dss_signature(private.sign(body.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{body}.{_text(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
