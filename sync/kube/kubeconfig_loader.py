"""Makes an `Endpoint` and a `Credential` of a selected context, by the loader of `kubernetes`.

The loader of the package, `KubeConfigLoader`, is new for each read. It gets one context whose
fields are checked, without files and certificates, and only the credential that kubectl would use:
a token or a user name keeps a plugin and an OIDC issuer from being asked, a client certificate
keeps a plugin from it. Without TLS no credential is read, and only impersonation applies.

Two of its methods are replaced, because those of the package are unsafe:

- `load_from_exec_plugin` there logs a failure, after which requests would be anonymous, drops the
  certificate beside a token, writes keys to files, and ends no plugin (`credential_plugins`).
- `_load_oid_token` there does not verify the issuer without a CA, renews tokens five minutes early,
  rejects many valid tokens, and cannot write the next refresh token back (`oidc`).

Failures raise `KubeconfigError`, `OidcError` or OSError, without content of the files.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.kube_config import KubeConfigLoader

from sync.kube import credential_plugins, kubeconfig, oidc
from sync.kube.endpoint import Credential, Endpoint, usable_proxy, usable_server
from sync.kube.kubeconfig import Entry, KubeconfigError, Selection, Sources
from translators.object_accessors import Object

#: The extension of a cluster that exec plugins receive (client-go's tools/clientcmd/api/v1).
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"
#: Bytes allowed in a header name (RFC 9110, token), without the percent sign, which escapes.
_TOKEN_BYTES = frozenset(
    b"!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


@dataclass(frozen=True, slots=True)
class LoadedContext:
    """A context with all that its files, plugin or issuer contribute."""

    endpoint: Endpoint
    credential: Credential
    context: str
    namespace: str
    """The namespace of the context; "" if it names none."""
    own_token: str = field(repr=False)
    """The bearer token, if the kubeconfig itself contains it."""
    renews_itself: bool
    """Whether a plugin, an OIDC issuer or a token file renews the credential."""


async def load(
    selection: Selection, sources: Sources, renewed_tokens: oidc.RenewedTokens
) -> LoadedContext:
    """Reads the files that the context names, and obtains the credential from the exec plugin or
    the OIDC issuer if the user has one."""
    authorities = kubeconfig.file_or_data(sources, selection.cluster, "certificate-authority")
    user = selection.user
    if not kubeconfig.uses_tls(selection.cluster):
        user = Entry(user.at, {}, user.file)
    certificate, key = kubeconfig.client_certificate(sources, user)
    token, own = kubeconfig.bearer_token(sources, user)
    fields = _used_fields(user, token, has_certificate=bool(certificate))
    loader = _Loader(selection, fields, authorities, renewed_tokens)
    loaded = SimpleNamespace(api_key={}, verify_ssl=True, tls_server_name=None, proxy=None)
    try:
        await loader.load_and_set(loaded)  # type: ignore[no-untyped-call]
    except ConfigException:  # its text can contain the user
        raise KubeconfigError("it cannot be loaded; see `kubectl config view`") from None
    if "auth-provider" in fields:
        sources.read(user.file)  # `oidc` may have just written it
    server = usable_server(loaded.host)
    return LoadedContext(
        endpoint=Endpoint(
            server=server,
            authorities=authorities,
            skips_verification=not loaded.verify_ssl,
            tls_server_name=loaded.tls_server_name,
            proxy=usable_proxy(server, loaded.proxy),
        ),
        credential=Credential(
            authorization=loaded.api_key.get("BearerToken", ""),
            certificate=certificate or loader.returned.certificate,
            key=key or loader.returned.key,
            impersonation=_impersonation(selection.user),
        ),
        context=selection.context,
        namespace=selection.namespace,
        own_token=token if own else "",
        renews_itself=not {"exec", "auth-provider", "tokenFile"}.isdisjoint(user.fields),
    )


class _Loader(KubeConfigLoader):
    """The package's loader for one context with these fields of the user."""

    def __init__(
        self,
        selection: Selection,
        user: Object,
        authorities: bytes | None,
        renewed_tokens: oidc.RenewedTokens,
    ) -> None:
        self.returned = Credential()
        """The credential of the exec plugin."""
        self._selection = selection
        self._authorities = authorities
        self._renewed_tokens = renewed_tokens
        name = selection.context
        cluster = selection.cluster.fields.items()
        super().__init__(  # type: ignore[no-untyped-call]
            {
                "current-context": name,
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "clusters": [{"name": name, "cluster": {k: v for k, v in cluster if k not in _CA}}],
                "users": [{"name": name, "user": user}],
            }
        )

    async def load_from_exec_plugin(self) -> bool:
        """Runs the plugin. Returns whether no other credential is needed."""
        user = self._selection.user
        command = user.fields["exec"]
        program = command["command"]
        if os.sep in program:
            program = str(user.file.absolute().parent / program)
        plugin = credential_plugins.Plugin(
            program=program,
            arguments=command.get("args", []),
            variables={item["name"]: item.get("value", "") for item in command.get("env", ())},
            api_version=command["apiVersion"],
            interactive=command.get("interactiveMode", "IfAvailable"),
            cluster=self._cluster_info() if "provideClusterInfo" in command else None,
        )
        try:
            self.returned = await credential_plugins.run(plugin)
        except credential_plugins.CredentialPluginError as failed:
            raise KubeconfigError(f"the credential plugin ({user.at}.exec) {failed}") from None
        self.token = self.returned.authorization
        return True

    def _cluster_info(self) -> Object:
        """The ``cluster`` of an ExecCredential's spec (client.authentication.k8s.io/v1)."""
        fields = self._selection.cluster.fields
        info = {name: fields[name] for name in _CLUSTER_INFO if name in fields}
        info["server"] = info["server"].rstrip("/")
        if self._authorities:
            info["certificate-authority-data"] = base64.b64encode(self._authorities).decode()
        for extension in fields.get("extensions", ()):
            if extension.get("name") == _EXEC_EXTENSION:
                info["config"] = extension.get("extension")
        return info

    async def _load_oid_token(self) -> None:
        user = self._selection.user
        config = user.fields["auth-provider"].get("config", {})
        self.token = f"Bearer {await oidc.id_token(user.file, config, self._renewed_tokens)}"


