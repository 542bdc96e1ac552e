"""Builds the server block for the remote's CoreDNS that gives names of home's Services the meaning
that they have at home. Pure.

Within a namespace names are the same on both sides. A name with a namespace (``web.shop``,
``web.shop.svc``, ``web.shop.svc.cluster.local``) is not, if the namespace template gives the remote
namespace another name (``shop-e2e``): the pod's search domains and the name itself have home's
namespace. Search domains cannot map it, since they only append, so the DNS server has to.

- The block applies to queries of pods in namespaces that the template results in, by the client's
  address. Queries of other clients, and those for other domains, reach the blocks that CoreDNS
  already has.
- A name with home's namespace is resolved with the remote's, and the response has the queried name.
- A name that already has a remote namespace of the template is unchanged; so is that of the
  remote's API server, ``kubernetes.default``.
- A namespace whose remote name is cut to 63 characters is not mapped. Neither is the target of a
  Service of type ExternalName: CoreDNS resolves it without the rules.

Template and home's name come from annotations of the Node, which any user of Nodes may have
changed. Text that is not part of a namespace name is rejected, so that it cannot add directives.
"""

from __future__ import annotations

import re

from bridge.base.command_error import BridgeError
from bridge.base.join_settings import invalid_option
from translators.virtual_node_identity import (
    Identity,
    NamespaceTemplateError,
    validate_namespace_template,
)

#: The longest name of a namespace (RFC 1123 label).
MAX_LABEL = 63
#: The longest domain name (RFC 1035, 2.3.4).
MAX_DOMAIN = 253
DEFAULT_DOMAIN = "cluster.local"

_PART = re.compile(r"[-a-z0-9]*")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
#: Stands for the namespace while the template is split; no namespace has it.
_MARK = "\0"


class DnsError(BridgeError):
    """The server block is not needed, or cannot be built."""


def server_block(identity: Identity, domain: str = DEFAULT_DOMAIN) -> str:
    """The server block for a remote with this cluster domain, a value of `check_domain`. Raises
    DnsError."""
    prefix, suffix = _affixes(identity)
    longest = MAX_LABEL - len(prefix) - len(suffix)
    namespace = f"[-a-z0-9]{{1,{longest}}}"
    remote = f"{prefix}{namespace}{suffix}"
    mapped = f"{{1}}.{prefix}{{2}}{suffix}.svc.{domain}."
    tail = re.escape(f".{domain}.").replace(r"\-", "-")
    return f"""\
# cluster-bridge: names of home's Services in pods of the virtual node {identity.node}.
{domain}:53 {{
    view {prefix}namespace{suffix} {{
        expr metadata('kubernetes/client-namespace') matches '^{remote}$'
    }}
    metadata
    errors
    rewrite stop name exact kubernetes.default.svc.{domain} kubernetes.default.svc.{domain}
    rewrite stop name regex ^(.+\\.)?({remote})\\.(svc|pod){tail}$ {{1}}{{2}}.{{3}}.{domain}.
    rewrite stop {{
        name regex ^(.+)\\.({namespace})\\.svc{tail}$ {mapped}
        answer auto
    }}
    kubernetes {domain} {{
        pods verified
    }}
    loadbalance
}}
"""


def check_domain(text: str) -> str:
    """A cluster domain. Raises SettingsError."""
    if not _DOMAIN.fullmatch(text) or len(text) > MAX_DOMAIN:
        raise invalid_option("--cluster-domain", text, "a domain name", DEFAULT_DOMAIN)
    return text


def _affixes(identity: Identity) -> tuple[str, str]:
    """The template's text before and after the namespace. Raises DnsError."""
    template = identity.namespace_template
    try:
        validate_namespace_template(template, home_name=identity.home_name)
    except NamespaceTemplateError as error:
        raise DnsError(f"home: the Node's namespace template: {error}") from error
    parts = template.format(namespace=_MARK, home=identity.home_name).split(_MARK)
    if len(parts) != 2:
        raise DnsError(
            f"home: the namespace template {template!r} of {identity.node} has the namespace more "
            "than once, which no server block can map: join with another --namespace-template"
        )
    prefix, suffix = parts
    if not (_PART.fullmatch(prefix) and _PART.fullmatch(suffix)):
        raise DnsError(
            f"home: the namespace template {template!r} of {identity.node} with {{home}} as "
            f"{identity.home_name!r} has characters that no namespace has: join the node again"
        )
    if not prefix and not suffix:
        raise DnsError(
            f"home: {identity.node} keeps home's namespaces ({template!r}), so names already mean "
            "the same on both sides: no server block is needed"
        )
    if len(prefix) + len(suffix) >= MAX_LABEL:
        raise DnsError(
            f"home: the namespace template {template!r} of {identity.node} leaves no room for a "
            f"namespace in {MAX_LABEL} characters, so every remote name is cut: join with a "
            "shorter --home-name"
        )
    return prefix, suffix
