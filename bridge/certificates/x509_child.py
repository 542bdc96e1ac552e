"""Runs what needs the `cryptography` package in a child process, to save memory
(`bridge.base.memory_savings`).

A bridge needs the package a few times a year: to request a certificate, and to read one. Keys pass
through pipes. Where no child process can be started, the function runs in this process.

``python -m bridge.certificates.x509_child`` reads a call as JSON from standard input and prints its
result.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bridge.base import memory_savings
from bridge.certificates.certificate_kinds import CertificateKind
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair
from sync.kube.api_resources import Object
from translators.timestamps import parse_time


@dataclass(frozen=True, slots=True)
class Inspection:
    """The content of a certificate."""

    begin: datetime
    end: datetime
    missing: list[str]
    """The node's names and addresses that it lacks."""


async def build_csr(
    kind: CertificateKind, key: bytes | None, node_name: str, addresses: Sequence[str]
) -> tuple[bytes, Object]:
    """As `signing_request.build_csr`, with the key of the request: ``key``, or a new one for None.
    Raises CertificateError."""
    found = await _call(
        "build_csr",
        kind=dataclasses.asdict(kind),
        key=key.decode("ascii", "replace") if key is not None else None,
        node=node_name,
        addresses=list(addresses),
    )
    return found["key"].encode(), found["request"]


async def requests_the_same(one: Object, other: Object) -> bool:
    """As `signing_request.requests_the_same`."""
    parts = ("request", "signerName", "usages", "expirationSeconds")
    specs = [{part: (it.get("spec") or {}).get(part) for part in parts} for it in (one, other)]
    if specs[0] == specs[1]:
        return True  # as sent
    is_same: bool = await _call("requests_the_same", one=specs[0], other=specs[1])
    return is_same


async def key_fingerprint(request: Object) -> str:
    """As `signing_request.key_fingerprint`."""
    fingerprint: str = await _call("key_fingerprint", request=request["spec"]["request"])
    return fingerprint


async def is_for_node(kind: CertificateKind, request: Object, node_name: str) -> bool:
    """As `signing_request.is_for_node`."""
    spec = request.get("spec") or {}
    parts = {part: spec.get(part) for part in ("request", "signerName", "usages")}
    is_its: bool = await _call(
        "is_for_node", kind=dataclasses.asdict(kind), spec=parts, node=node_name
    )
    return is_its


async def inspect(pair: TlsKeyPair, node_name: str, addresses: Sequence[str]) -> Inspection:
    """Reads a certificate; without addresses, no names are expected. Raises CertificateError."""
    found = await _call(
        "inspect",
        certificate=pair.certificate.decode("ascii", "replace"),
        node=node_name,
        addresses=list(addresses),
    )
    return Inspection(parse_time(found["begin"]), parse_time(found["end"]), found["missing"])


async def _call(function: str, **arguments: object) -> Any:
    call = json.dumps({"function": function, "arguments": arguments}).encode()
    output = await memory_savings.run_module("bridge.certificates.x509_child", data=call)
    answer = json.loads(output) if output is not None else _answer(json.loads(call))
    if "error" in answer:
        raise CertificateError(answer["error"])
    return answer["result"]


# -- in the child process --------------------------------------------------------------------------


def _answer(call: Object) -> Object:
    from bridge.certificates import signing_request, x509_builder

    def kind_of(fields: Object) -> CertificateKind:
        return CertificateKind(**{**fields, "usages": tuple(fields["usages"])})

    def built(kind: Object, key: str | None, node: str, addresses: list[str]) -> Object:
        pem = key.encode() if key is not None else signing_request.generate_key()
        request = signing_request.build_csr(kind_of(kind), pem, node, addresses)
        return {"key": pem.decode(), "request": request}

    def same(one: Object, other: Object) -> bool:
        return signing_request.requests_the_same({"spec": one}, {"spec": other})

    def for_node(kind: Object, spec: Object, node: str) -> bool:
        return signing_request.is_for_node(kind_of(kind), {"spec": spec}, node)

    def fingerprint(request: str) -> str:
        return signing_request.key_fingerprint({"spec": {"request": request}})

    def inspected(certificate: str, node: str, addresses: list[str]) -> Object:
        pair = TlsKeyPair(certificate.encode(), b"")
        begin, end = x509_builder.validity(pair)
        missing = x509_builder.missing_names(pair, node, addresses) if addresses else []
        return {"begin": begin.isoformat(), "end": end.isoformat(), "missing": missing}

    functions: dict[str, Callable[..., Any]] = {
        "build_csr": built,
        "requests_the_same": same,
        "key_fingerprint": fingerprint,
        "is_for_node": for_node,
        "inspect": inspected,
    }
    try:
        return {"result": functions[call["function"]](**call["arguments"])}
    except CertificateError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
