"""The identity that a pod has towards an API server, by `Policy.service_accounts`.

- ``home``: tokens of home's service account, which home issues for the home pod (`sync.pods.service_account_tokens`
  asks for them). They are in one Secret of the remote per pod, with home's CA beside them, and
  each token source of a volume reads that Secret. The environment names home's API server.
  Under ``fsGroup`` the group alone may read a token, as of a kubelet. Under ``runAsUser`` alone,
  where a kubelet gives the file to that user with mode 0600, it has the volume's mode: a Secret's
  file belongs to root.
- ``remote``: the account of the same name in the remote, whose admission adds the volume.
- ``none``: no identity. The volume that home's admission added goes without a word, with its
  mounts; a token that the pod's author asked for by name is reported.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from translators.fieldpaths import FieldMessage, replace_containers, set_or_remove
from translators.identity import DOMAIN, Identity, owner_labels
from translators.names import short_hash
from translators.objects import HomeNamespace, Object, metadata, name_of, namespace_of, uid_of
from translators.pods import references
from translators.translation_policy import HostPort, Policy

#: Where the API server mounts the token volume that it adds to each container
#: (plugin/pkg/admission/serviceaccount).
_TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  # a path
#: Seconds of a token whose source names none (the API's default for the field).
_LIFE = 3600
#: A token's file under ``fsGroup`` (collectData in pkg/volume/projected), to which the kubelet then
#: gives the group the right to read.
_GROUPS_MODE = 0o600
#: The key of the CA, in its ConfigMap and in our Secret.
CA_KEY = "ca.crt"
#: Of our Secret: the home pod, as ``namespace/name``, and its UID; and when each key is due to be
#: renewed and expires, as JSON ``{key: [renew, expires]}`` in RFC 3339.
ANNOTATION_TOKEN_POD = f"{DOMAIN}/token-pod"
ANNOTATION_TOKEN_POD_UID = f"{DOMAIN}/token-pod-uid"
ANNOTATION_TOKEN_TIMES = f"{DOMAIN}/token-times"


class TokenRequest(NamedTuple):
    """A token as a volume asks for it: ``audience`` "" is the API server itself."""

    audience: str
    expiration_seconds: int

    @property
    def key(self) -> str:
        """Its key in the Secret."""
        text = json.dumps(self)
        return f"token-{short_hash(text)}"


class TokenTimes(NamedTuple):
    """RFC 3339."""

    renew_at: str
    expires_at: str


class PodRef(NamedTuple):
    """A home pod, this very one and not another of its name."""

    namespace: HomeNamespace
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class RequiredTokens:
    """What the Secret of a pod has to hold."""

    tokens: frozenset[TokenRequest]
    needs_ca: bool
    """Whether home's CA is read beside a token."""


def service_account_name(home: Object) -> str:
    """The name of the pod's service account."""
    return str((home.get("spec") or {}).get("serviceAccountName") or "default")


def pod_ref_of(home: Object) -> PodRef:
    """The pod's own."""
    return PodRef(HomeNamespace(namespace_of(home)), name_of(home), uid_of(home))


def required_tokens(home: Object) -> RequiredTokens:
    """The tokens that the pod's volumes ask for, each once."""
    volumes = [v for v in (home.get("spec") or {}).get("volumes") or () if _has_token(v)]
    sources = [source for volume in volumes for source in volume["projected"]["sources"]]
    tokens = [s["serviceAccountToken"] for s in sources if "serviceAccountToken" in s]
    return RequiredTokens(frozenset(map(_wanted, tokens)), needs_ca=any(map(_is_ca, sources)))


def _wanted(source: Object) -> TokenRequest:
    return TokenRequest(
        str(source.get("audience") or ""), int(source.get("expirationSeconds") or _LIFE)
    )


def _has_token(volume: Object) -> bool:
    sources = (volume.get("projected") or {}).get("sources") or ()
    return any("serviceAccountToken" in source for source in sources)


def _is_ca(source: Object) -> bool:
    return (source.get("configMap") or {}).get("name") == references.ROOT_CA


# -- the Secret ----------------------------------------------------------------------------


def token_secret_name(uid: str) -> str:
    """The Secret of the home pod with this UID. `references` keeps the prefix for us."""
    return f"{references.TOKEN_PREFIX}{uid}"


def token_secret(
    home: Object, identity: Identity, data: Mapping[str, str], times: Mapping[str, TokenTimes]
) -> Object:
    """The Secret with these texts. It names no origin: it is no copy of anything at home."""
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
    """As a Secret's data holds it."""
    return b64encode(text.encode()).decode()


def format_token_times(times: Mapping[str, TokenTimes]) -> str:
    """The annotation of the Secret that tells these times."""
    return json.dumps(times, separators=(",", ":"), sort_keys=True)


