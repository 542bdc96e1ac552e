"""A TLS peer that sends records which OpenSSL at the other end answers by itself.

`ControlRecords` completes a handshake and then makes the bytes of requests for a renegotiation (TLS
1.2, of a client: each is answered with an alert) or for new keys (TLS 1.3: each is answered with
new keys of the other side). The keys come from the key log of `ssl`.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

_HANDSHAKE, _APPLICATION_DATA = 22, 23
_TLS_1_2 = b"\x03\x03"
#: A ClientHello without a body, and a KeyUpdate that requests one.
_HELLO, _KEY_UPDATE = b"\x01\x00\x00\x00", b"\x18\x00\x00\x01\x01"


class ControlRecords:
    """One connection, after its handshake. ``context`` must not be used elsewhere."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        version: str,
        server_side: bool = False,
    ) -> None:
        """``version`` is TLSv1_2, for a client only, or TLSv1_3."""
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        context.set_ciphers("ECDHE+AESGCM:!AES256")
        if server_side:
            context.num_tickets = 0
        self.sock = sock
        self._server_side = server_side
        self._version = version
        self._sequence = 1  # Finished was 0
        self._received = bytearray()
        with tempfile.TemporaryDirectory() as folder:
            context.keylog_filename = str(Path(folder) / "keys")
            self._handshake(context)
            lines = (Path(folder) / "keys").read_text().splitlines()
        self._secrets = {line.split()[0]: line.split()[1:] for line in lines if line[:1] != "#"}

    def records(self) -> Iterator[bytes]:
        """Request after request."""
        return self._renegotiations() if self._version == "TLSv1_2" else self._key_updates()

    def _handshake(self, context: ssl.SSLContext) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if self._server_side else "127.0.0.1"
        tls = context.wrap_bio(
            incoming, outgoing, server_side=self._server_side, server_hostname=name
        )
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.sock.sendall(outgoing.read())
                data = self.sock.recv(65536)
                if not data:
                    raise ConnectionResetError("the peer ended the handshake") from None
                self._received += data
                incoming.write(data)
        self.sock.sendall(outgoing.read())

    def _renegotiations(self) -> Iterator[bytes]:
        client_random, master = map(bytes.fromhex, self._secrets["CLIENT_RANDOM"])
        # The first record received is the ServerHello: its head has 5 bytes, the message's 4, and
        # the version 2.
        server_random = bytes(self._received[11:43])
        keys = _prf(master, b"key expansion" + server_random + client_random, 2 * 16 + 2 * 4)
        cipher, salt = AESGCM(keys[:16]), keys[32:36]
        while True:
            number = self._sequence.to_bytes(8, "big")
            head = bytes((_HANDSHAKE,)) + _TLS_1_2
            extra = number + head + len(_HELLO).to_bytes(2, "big")
            payload = number + cipher.encrypt(salt + number, _HELLO, extra)
            yield head + len(payload).to_bytes(2, "big") + payload
            self._sequence += 1

    def _key_updates(self) -> Iterator[bytes]:
        side = "SERVER" if self._server_side else "CLIENT"
        secret = bytes.fromhex(self._secrets[f"{side}_TRAFFIC_SECRET_0"][1])
        while True:  # with TLS_AES_256_GCM_SHA384, OpenSSL's first choice
            cipher, salt = AESGCM(_expand(secret, b"key", 32)), _expand(secret, b"iv", 12)
            inner = _KEY_UPDATE + bytes((_HANDSHAKE,))
            head = bytes((_APPLICATION_DATA,)) + _TLS_1_2 + (len(inner) + 16).to_bytes(2, "big")
            yield head + cipher.encrypt(salt, inner, head)
            secret = _expand(secret, b"traffic upd", 48)


def _prf(secret: bytes, seed: bytes, size: int) -> bytes:
    """P_SHA256 of RFC 5246, section 5."""
    found, a = b"", seed
    while len(found) < size:
        a = hmac.digest(secret, a, hashlib.sha256)
        found += hmac.digest(secret, a + seed, hashlib.sha256)
    return found[:size]


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, section 7.1, without a context."""
    name = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes((len(name),)) + name + b"\x00"
    return HKDFExpand(SHA384(), size, info).derive(secret)
