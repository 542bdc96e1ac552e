"""Translates the service account identity of pods, as ``--service-accounts`` selects.

- ``home``: tokens of home's service account, which home issues for the home pod
  (`sync.pods.service_account_tokens`). One Secret per pod in the remote contains them and home's CA
  certificate; each token source of a volume reads from that Secret. With ``fsGroup``, only the
  group can read a token, as with a kubelet. With ``runAsUser`` alone, the file has the volume's
  mode, because files of a Secret belong to root.
- ``remote``: the service account of the same name in the remote, whose admission adds the volume.
- ``none``: no identity. The volume that home's admission added is dropped silently with its mounts;
  a token that the pod's author requested is dropped with an Event.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from translators.derived_names import short_hash
from translators.field_paths import FieldMessage, replace_containers, set_or_remove
from translators.object_accessors import (
    HomeNamespace,
    Object,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import DOMAIN, owner_labels
from translators.pods import references
from translators.translation_options import HostPort, Policy
from translators.virtual_node_identity import Identity

#: Mount path of the token volume that the API server adds (plugin/pkg/admission/serviceaccount).
_TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  # a path
#: Seconds until a token expires if the source specifies none (the API's default).
_DEFAULT_EXPIRATION_SECONDS = 3600
#: Mode of a token file under ``fsGroup`` (collectData in pkg/volume/projected); the kubelet adds
#: the group's permission to read.
_FS_GROUP_MODE = 0o600
#: Key of the CA certificate in its ConfigMap and in the token Secret.
CA_KEY = "ca.crt"
#: On the token Secret: the home pod as ``namespace/name``, and its UID. `ANNOTATION_TOKEN_TIMES`
#: has when each key has to be renewed and expires, as JSON ``{key: [renew, expires]}`` in RFC 3339.
ANNOTATION_TOKEN_POD = f"{DOMAIN}/token-pod"
ANNOTATION_TOKEN_POD_UID = f"{DOMAIN}/token-pod-uid"
ANNOTATION_TOKEN_TIMES = f"{DOMAIN}/token-times"


class TokenRequest(NamedTuple):
    """A token that a volume requests; the audience "" is the API server."""

    audience: str
    expiration_seconds: int

    @property
    def key(self) -> str:
        """The token's key in the Secret."""
        text = json.dumps(self)
        return f"token-{short_hash(text)}"


class TokenTimes(NamedTuple):
    """Times of a token in RFC 3339."""

    renew_at: str
    expires_at: str


class PodRef(NamedTuple):
    """A home pod, identified by its UID too."""

    namespace: HomeNamespace
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class RequiredTokens:
    """The required content of a pod's token Secret."""

    tokens: frozenset[TokenRequest]
    needs_ca: bool
    """Whether a token volume contains home's CA certificate."""


def service_account_name(home: Object) -> str:
    return str((home.get("spec") or {}).get("serviceAccountName") or "default")


def pod_ref_of(home: Object) -> PodRef:
    return PodRef(HomeNamespace(namespace_of(home)), name_of(home), uid_of(home))


def required_tokens(home: Object) -> RequiredTokens:
    """The distinct tokens that the pod's volumes request."""
    volumes = [v for v in (home.get("spec") or {}).get("volumes") or () if _has_token(v)]
    sources = [source for volume in volumes for source in volume["projected"]["sources"]]
    tokens = [s["serviceAccountToken"] for s in sources if "serviceAccountToken" in s]
    return RequiredTokens(
        frozenset(map(_token_request, tokens)), needs_ca=any(map(_is_ca, sources))
    )


def _token_request(source: Object) -> TokenRequest:
    return TokenRequest(
        str(source.get("audience") or ""),
        int(source.get("expirationSeconds") or _DEFAULT_EXPIRATION_SECONDS),
    )


def _has_token(volume: Object) -> bool:
    sources = (volume.get("projected") or {}).get("sources") or ()
    return any("serviceAccountToken" in source for source in sources)


def _is_ca(source: Object) -> bool:
    return (source.get("configMap") or {}).get("name") == references.ROOT_CA


def token_secret_name(uid: str) -> str:
    return f"{references.TOKEN_PREFIX}{uid}"


def token_secret(
    home: Object, identity: Identity, data: Mapping[str, str], times: Mapping[str, TokenTimes]
) -> Object:
    """The token Secret with this data. It has no origin annotations, because it is not a copy."""
    ref = pod_ref_of(home)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": token_secret_name(ref.uid),
            "namespace": identity.remote_namespace(ref.namespace),
            "labels": owner_labels(identity),
            "annotations": {
                ANNOTATION_TOKEN_POD: str(ref),
                ANNOTATION_TOKEN_POD_UID: ref.uid,
                ANNOTATION_TOKEN_TIMES: format_token_times(times),
            },
        },
        "type": "Opaque",
        "data": {key: encode_secret_value(text) for key, text in data.items()},
    }


def encode_secret_value(text: str) -> str:
    return b64encode(text.encode()).decode()


def format_token_times(times: Mapping[str, TokenTimes]) -> str:
    return json.dumps(times, separators=(",", ":"), sort_keys=True)


