"""The directory (`--cert-dir`) that keeps certificates signed by home across restarts.

A user or a controller has to approve each CertificateSigningRequest, so a restart must not need
another one. The directory belongs to one node and holds for each purpose (`Purpose`) the
certificate with its key, and the key of a pending request. Files have mode 0600, the directory
0700; a file is replaced atomically. `CertificateError` names the file that cannot be read or
written.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair, parse_pem
from sync.base.private_file import state_directory, write_private_file

#: The serving certificate of the kubelet API, or the client certificate of the node's identity.
Purpose = Literal["serving", "client"]
#: Below the XDG state directory: the parent of the certificate directories of all homes.
_STATE = ("cluster-bridge", "serving")


def default_cert_dir(home_id: str, node_name: str) -> Path:
    """The node's directory below ``XDG_STATE_HOME`` (XDG Base Directory Specification).

    Raises CertificateError if the user has no home directory.
    """
    try:
        return state_directory(*_STATE, home_id, node_name)
    except OSError as error:
        raise CertificateError("the user has no home directory; set --cert-dir") from error


class CertDir:
    """The certificate directory of one node: a `CertificateStore` of files for one purpose."""

    def __init__(self, directory: Path, purpose: Purpose = "serving") -> None:
        self._directory = directory
        self._current = directory / f"{purpose}.pem"
        self._pending = directory / f"{purpose}-pending.key"

    def __str__(self) -> str:
        return str(self._directory)

    async def prepare(self) -> None:
        """Creates the directory and checks that it is writable. Raises CertificateError."""
        await asyncio.to_thread(_prepare, self._directory)

    async def current(self) -> TlsKeyPair | None:
        """The issued certificate with its key, or None. Raises CertificateError."""
        content = await asyncio.to_thread(_read, self._current)
        return parse_pem(content) if content is not None else None

    async def keep(self, pair: TlsKeyPair) -> None:
        """Stores an issued certificate and removes the key of its request."""
        await asyncio.to_thread(_write, self._current, pair.pem)
        await self.forget_pending(pair.key)

    async def pending(self) -> bytes | None:
        """The key of the pending request, or None."""
        return await asyncio.to_thread(_read, self._pending)

    async def keep_pending(self, key: bytes) -> bool:
        """Stores the key of a request before the request is created."""
        await asyncio.to_thread(_write, self._pending, key)
        return True

    async def forget_pending(self, key: bytes) -> None:
        """Removes this key of a pending request; the next request gets a new key."""
        if await self.pending() == key:
            await asyncio.to_thread(_remove, self._pending)

    async def wait_until_other(self, known: TlsKeyPair | None) -> None:
        """Waits until cancelled: one process at a time uses the directory."""
        del known
        await asyncio.get_running_loop().create_future()

    def is_in_use(self) -> bool:
        """Whether there is a certificate or a pending request of this purpose."""
        return self._current.exists() or self._pending.exists()

    def files(self) -> list[Path]:
        """The node's files of all purposes; empty if the directory cannot be read."""
        try:
            return [path for path in self._all_files() if path.exists()]
        except OSError:
            return []

    def exists(self) -> bool:
        """Whether the directory holds files of the node, or is empty: a join creates the directory
        before it has a certificate."""
        try:
            return bool(self.files()) or not any(self._directory.iterdir())
        except OSError:
            return False

    def remove(self) -> None:
        """Removes the node's files, and the directory and its parents below the XDG state directory
        as far as they are empty then. Raises CertificateError."""
        for path in self._all_files():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise CertificateError(
                    f"cannot remove {path}: {error.strerror}; remove this private key by hand"
                ) from error
        above = [self._directory.parents[at] for at in range(min(3, len(self._directory.parents)))]
        is_state = tuple(it.name for it in above[1:]) == _STATE[::-1]
        with contextlib.suppress(OSError):
            for directory in [self._directory, *(above if is_state else [])]:
                directory.rmdir()

    def _all_files(self) -> list[Path]:
        stores = [CertDir(self._directory, purpose) for purpose in get_args(Purpose)]
        return [path for store in stores for path in (store._current, store._pending)]


def _prepare(directory: Path) -> None:
    with _storage_errors(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass


def _remove(path: Path) -> None:
    with _storage_errors(path):
        path.unlink(missing_ok=True)


def _read(path: Path) -> bytes | None:
    with _storage_errors(path), contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def _write(path: Path, content: bytes) -> None:
    with _storage_errors(path):
        write_private_file(path, content)


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Raises CertificateError for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise CertificateError(
            f"cannot store a certificate in {path}: {error.strerror}; "
            "choose another directory with --cert-dir"
        ) from error
