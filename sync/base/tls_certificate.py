"""Loads a certificate and its private key into a TLS context.

The `ssl` module reads both from files only. These are files in memory, in no directory: no key
stays on a disk when the process is killed.
"""

from __future__ import annotations

import ssl

from sync.base.private_file import memory_file


def load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Makes the context present the certificate (PEM, with its chain) and use the key (PEM).

    Raises ValueError, without content of either, if they are not valid or do not belong together,
    or if the key is encrypted, and OSError if there can be no file in memory.
    """
    with memory_file(certificate) as certificate_file, memory_file(key) as key_file:
        try:
            # Without a password callback, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate_file, key_file, password=lambda: b"")
        except ssl.SSLError as error:
            raise ValueError("the certificate or the key cannot be used") from error
