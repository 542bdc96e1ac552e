"""The Secret that keeps a certificate signed by home for all replicas of an installation.

A `CertificateStore` in one Secret of home, which exists already: `bridge install` and the manifests
create it empty. It holds the certificate with its key, and the key of a pending request, so that
the replicas share both. Writes name the resource version that they rely on. Replicas that start at
once therefore agree on one key, and so on one request, and no replica replaces a later certificate
by an earlier one.

Every method raises KubeError, and CertificateError if the Secret does not exist. Content that
cannot be decoded counts as absent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii

from bridge.certificates.cert_dir import Purpose
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair, parse_pem
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_errors import Conflict, NotFound
from sync.kube.api_resources import SECRETS, Object
from sync.kube.client import KubeClient
from translators.object_accessors import metadata

#: How often a write is attempted while the Secret changes in between. A webhook can answer with a
#: conflict each time.
ATTEMPTS = 5


class SecretStore:
    """A `CertificateStore` of one purpose in a Secret, with the permissions of
    `bridge.rbac.permissions.for_state_secret`."""

    def __init__(
        self, account: KubeClient, namespace: str, name: str, purpose: Purpose = "client"
    ) -> None:
        self._account = account
        self._namespace = namespace
        self._name = name
        self._current_key = f"{purpose}.pem"
        self._pending_key = f"{purpose}-pending.key"
        self._seen: Object = {}
        """The Secret at the last `pending`."""

    def __str__(self) -> str:
        return f"Secret {self._namespace}/{self._name}"

    async def prepare(self) -> None:
        """Checks that the Secret exists."""
        await self._read()

    async def current(self) -> TlsKeyPair | None:
        """The issued certificate with its key, or None."""
        return self._current_in(await self._read())

    async def keep(self, pair: TlsKeyPair) -> None:
        """Stores an issued certificate and removes the key of its request, unless another replica
        has stored the certificate or a later one."""
        for attempt in range(ATTEMPTS):
            secret = await self._read()
            stored, pending = self._current_in(secret), _decoded(secret, self._pending_key)
            if stored == pair or (stored is not None and pending != pair.key):
                return
            data: dict[str, bytes | None] = {self._current_key: pair.pem}
            if pending == pair.key:
                data[self._pending_key] = None
            if await self._has_written(secret, data, is_last=attempt == ATTEMPTS - 1):
                return

    async def pending(self) -> bytes | None:
        """The key of the pending request, or None."""
        self._seen = await self._read()
        return _decoded(self._seen, self._pending_key)

    async def keep_pending(self, key: bytes) -> bool:
        """Stores the key of a request before the request is created. False, and nothing is stored,
        if the Secret was changed since `pending`."""
        if _decoded(self._seen, self._pending_key) == key:
            return True
        try:
            await self._write(self._seen, {self._pending_key: key})
        except Conflict:
            return False
        return True

    async def forget_pending(self, key: bytes) -> None:
        """Removes the key of the pending request, unless another replica has replaced it."""
        for attempt in range(ATTEMPTS):
            secret = await self._read()
            if _decoded(secret, self._pending_key) != key:
                return
            data: dict[str, bytes | None] = {self._pending_key: None}
            if await self._has_written(secret, data, is_last=attempt == ATTEMPTS - 1):
                return

    async def wait_until_other(self, known: TlsKeyPair | None) -> None:
        """Returns once the Secret holds another certificate than ``known``, or none. Watches the
        Secret meanwhile, by its name; a failed watch is retried."""
        selector = f"metadata.name={self._name}"
        informer = Informer(self._account, SECRETS, namespace=self._namespace, fields=selector)
        changed = asyncio.Event()
        informer.on_change(lambda *_: changed.set())
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(informer.run(), name=f"watch {self}")
            await informer.synced.wait()
            while True:
                changed.clear()
                secret = informer.store.get(Key(self._namespace, self._name))
                if self._current_in(secret or {}) != known:
                    break
                await changed.wait()
            watching.cancel()

    def _current_in(self, secret: Object) -> TlsKeyPair | None:
        content = _decoded(secret, self._current_key)
        return parse_pem(content) if content is not None else None

    async def _read(self) -> Object:
        try:
            return await self._account.get(SECRETS, self._name, namespace=self._namespace)
        except NotFound as error:
            raise CertificateError(
                f"home: {self} does not exist, which keeps the bridge's certificate; install the "
                "bridge again"
            ) from error

    async def _has_written(
        self, secret: Object, data: dict[str, bytes | None], *, is_last: bool
    ) -> bool:
        """`_write`; False at a Conflict, which is raised at the last attempt."""
        try:
            await self._write(secret, data)
        except Conflict:
            if is_last:
                raise
            return False
        return True

    async def _write(self, secret: Object, data: dict[str, bytes | None]) -> None:
        """Changes these keys of the Secret as it was read; None removes one. Raises Conflict if it
        was changed since."""
        encoded = {
            key: base64.b64encode(content).decode() if content is not None else None
            for key, content in data.items()
        }
        version = metadata(secret).get("resourceVersion")
        patch: Object = {"metadata": {"resourceVersion": version}, "data": encoded}
        await self._account.patch(
            SECRETS, self._name, patch, namespace=self._namespace, decode=False
        )


def _decoded(secret: Object, key: str) -> bytes | None:
    """The content of a key of the Secret; None if it is absent or not base64."""
    encoded = (secret.get("data") or {}).get(key)
    try:
        return base64.b64decode(encoded, validate=True) if encoded else None
    except (binascii.Error, ValueError, TypeError):
        return None
