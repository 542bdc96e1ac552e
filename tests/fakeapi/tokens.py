"""TokenRequests, after pkg/registry/core/serviceaccount/storage/token.go."""

from __future__ import annotations

import secrets
from datetime import timedelta

from sync.kube.api_resources import PODS, SERVICE_ACCOUNTS, Object
from tests.fakeapi import api_errors
from tests.fakeapi.store import Store
from translators.timestamps import format_time, parse_time

#: The prefix of tokens, by which tests find leaked ones.
PREFIX = "issued-token-"
#: The default and the minimum lifetime of a token in seconds.
_LIFE, _LEAST = 3600, 600


def issue(store: Store, account: Object, body: Object, *, now: str) -> Object:
    """The TokenRequest with a new token in its status. Raises ApiErrorResponse."""
    name, namespace = account["metadata"]["name"], account["metadata"]["namespace"]
    spec = body.get("spec") or {}
    seconds = spec.get("expirationSeconds", _LIFE)
    if seconds < _LEAST:
        why = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
        raise api_errors.invalid(SERVICE_ACCOUNTS, "", ("spec.expirationSeconds", why))
    if bound := spec.get("boundObjectRef"):
        pod = store.get(store.registry.of(PODS), namespace, bound["name"])
        if pod["spec"].get("serviceAccountName") != name:
            why = f'cannot bind token for serviceaccount "{name}" to pod running with different'
            raise api_errors.bad_request(f"{why} serviceaccount name.")
        if bound.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            why = "the UID in the bound object reference does not match the UID in record."
            raise api_errors.conflict(PODS, bound["name"], why)
    expires = parse_time(now) + timedelta(seconds=seconds)
    status = {"token": PREFIX + secrets.token_hex(8), "expirationTimestamp": format_time(expires)}
    return {**body, "spec": {"audiences": ["api"], **spec}, "status": status}
