"""Certificates and kubeconfig files."""

from __future__ import annotations

import ssl
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from e2e.clusters.certificates import (
    Authority,
    service_account_keys,
    write_kubeconfig,
    write_private,
)


def test_a_certificate_carries_user_groups_and_hosts_and_is_signed(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "ca", "home-ca")
    pair = authority.issue("server", "me", groups=["system:nodes"], hosts=["node", "10.1.2.3"])
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    assert certificate.subject.rfc4514_string() == "CN=me,O=system:nodes"
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3"]
    certificate.verify_directly_issued_by(authority.certificate)
    context = ssl.create_default_context(cafile=str(authority.files.certificate))
    context.load_cert_chain(pair.certificate, pair.key)


def test_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "ca", "ca")
    keys = [authority.files.key, authority.issue("c", "c").key, service_account_keys(tmp_path).key]
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}
    assert isinstance(authority.private_key, ec.EllipticCurvePrivateKey)


def test_a_file_that_others_could_read_is_not_reused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_kubeconfig_is_named_after_its_cluster_and_can_be_merged(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "ca", "ca")
    users = set()
    for name in ("home", "remote"):
        path = tmp_path / name
        write_kubeconfig(
            path,
            context=name,
            server="https://10.0.0.2:6443",
            authority=authority.files.certificate,
            client=authority.issue("admin", "kubernetes-admin"),
            user="kubernetes-admin",
        )
        config = yaml.safe_load(path.read_text())
        assert config["current-context"] == config["contexts"][0]["name"] == name
        assert config["clusters"][0]["name"] == name
        assert config["contexts"][0]["context"]["user"] == config["users"][0]["name"]
        users.add(config["users"][0]["name"])
    assert len(users) == 2
