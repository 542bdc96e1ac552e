"""Tokens of ServiceAccounts as an API server signs them, without a valid signature."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta
from typing import Any

NAMESPACE, NAME = "cluster-bridge", "cluster-bridge"


def jwt(claims: object) -> str:
    """A JWT with these claims."""
    parts = ({"alg": "RS256"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(it).encode()).decode() for it in parts]
    return ".".join([*(it.rstrip("=") for it in encoded), "c2lnbmF0dXJl"])


def account_token(
    issued: datetime | None = None, lifetime: timedelta | None = None, **claims: Any
) -> str:
    """The token of the account `NAMESPACE`/`NAME`; without a lifetime it never expires."""
    found: dict[str, Any] = {"sub": f"system:serviceaccount:{NAMESPACE}:{NAME}", "aud": ["api"]}
    if issued is not None and lifetime is not None:
        found |= {"iat": issued.timestamp(), "exp": (issued + lifetime).timestamp()}
    return jwt(found | claims)
