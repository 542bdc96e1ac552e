"""The MutatingWebhookConfiguration of the offload webhook. Pure.

Used where home's API server does not serve MutatingAdmissionPolicy
(`bridge.offload.mutating_admission_policy`). `bridge webhook` registers one with its URL; an
installation in home's cluster includes one with its Service.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from bridge.offload.mutating_admission_policy import (
    LABEL_PART,
    MATCH_CONDITIONS,
    NAMESPACE_SELECTOR,
    POD_CREATION,
    object_metadata,
)
from sync.kube.api_resources import MUTATING_WEBHOOKS
from translators.object_accessors import Object, metadata
from translators.ownership_labels import DOMAIN

#: Seconds that the API server waits for the webhook before it creates the pod unmodified.
WEBHOOK_SECONDS = 2
#: The path of the webhook.
MUTATE_PATH = "/mutate"
#: The port of the Service in front of an in-cluster webhook.
SERVICE_PORT = 443

#: On a configuration: the `bridge webhook` process that registered it.
ANNOTATION_PROCESS = f"{DOMAIN}/webhook-process"


def url_configuration(url: str, ca: bytes, process: str) -> Object:
    """The MutatingWebhookConfiguration of a webhook at ``url`` with this CA bundle (PEM).
    ``process`` identifies the process that registers it."""
    client = {"url": url + MUTATE_PATH, "caBundle": b64encode(ca).decode()}
    meta = {**object_metadata(), "annotations": {ANNOTATION_PROCESS: process}}
    return _configuration(meta, client)


def registered_process(configuration: Object) -> str:
    """The process that registered the configuration; "" if none is recorded."""
    annotations = metadata(configuration).get("annotations") or {}
    return str(annotations.get(ANNOTATION_PROCESS) or "")


def has_url(configuration: Object, url: str) -> bool:
    """Whether the configuration calls a webhook at ``url``."""
    return any(
        (it.get("clientConfig") or {}).get("url") == url + MUTATE_PATH
        for it in configuration.get("webhooks") or ()
    )


def is_up_to_date(current: Any, desired: Any) -> bool:
    """Whether ``current`` has all fields of ``desired``. The API server adds defaults, also within
    the list of webhooks."""
    if isinstance(desired, dict):
        return isinstance(current, dict) and all(
            is_up_to_date(current.get(k), v) for k, v in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(current, list)
            and len(current) == len(desired)
            and all(map(is_up_to_date, current, desired))
        )
    return bool(current == desired)


def service_configuration(meta: Object, namespace: str, service: str) -> Object:
    """The configuration of a webhook behind a Service of home. The webhook sets the CA bundle
    itself (`ca_bundle_patch`)."""
    client = {"namespace": namespace, "name": service, "path": MUTATE_PATH, "port": SERVICE_PORT}
    labels = {**meta["labels"], LABEL_PART: "offload"}
    return _configuration({"name": meta["name"], "labels": labels}, {"service": client})


def ca_bundle_patch(ca: bytes) -> Object:
    """The strategic merge patch that sets a configuration's CA bundle (PEM)."""
    bundle = {"caBundle": b64encode(ca).decode()}
    return {"webhooks": [{"name": _WEBHOOK, "clientConfig": bundle}]}


def ca_bundle(configuration: Object) -> bytes:
    """The CA bundle (PEM) of a configuration; b"" if it has none."""
    for it in configuration.get("webhooks") or ():
        if it.get("name") == _WEBHOOK:
            return b64decode((it.get("clientConfig") or {}).get("caBundle") or "")
    return b""


#: The webhook's name within a configuration.
_WEBHOOK = f"offload.{DOMAIN}"


def _configuration(meta: Object, client: Object) -> Object:
    return {
        "apiVersion": MUTATING_WEBHOOKS.api_version,
        "kind": MUTATING_WEBHOOKS.kind,
        "metadata": meta,
        "webhooks": [
            {
                "name": _WEBHOOK,
                "clientConfig": client,
                "rules": [POD_CREATION],
                "namespaceSelector": NAMESPACE_SELECTOR,
                "matchConditions": MATCH_CONDITIONS,
                "failurePolicy": "Ignore",
                "timeoutSeconds": WEBHOOK_SECONDS,
                "sideEffects": "None",
                "reinvocationPolicy": "Never",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
