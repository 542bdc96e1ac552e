"""The folder in which a serving certificate of home's outlives the bridge.

A request has to be approved by somebody, so a restart must not need a new one: kept are the
certificate with its key (`serving.pem`), and the key of a request that waits (`pending.key`). Files
are of mode 0600 in a folder of 0700, and are written whole or not at all. One folder is for one
node. Where a file cannot be read or written, `CertificateError` names it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair, parse_pem

#: Of the folder in which the state folders of all homes are.
_STATE = ("cluster-bridge", "serving")


def default_cert_dir(home_id: str, node_name: str) -> Path:
    """Where programs keep what is to outlive them (XDG Base Directory Specification).

    Raises CertificateError where the user has no home.
    """
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise CertificateError("this user has no home folder; give --cert-dir") from error
    return Path(state, *_STATE, home_id, node_name)


class CertDir:
    """The files of one node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._current = folder / "serving.pem"
        self._pending = folder / "pending.key"

    def __str__(self) -> str:
        return str(self._folder)

    def prepare(self) -> None:
        """Makes the folder, and finds out whether it can be written. Raises CertificateError."""
        try:
            self._current.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._current.parent):
                pass
        except OSError as error:
            raise _not_usable(self._current.parent, error) from error

    def current(self) -> TlsKeyPair | None:
        """The certificate and its key, or None where none has been issued."""
        content = _read(self._current)
        return parse_pem(content) if content is not None else None

    def keep(self, pair: TlsKeyPair) -> None:
        """Keeps what was issued; the key of its request is not needed any more."""
        _write(self._current, pair.pem)
        self.forget_pending()

    def pending(self) -> bytes | None:
        """The key of the request that waits."""
        return _read(self._pending)

    def keep_pending(self, key: bytes) -> None:
        """Keeps the key of a request that is about to be made."""
        _write(self._pending, key)

    def forget_pending(self) -> None:
        """The next request is for another key."""
        try:
            self._pending.unlink(missing_ok=True)
        except OSError as error:
            raise _not_usable(self._pending, error) from error

    def files(self) -> list[Path]:
        """The files of the node that are here; none where the folder cannot be looked into."""
        try:
            return [path for path in (self._current, self._pending) if path.exists()]
        except OSError:
            return []

    def exists(self) -> bool:
        """Whether the node's files are here, or the folder without any: a join makes it before it
        has a certificate."""
        try:
            return bool(self.files()) or not any(self._folder.iterdir())
        except OSError:
            return False

    def remove(self) -> None:
        """Removes the node's files, the folder where nothing else is in it, and in the state folder
        those above it that are empty then. Raises CertificateError."""
        for path in (self._current, self._pending):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise CertificateError(
                    f"{path} cannot be removed: {error.strerror}; remove it by hand, it holds a key"
                ) from error
        above = [self._folder.parents[at] for at in range(min(3, len(self._folder.parents)))]
        is_state = tuple(it.name for it in above[1:]) == _STATE[::-1]
        with contextlib.suppress(OSError):
            for folder in [self._folder, *(above if is_state else [])]:
                folder.rmdir()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_usable(path, error) from error


def _write(path: Path, content: bytes) -> None:
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # of mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise _not_usable(path, error) from error


def _not_usable(path: Path, error: OSError) -> CertificateError:
    return CertificateError(
        f"{path} cannot be used to keep the serving certificate: {error.strerror}; "
        "give another folder with --cert-dir"
    )
