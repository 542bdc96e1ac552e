"""CertificateSigningRequests: names, comparison, outcome."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bridge.certificates.certificate_kinds import CLIENT
from bridge.certificates.certificate_kinds import SERVING as KIND
from bridge.certificates.signing_outcome import Rejected, csr_outcome
from bridge.certificates.signing_request import (
    build_csr,
    generate_key,
    key_fingerprint,
    requests_the_same,
)
from bridge.certificates.tls_key_pair import CertificateError
from tests.bridge.certificates.running_source import ADDRESS, NODE


def test_request_name_depends_on_key_and_names() -> None:
    key = generate_key()
    one = build_csr(KIND, key, NODE, [ADDRESS])["metadata"]["name"]
    assert one.startswith("kubelet-serving-virtual-")
    assert build_csr(KIND, key, NODE, [ADDRESS])["metadata"]["name"] == one
    assert build_csr(KIND, key, NODE, ["192.0.2.8"])["metadata"]["name"] != one
    assert build_csr(KIND, generate_key(), NODE, [ADDRESS])["metadata"]["name"] != one
    assert len(build_csr(KIND, key, "n" * 253, [ADDRESS])["metadata"]["name"]) <= 253


@pytest.mark.parametrize("key", [b"", b"nonsense"])
def test_invalid_key_raises(key: bytes) -> None:
    with pytest.raises(CertificateError, match="the stored key"):
        build_csr(KIND, key, NODE, [ADDRESS])


def test_outcome_by_status() -> None:
    approved = {"type": "Approved", "status": "True"}
    assert csr_outcome({}) is None
    assert csr_outcome({"status": {"conditions": [approved]}}) is None
    assert csr_outcome({"status": {"certificate": "AAAA"}}) is None
    failed = {"type": "Failed", "reason": "SignerValidationFailure", "message": "why"}
    assert csr_outcome({"status": {"conditions": [approved, failed]}}) == Rejected(
        "cannot be signed: SignerValidationFailure, why"
    )
    assert csr_outcome({"status": {"conditions": [{"type": "Denied"}]}}) == Rejected(
        "was denied: no reason is given"
    )
    assert csr_outcome({"status": {"conditions": [approved], "certificate": "!"}}) == Rejected(
        "was signed, but status.certificate is not base64"
    )


def test_client_certificate_has_no_alternative_names() -> None:
    request = build_csr(CLIENT, generate_key(), NODE)
    assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
    assert request["spec"]["usages"] == ["digital signature", "client auth"]
    assert request["metadata"]["name"].startswith("kubelet-client-virtual-")
    parsed = x509.load_pem_x509_csr(base64.b64decode(request["spec"]["request"]))
    assert not list(parsed.extensions)
    assert parsed.subject.rfc4514_string() == "CN=system:node:virtual,O=system:nodes"


def test_repeated_request_of_one_key_is_the_same_despite_its_new_signature() -> None:
    key = generate_key()
    one, other = (build_csr(KIND, key, NODE, [ADDRESS]) for _ in range(2))
    assert one["spec"]["request"] != other["spec"]["request"]
    assert requests_the_same(one, other)


@pytest.mark.parametrize(
    "change",
    [
        {"signerName": CLIENT.signer},
        {"usages": ["digital signature", "server auth", "client auth"]},
        {"expirationSeconds": 600},
        {"request": ""},
        {"request": "nonsense"},
        {"request": 7},
        {"request": build_csr(KIND, generate_key(), NODE, [ADDRESS])["spec"]["request"]},
    ],
    ids=["signer", "usages", "lifetime", "empty", "malformed", "wrong type", "another key"],
)
def test_changed_request_is_not_the_same(change: dict[str, Any]) -> None:
    own = build_csr(KIND, generate_key(), NODE, [ADDRESS])
    assert not requests_the_same(own, {**own, "spec": {**own["spec"], **change}})


def test_request_for_more_names_is_not_the_same() -> None:
    key = generate_key()
    own = build_csr(KIND, key, NODE, [ADDRESS])
    assert not requests_the_same(own, build_csr(KIND, key, NODE, [ADDRESS, "192.0.2.8"]))
    assert not requests_the_same(own, build_csr(KIND, key, "other", [ADDRESS]))


def test_tampered_signature_is_not_the_same() -> None:
    own = build_csr(KIND, generate_key(), NODE, [ADDRESS])
    parsed = x509.load_pem_x509_csr(base64.b64decode(own["spec"]["request"]))
    encoded = parsed.public_bytes(Encoding.DER)
    body = base64.b64encode(encoded[:-1] + bytes([encoded[-1] ^ 1])).decode()
    pem = f"-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n"
    changed = base64.b64encode(pem.encode()).decode()
    assert not requests_the_same(own, {**own, "spec": {**own["spec"], "request": changed}})


def test_fingerprint_is_the_digest_of_the_public_key() -> None:
    own = build_csr(KIND, generate_key(), NODE, [ADDRESS])
    parsed = x509.load_pem_x509_csr(base64.b64decode(own["spec"]["request"]))
    der = parsed.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert key_fingerprint(own) == hashlib.sha256(der).hexdigest()
