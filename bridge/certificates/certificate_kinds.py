"""The certificates that a node requests from home, and the names of the requests. Pure.

A `CertificateKind` declares what a signer of Kubernetes expects
(k8s.io/kubernetes/pkg/apis/certificates/helpers.go).
"""

from __future__ import annotations

from dataclasses import dataclass

from sync.kube.api_resources import Object
from translators.object_accessors import name_of

#: A request's name: a prefix, the node's name, and this many hexadecimal digits of a hash.
DIGEST_LENGTH = 10
#: Characters of the node's name in the request's name, which may have 253 in all.
_NODE_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class CertificateKind:
    """One kind of certificate that a node gets from a signer."""

    title: str
    """For people: "the kubelet API's certificate"."""
    signer: str
    usages: tuple[str, ...]
    """Usages of an ECDSA key; an RSA key would need "key encipherment" too."""
    prefix: str
    """The beginning of the names of such requests."""

    def request_name_prefix(self, node_name: str) -> str:
        """The names of the node's CertificateSigningRequests without the digest."""
        return f"{self.prefix}{node_name[:_NODE_NAME_LENGTH]}-"

    def is_request_of(self, request: Object, node_name: str) -> bool:
        """Whether this CertificateSigningRequest has such a name of the node."""
        name, dash, digest = name_of(request).rpartition("-")
        return name + dash == self.request_name_prefix(node_name) and len(digest) == DIGEST_LENGTH


#: Authenticates the kubelet API.
SERVING = CertificateKind(
    title="the kubelet API's certificate",
    signer="kubernetes.io/kubelet-serving",
    usages=("digital signature", "server auth"),
    prefix="kubelet-serving-",
)
#: Authenticates the bridge at home as ``system:node:NAME``.
CLIENT = CertificateKind(
    title="the certificate of the node's identity",
    signer="kubernetes.io/kube-apiserver-client-kubelet",
    usages=("digital signature", "client auth"),
    prefix="kubelet-client-",
)