def parse_token_times(token_secret: Object) -> dict[str, TokenTimes]:
    """What the annotation tells; what cannot be read, or has no token, is not known."""
    text = (metadata(token_secret).get("annotations") or {}).get(ANNOTATION_TOKEN_TIMES) or "{}"
    data = token_secret.get("data") or {}
    try:
        return {
            key: TokenTimes(*map(str, it)) for key, it in json.loads(text).items() if data.get(key)
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def pod_of_token_secret(token_secret: Object) -> PodRef | None:
    """The home pod that a Secret of the remote is for; None for other Secrets."""
    annotations = metadata(token_secret).get("annotations") or {}
    namespace, _, name = str(annotations.get(ANNOTATION_TOKEN_POD) or "").partition("/")
    uid = str(annotations.get(ANNOTATION_TOKEN_POD_UID) or "")
    if not (namespace and name) or name_of(token_secret) != token_secret_name(uid):
        return None
    return PodRef(HomeNamespace(namespace), name, uid)


# -- the pod -------------------------------------------------------------------------------


def apply_service_account(
    spec: Object, home: Object, policy: Policy, dropped: list[FieldMessage]
) -> None:
    """Gives the new pod's spec the identity that the policy says."""
    spec["automountServiceAccountToken"] = False
    if policy.service_accounts == "home":
        name = token_secret_name(uid_of(home))
        grouped = (spec.get("securityContext") or {}).get("fsGroup") is not None
        mode = _GROUPS_MODE if grouped else None
        set_or_remove(
            spec, "volumes", [_from_secret(it, name, mode) for it in spec.get("volumes") or ()]
        )
        if policy.home_api is not None:
            known = _environment(policy.home_api)
            replace_containers(spec, lambda container: _with_env(container, known))
        return
    added = _without_added(spec)
    if policy.service_accounts == "remote":
        spec["serviceAccountName"] = service_account_name(home)
        said = (home.get("spec") or {}).get("automountServiceAccountToken")
        spec["automountServiceAccountToken"] = bool(added) if said is None else said
    else:
        set_or_remove(
            spec, "volumes", [_without_tokens(it, dropped) for it in spec.get("volumes") or ()]
        )


def _from_secret(volume: Object, name: str, mode: int | None) -> Object:
    if not _has_token(volume):
        return volume
    sources = [_source(source, name, mode) for source in volume["projected"]["sources"]]
    return {**volume, "projected": {**volume["projected"], "sources": sources}}


def _source(source: Object, name: str, mode: int | None) -> Object:
    if "serviceAccountToken" in source:
        token = source["serviceAccountToken"]
        item = {"key": _wanted(token).key, "path": token["path"]}
        if mode is not None:
            item["mode"] = mode
        return {"secret": {"name": name, "items": [item]}}
    if _is_ca(source):
        ours = {"items": [{"key": CA_KEY, "path": CA_KEY}], **source["configMap"], "name": name}
        return {"secret": ours}
    return source


def _environment(api: HostPort) -> dict[str, str]:
    """As a kubelet makes it of home's Service ``kubernetes`` (pkg/kubelet/envvars), whose port
    is 443 in the names, whatever it is at the address."""
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


def _with_env(container: Object, known: Mapping[str, str]) -> Object:
    """First in the list, so that the author's variables can refer to them."""
    given = container.get("env") or []
    names = {variable["name"] for variable in given}
    ours = [{"name": key, "value": text} for key, text in known.items() if key not in names]
    return {**container, "env": [*ours, *given]}


def _without_added(spec: Object) -> set[str]:
    """Takes out the volume that home's admission added, with its mounts; its name."""
    mounted = {
        mount.get("name")
        for container in references.all_containers(spec)
        for mount in container.get("volumeMounts") or ()
        if mount.get("mountPath") == _TOKEN_MOUNT
    }
    volumes = spec.get("volumes") or ()
    added = {it["name"] for it in volumes if it["name"] in mounted and _has_token(it)}
    set_or_remove(spec, "volumes", [it for it in volumes if it["name"] not in added])
    replace_containers(spec, lambda container: _without_mounts(container, added))
    return added


def _without_tokens(volume: Object, dropped: list[FieldMessage]) -> Object:
    if not _has_token(volume):
        return volume
    path = f"spec.volumes[{volume['name']}].projected.serviceAccountToken"
    dropped.append(FieldMessage(path, "tokens of home's service accounts stay at home"))
    kept = [it for it in volume["projected"]["sources"] if "serviceAccountToken" not in it]
    return {**volume, "projected": {**volume["projected"], "sources": kept}}


def _without_mounts(container: Object, volumes: set[str]) -> Object:
    mounts = container.get("volumeMounts")
    if not mounts or not volumes:
        return container
    kept = [mount for mount in mounts if mount.get("name") not in volumes]
    changed = dict(container)
    set_or_remove(changed, "volumeMounts", kept)
    return changed
