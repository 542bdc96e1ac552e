"""A credential of the remote that can end: the token of a service account, in a kubeconfig."""

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
    """A service account that may do all. Use as a context manager; ``kubeconfig`` has its token."""

    remote: Cluster
    account: str
    kubeconfig: Path

    @classmethod
    def of(cls, remote: Cluster, account: str, kubeconfig: Path) -> Credential:
        """Not made before the block is entered."""
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
        """No token of the account is worth anything, after the API server's own ten seconds."""
        args = ("delete", "serviceaccount", self.account, "-n", _NAMESPACE, "--ignore-not-found")
        self.remote.kubectl(*args, check=False)

    def renew(self) -> None:
        """The kubeconfig has a new token, of a new account where the old one is revoked."""
        self.remote.kubectl("create", "serviceaccount", self.account, "-n", _NAMESPACE, check=False)
        create = ("create", "token", self.account, "-n", _NAMESPACE)
        self._write(self.remote.kubectl(*create).stdout.strip())

    def expire(self, seconds: float, *, signing_key: Path, issuer: str) -> None:
        """The kubeconfig has a token that ends so soon. An API server gives out none that lives
        for less than ten minutes, so it is signed here, with the cluster's own key."""
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
