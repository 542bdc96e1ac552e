"""When a credential expires, as far as it shows, and whether it renews itself.

Of a kubeconfig, this module reads only which fields its user has, never their values.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import yaml

from sync.kube.credentials import ClientConfig
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.objects import Object

#: Fields of a kubeconfig's user by which a client gets a new credential by itself.
_RENEWING = frozenset({"exec", "auth-provider", "tokenFile"})


def token_expiry(access: ClientConfig) -> datetime | None:
    """When the bearer token ends (``exp`` of a JWT); None where it does not tell."""
    token = access.authorization().get("Authorization", "").removeprefix("Bearer ")
    parts = token.split(".")
    if len(parts) != 3:
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        claims = json.loads(base64.urlsafe_b64decode(padded))
        return datetime.fromtimestamp(float(claims["exp"]), UTC)
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, OSError):
        return None


def client_certificate_expiry(access: ClientConfig) -> datetime | None:
    """When the client certificate ends; None where there is none."""
    if access.client_certificate is None:
        return None
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(access.client_certificate).not_valid_after_utc
    except ValueError:
        return None


def renews_itself(ref: KubeconfigRef, context: str) -> bool:
    """Whether the context's user gets a new credential without anybody's help."""
    return bool(_RENEWING & _fields_of_user(ref, context))


def _fields_of_user(ref: KubeconfigRef, context: str) -> frozenset[str]:
    configs = list(_configs(ref))
    name = _first(configs, "contexts", context, "context").get("user", "")
    return frozenset(_first(configs, "users", str(name), "user"))


def _configs(ref: KubeconfigRef) -> Iterable[Object]:
    for file in ref.files().split(os.pathsep):
        try:
            config = yaml.safe_load(Path(file).expanduser().read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if isinstance(config, dict):
            yield config


def _first(configs: Iterable[Object], kind: str, name: str, part: str) -> Object:
    """As kubectl merges files: the first one that names it decides."""
    for config in configs:
        for entry in config.get(kind) or ():
            if entry.get("name") == name:
                found: Object = entry.get(part) or {}
                return found
    return {}
