"""The identity of a virtual node in the remote, and the namespace template that maps home's
namespaces to remote ones.

``--namespace-template`` names the remote namespace of each home namespace: ``{namespace}`` stands
for the name at home, ``{home}`` for ``--home-name``. A hash replaces the end of a name with more
than 63 characters.
"""

from __future__ import annotations

import functools
import re
import string
from dataclasses import dataclass

from translators.derived_names import DNS_LABEL_MAX, label_value, short_hash
from translators.object_accessors import HomeNamespace, RemoteNamespace

#: A namespace name (RFC 1123 label).
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class NamespaceTemplateError(ValueError):
    """The namespace template does not result in valid, distinct names."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a virtual node in the remote, and how it maps namespaces.

    ``home_id`` is the `home_id_from_uid` of home's kube-system namespace, ``home_name`` the name
    that replaces ``{home}`` in ``namespace_template``.
    """

    home_id: str
    home_name: str
    node: str
    namespace_template: str = "{namespace}-{home}"
    accepted_namespaces: tuple[str, ...] = ()
    """Names or globs of remote namespaces that the bridge may use if the remote grants them."""

    @property
    def node_label(self) -> str:
        """The name of the virtual node as a label value."""
        return label_value(self.node)

    def remote_namespace(self, namespace: HomeNamespace) -> RemoteNamespace:
        """The mapped namespace of ``namespace``.

        Home namespaces of joins with different templates can be mapped to the same remote
        namespace; the annotations of a remote object name its home namespace, and callers compare
        it (`matches_home_namespace`).
        """
        # Only names are cached. An annotation of the remote can have any text.
        is_name = len(namespace) <= DNS_LABEL_MAX
        mapped = _cached_remote_namespace if is_name else _remote_namespace
        return mapped(self.namespace_template, namespace, self.home_name)


def _remote_namespace(template: str, namespace: HomeNamespace, home_name: str) -> RemoteNamespace:
    return RemoteNamespace(label_value(template.format(namespace=namespace, home=home_name)))


#: Called several times for each event.
_cached_remote_namespace = functools.lru_cache(maxsize=4096)(_remote_namespace)


def home_id_from_uid(kube_system_uid: str) -> str:
    """Home's identity, from the UID of its kube-system namespace."""
    return short_hash(kube_system_uid)


def validate_namespace_template(template: str, *, home_name: str) -> None:
    """Raises NamespaceTemplateError unless ``template`` results in valid and distinct names."""
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise NamespaceTemplateError(f"{template!r}: {error}") from error
    fields = {field for _, field, _, _ in parts}
    # A format specification could truncate names, and map two namespaces to one name.
    formatted = any(spec or conversion for _, _, spec, conversion in parts)
    if formatted or fields - {"namespace", "home"}:
        raise NamespaceTemplateError(f"{template!r}: only {{namespace}} and {{home}} can be used")
    if "namespace" not in fields:
        raise NamespaceTemplateError(
            f"{template!r}: {{namespace}} is missing, so all namespaces would have one name"
        )
    sample = template.format(namespace="a", home=home_name)
    if not _DNS_LABEL.fullmatch(sample):
        raise NamespaceTemplateError(
            f"{template!r} gives {sample!r} for namespace 'a': a namespace name consists of "
            "lower case letters, digits and '-', and starts and ends with a letter or digit"
        )