def parse_token_times(token_secret: Object) -> dict[str, TokenTimes]:
    """The times in the annotation, without invalid entries and keys without a token."""
    text = (metadata(token_secret).get("annotations") or {}).get(ANNOTATION_TOKEN_TIMES) or "{}"
    data = token_secret.get("data") or {}
    try:
        return {
            key: TokenTimes(*map(str, it)) for key, it in json.loads(text).items() if data.get(key)
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def pod_of_token_secret(token_secret: Object) -> PodRef | None:
    """The home pod of a token Secret in the remote; None for other Secrets."""
    annotations = metadata(token_secret).get("annotations") or {}
    namespace, _, name = str(annotations.get(ANNOTATION_TOKEN_POD) or "").partition("/")
    uid = str(annotations.get(ANNOTATION_TOKEN_POD_UID) or "")
    if not (namespace and name) or name_of(token_secret) != token_secret_name(uid):
        return None
    return PodRef(HomeNamespace(namespace), name, uid)


def apply_service_account(
    spec: Object, home: Object, policy: Policy, dropped: list[FieldMessage]
) -> None:
    spec["automountServiceAccountToken"] = False
    if policy.service_accounts == "home":
        name = token_secret_name(uid_of(home))
        grouped = (spec.get("securityContext") or {}).get("fsGroup") is not None
        mode = _FS_GROUP_MODE if grouped else None
        set_or_remove(
            spec,
            "volumes",
            [_volume_from_secret(it, name, mode) for it in spec.get("volumes") or ()],
        )
        if policy.home_api is not None:
            variables = _api_server_environment(policy.home_api)
            replace_containers(spec, lambda container: _with_env(container, variables))
        return
    added = _remove_admission_volume(spec)
    if policy.service_accounts == "remote":
        spec["serviceAccountName"] = service_account_name(home)
        automount = (home.get("spec") or {}).get("automountServiceAccountToken")
        spec["automountServiceAccountToken"] = bool(added) if automount is None else automount
    else:
        set_or_remove(
            spec,
            "volumes",
            [_remove_token_sources(it, dropped) for it in spec.get("volumes") or ()],
        )


def _volume_from_secret(volume: Object, name: str, mode: int | None) -> Object:
    if not _has_token(volume):
        return volume
    sources = [_source_from_secret(source, name, mode) for source in volume["projected"]["sources"]]
    return {**volume, "projected": {**volume["projected"], "sources": sources}}


def _source_from_secret(source: Object, name: str, mode: int | None) -> Object:
    if "serviceAccountToken" in source:
        token = source["serviceAccountToken"]
        item = {"key": _token_request(token).key, "path": token["path"]}
        if mode is not None:
            item["mode"] = mode
        return {"secret": {"name": name, "items": [item]}}
    if _is_ca(source):
        secret = {"items": [{"key": CA_KEY, "path": CA_KEY}], **source["configMap"], "name": name}
        return {"secret": secret}
    return source


def _api_server_environment(api: HostPort) -> dict[str, str]:
    """The variables that a kubelet creates for home's Service ``kubernetes`` (pkg/kubelet/envvars).
    Their names contain port 443, independent of the address."""
    port = str(api.port)
    url = f"tcp://{api}"
    return {
        "KUBERNETES_SERVICE_HOST": api.host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
        "KUBERNETES_PORT": url,
        "KUBERNETES_PORT_443_TCP": url,
        "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
        "KUBERNETES_PORT_443_TCP_PORT": port,
        "KUBERNETES_PORT_443_TCP_ADDR": api.host,
    }


def _with_env(container: Object, variables: Mapping[str, str]) -> Object:
    """The container with these variables first, so that its own variables can reference them."""
    existing = container.get("env") or []
    names = {variable["name"] for variable in existing}
    added = [{"name": key, "value": text} for key, text in variables.items() if key not in names]
    return {**container, "env": [*added, *existing]}


def _remove_admission_volume(spec: Object) -> set[str]:
    """Removes the volume that home's admission added, with its mounts; returns its name."""
    mounted = {
        mount.get("name")
        for container in references.all_containers(spec)
        for mount in container.get("volumeMounts") or ()
        if mount.get("mountPath") == _TOKEN_MOUNT
    }
    volumes = spec.get("volumes") or ()
    added = {it["name"] for it in volumes if it["name"] in mounted and _has_token(it)}
    set_or_remove(spec, "volumes", [it for it in volumes if it["name"] not in added])
    replace_containers(spec, lambda container: _remove_mounts(container, added))
    return added


def _remove_token_sources(volume: Object, dropped: list[FieldMessage]) -> Object:
    if not _has_token(volume):
        return volume
    path = f"spec.volumes[{volume['name']}].projected.serviceAccountToken"
    dropped.append(FieldMessage(path, "tokens of home's service accounts stay at home"))
    kept = [it for it in volume["projected"]["sources"] if "serviceAccountToken" not in it]
    return {**volume, "projected": {**volume["projected"], "sources": kept}}


def _remove_mounts(container: Object, volumes: set[str]) -> Object:
    mounts = container.get("volumeMounts")
    if not mounts or not volumes:
        return container
    kept = [mount for mount in mounts if mount.get("name") not in volumes]
    changed = dict(container)
    set_or_remove(changed, "volumeMounts", kept)
    return changed
