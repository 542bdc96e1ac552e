"""The signer of kubelet serving certificates in home, and the administrator who approves them.

After pkg/controller/certificates/signer and pkg/apis/certificates/helpers.go
(ValidateKubeletServingCSR): invalid requests get the condition Failed.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, Object
from tests.fakeapi.server import FakeApi
from tests.fakeapi.store import timestamp

_SIGNER = "kubernetes.io/kubelet-serving"
_USAGES = [
    {"digital signature", "server auth"},
    {"digital signature", "key encipherment", "server auth"},
]


class Signer:
    """Signs CertificateSigningRequests that a test approves."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "signer")])
        self.lasts = timedelta(days=365)
        """The lifetime of signed certificates."""
        self.names: x509.SubjectAlternativeName | None = None
        """Names to sign instead of the requested ones."""
        self.ca = _pem(self._sign(self._name, self._key.public_key(), None)).decode()

    def requests(self) -> list[str]:
        """The names of pending requests."""
        found = self._api.objects(CERTIFICATE_SIGNING_REQUESTS)
        return [it["metadata"]["name"] for it in found if not it.get("status")]

    async def requested(self) -> str:
        """Waits for a pending request; returns its name."""
        await self._api.until(self.requests)
        (name,) = self.requests()
        return name

    def approve(self, name: str) -> None:
        """Approves the request, as ``kubectl certificate approve``, and signs it."""
        self._sign_approved(name, [_condition("Approved", "KubectlApprove")])

    def sign(self, name: str) -> None:
        """Signs a request that a user has approved."""
        status = self._api.get(CERTIFICATE_SIGNING_REQUESTS, name)["status"]
        assert [it["type"] for it in status["conditions"]] == ["Approved"]
        self._sign_approved(name, status["conditions"])

    def _sign_approved(self, name: str, conditions: list[Object]) -> None:
        spec = self._api.get(CERTIFICATE_SIGNING_REQUESTS, name)["spec"]
        request = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
        if wrong := _fault(request, spec):
            conditions.append(_condition("Failed", "SignerValidationFailure", wrong))
            self._decide(name, {"conditions": conditions})
            return
        key = request.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        signed = _pem(self._sign(request.subject, key, self.names or names))
        encoded = base64.b64encode(signed).decode()
        self._decide(name, {"conditions": conditions, "certificate": encoded})

    def deny(self, name: str) -> None:
        """Denies the request, as ``kubectl certificate deny``."""
        self._decide(name, {"conditions": [_condition("Denied", "KubectlDeny", "not here")]})

    def _decide(self, name: str, status: Object) -> None:
        self._api.update(CERTIFICATE_SIGNING_REQUESTS, name, {"status": status})

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        names: x509.SubjectAlternativeName | None,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + self.lasts)
            .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _fault(request: x509.CertificateSigningRequest, spec: Object) -> str:
    organizations = _values(request, NameOID.ORGANIZATION_NAME)
    (common,) = _values(request, NameOID.COMMON_NAME)
    names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if spec["signerName"] != _SIGNER:
        return "this is another signer's"
    if not request.is_signature_valid:
        return "the request is not signed by its key"
    if organizations != ["system:nodes"] or not common.startswith("system:node:"):
        return "subject organization is not system:nodes, or common name is no node's"
    if any(isinstance(name, x509.RFC822Name | x509.UniformResourceIdentifier) for name in names):
        return "email and URI SANs are not allowed"
    return "" if set(spec["usages"]) in _USAGES else "usages did not match"


def _values(request: x509.CertificateSigningRequest, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(it.value) for it in request.subject.get_attributes_for_oid(oid)]


def _condition(kind: str, reason: str, message: str = "") -> Object:
    now = timestamp()
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastUpdateTime": now,
        "lastTransitionTime": now,
    }


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