#: Fields of a cluster that the package's loader would write to files.
_CA = ("certificate-authority", "certificate-authority-data")
#: Fields of a cluster that a plugin receives as they are.
_CLUSTER_INFO = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "proxy-url",
    "disable-compression",
)


def _used_fields(user: Entry, token: str, *, has_certificate: bool) -> Object:
    """The fields of the credential that kubectl would use beside a client certificate."""
    fields = user.fields
    if "auth-provider" in fields:
        _check_provider(user)
    if token:
        return {"token": token}
    if "username" in fields:
        return {"username": fields["username"], "password": fields.get("password", "")}
    if "exec" in fields and not has_certificate:
        return {"exec": fields["exec"]}
    if "auth-provider" in fields:
        return {"auth-provider": fields["auth-provider"]}
    return {}


def _check_provider(user: Entry) -> None:
    """Raises KubeconfigError and OidcError for an auth-provider that kubectl rejects."""
    provider: Object = user.fields["auth-provider"]
    if (name := provider.get("name", "")) != "oidc":
        raise KubeconfigError(
            f"{user.at}.auth-provider {name!r} is not supported, as in kubectl since 1.26; use an "
            "exec plugin"
        )
    oidc.check(user.file, provider.get("config", {}))


def _impersonation(user: Entry) -> tuple[tuple[str, str], ...]:
    """The headers of client-go's impersonatingRoundTripper (transport/round_trippers.go)."""
    headers = tuple(_impersonation_headers(user.fields))
    for _, value in headers:
        # A server may trim a value, and take it for another user.
        if not (value.isprintable() and value.isascii() and value == value.strip()):
            raise KubeconfigError(f"{user.at}: a field as… cannot be sent in a header")
    return headers


def _impersonation_headers(fields: Object) -> Iterator[tuple[str, str]]:
    if "as" in fields:
        yield "Impersonate-User", fields["as"]
    if "as-uid" in fields:
        yield "Impersonate-Uid", fields["as-uid"]
    for group in fields.get("as-groups", ()):
        yield "Impersonate-Group", group
    for key, values in fields.get("as-user-extra", {}).items():
        for value in values:
            yield f"Impersonate-Extra-{_escaped(key)}", value


def _escaped(key: str) -> str:
    """A key as part of a header name: other characters are percent-encoded."""
    return "".join(
        chr(byte) if byte in _TOKEN_BYTES else f"%{byte:02X}" for byte in key.encode("utf-8")
    )
