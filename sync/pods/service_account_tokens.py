"""Requests tokens of home's service accounts for the pods on the node, one Secret for each pod.

- The Secret exists before the remote pod is created (`TokenController.ensure`), and is deleted when
  the remote pod is deleted and the home pod is deleted or terminal.
- A token is bound to the home pod, so that home invalidates it with the pod. At `RENEW_AT` of its
  lifetime (with jitter) a new token is requested and the Secret patched. The Secret's annotations
  hold the times, so that a restart with nothing due writes nothing. All times are those of home's
  clock. The same token is requested at most once in `FLOOR` seconds.
- Home's CA, if a pod mounts it beside a token, follows home's ``kube-root-ca.crt``.
- A Secret that another client of the remote deletes or changes back is written again at growing
  intervals (`sync.base.repeated_writes`).
- A request that home rejects raises `ReconcileBlocked`: reported in the status of a pod that waits
  for the token, and as an Event of a running pod; a missing permission as `HomeForbidden`, with the
  command that grants it.
- Under another policy than ``home`` the Secrets of an earlier join are deleted with their pods.
- No token is part of an error, a log line or a repr.
"""

from __future__ import annotations

import logging
import random
from datetime import timedelta

import cachetools

from sync.base import exception_summary
from sync.base.namespace_fair_cache import entries_limit
from sync.base.repeated_writes import OVERWRITES, REPORTED, RepeatedWrites, overwritten_message
from sync.cache.store import Key
from sync.cache.stub import Stub
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, HomeWatch, Watch
from sync.kube.api_errors import (
    AlreadyExists,
    BadRequest,
    Forbidden,
    Invalid,
    NotFound,
    NotRelatedToNode,
)
from sync.kube.api_resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from sync.namespaces.per_namespace_informers import home_forbids
from sync.pods import action_planner
from sync.references.content_digest import digest, slim_copy
from sync.references.reference_keys import CopyKey, root_ca_key
from sync.runtime.controller import Controller, ReconcileBlocked, not_cached
from sync.runtime.log_fields import changes, key_fields
from translators.object_accessors import (
    HomeNamespace,
    Object,
    is_deleting,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import has_home_uid, is_owned_by_node, origin_of
from translators.pods import pod_status, references, service_accounts
from translators.pods.service_accounts import (
    CA_KEY,
    PodRef,
    RequiredTokens,
    TokenRequest,
    TokenTimes,
)
from translators.timestamps import format_time, parse_time

log = logging.getLogger(__name__)

#: Pods whose tokens are requested at once.
WORKERS = 16
#: The fraction of a token's lifetime after which it is renewed, as by pkg/kubelet/token.
RENEW_AT = 0.8
#: The largest fraction of a lifetime by which a renewal is earlier, so that renewals are spread.
JITTER = 0.1

#: The least seconds between two requests of the same token, independent of clocks.
FLOOR = 60.0

_NO_TOKENS = RequiredTokens(frozenset(), needs_ca=False)


class TokenController:
    """The reconciler of token Secrets. A key, a `PodRef`, stands for the tokens of one home pod."""

    def __init__(self, context: ControllerContext) -> None:
        self._home = context.home
        self._remote = context.remote
        self._policy = context.policy
        self._identity = context.identity
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._secrets = context.copies[SECRETS]
        self._references = context.references
        self._namespaces = context.namespaces
        self._events = context.events
        self._now = context.now
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        # Tokens that were just requested, by the pod's UID and the token's key.
        self._recent: cachetools.TTLCache[tuple[str, str], TokenTimes]
        self._recent = cachetools.TTLCache(2 * entries_limit(), FLOOR)
        # The keys of the last write of each Secret.
        self._repeated: RepeatedWrites[PodRef] = RepeatedWrites()
        # UIDs of deleted Secrets: the cache shows the deletion a moment later.
        self._deleted: set[str] = set()
        self.controller: Controller[PodRef] = Controller(
            "tokens", self._reconcile, workers=WORKERS, kind="Pod"
        )

    def declare(self) -> Declaration:
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._home_pods, self.home_pod_changed),
                Watch(self._remote_pods, self.remote_pod_changed),
                Watch(self._secrets, self.secret_changed),
            ],
            home_watches=[HomeWatch(CONFIG_MAPS, self.config_map_changed)],
            requeue_reference=self.requeue_reference,
        )

    # -- for the pod controller -------------------------------------------------------------------

    async def ensure(self, home: Object) -> None:
        """Waits until the tokens that the home pod mounts are in the remote.

        Raises KubeError, and ReconcileBlocked if home does not issue them or an unmanaged Secret
        has the name.
        """
        ref = service_accounts.pod_ref_of(home)
        needs = self._needs(home)
        if needs.tokens and not self._is_current(ref, needs):
            await self.controller.reconcile_now(ref)

    # -- from changes to keys ----------------------------------------------------------------------

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues a pod that was created, deleted or became terminal; its volumes never change."""
        for pod, other in ((old, new), (new, old)):
            if pod is None:
                continue
            same = other is not None and uid_of(other) == uid_of(pod)
            if same and other and pod_status.is_terminal(pod) == pod_status.is_terminal(other):
                continue
            ref = service_accounts.pod_ref_of(pod)
            if self._needs(pod).tokens or self._secret(ref) is not None:
                self.controller.queue.add(ref)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        origin = origin_of(old) if old is not None and new is None else None
        if origin is not None:
            ref = PodRef(origin.namespace, origin.name, origin.uid)
            if self._secret(ref) is not None:
                self.controller.queue.add(ref)

    def secret_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._deleted.discard(uid_of(old))
        ref = service_accounts.pod_of_token_secret(new or old or {})
        if ref is not None:
            self.controller.queue.add(ref)

    def config_map_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the pods that mount home's CA when it changes."""
        obj = new or old or {}
        self.requeue_reference(CopyKey(CONFIG_MAPS, HomeNamespace(namespace_of(obj)), name_of(obj)))

    def requeue_reference(self, key: CopyKey) -> None:
        """Queues the pods that mount home's CA beside a token, after it was read."""
        if key != root_ca_key(key.namespace):
            return
        for pod in self._home_pods.store.by_index("reference", key):
            with exception_summary.log_defects(f"pod {key.namespace}/{name_of(pod)}"):
                if self._needs(pod).tokens:
                    self.controller.queue.add(service_accounts.pod_ref_of(pod))

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, ref: PodRef) -> None:
        home, secret = self._home_pod(ref), self._secret(ref)
        if isinstance(secret, Stub):
            found = await self._remote.find(
                SECRETS, name_of(secret), namespace=namespace_of(secret)
            )
            secret = slim_copy(found) if found is not None else None
        needs = self._needs(home) if home is not None else _NO_TOKENS
        if secret is not None and is_deleting(secret):
            return  # The end of the deletion queues the key again.
        if home is None or not needs.tokens:
            is_usable = self._namespaces.has_usable(ref.namespace)
            if secret is not None and is_usable and not self._has_remote_pod(ref):
                await self._delete(ref, secret)
            return
        if needs.needs_ca and not self._references.is_known(root_ca_key(ref.namespace)):
            return  # `requeue_reference` queues the key again.
        if secret is None and is_deleting(home) and not self._has_remote_pod(ref):
            return
        try:
            times = await self._write(home, needs, secret)
        except ReconcileBlocked as blocked:
            if self._has_remote_pod(ref):
                self._events.warn(home, blocked.reason, blocked.message)
            raise
        if times:
            soonest = min(_seconds(self._home_now(), it.renew_at) for it in times.values())
            self.controller.queue.add_after(ref, max(soonest, FLOOR))

    async def _write(
        self, home: Object, needs: RequiredTokens, secret: Object | None
    ) -> dict[str, TokenTimes]:
        """Creates the Secret or patches its due tokens. Returns the times of each token; {} if
        the Secret must not be written yet, which queues the key."""
        ref = service_accounts.pod_ref_of(home)
        # Also for an existing Secret: namespace and Secret may be forged by another client.
        await self._namespaces.ensure(ref.namespace)
        ca = await self._ca(ref.namespace) if needs.needs_ca else None
        times = self._valid(ref, secret, needs)
        due = [wanted for wanted in sorted(needs.tokens) if wanted.key not in times]
        data = {}
        if ca is not None and _digest_of(secret, CA_KEY) != digest(
            service_accounts.encode_secret_value(ca)
        ):
            data[CA_KEY] = ca
        if secret is not None and not due and not data:
            return times
        write = (secret is None, *(wanted.key for wanted in due), *data)
        delayed = self._repeated.delayed(ref)
        if delayed is not None and delayed[0] == write:
            if not self._has_remote_pod(ref):
                raise ReconcileBlocked(OVERWRITES, f"remote: {_overwritten(ref)}")
            self.controller.queue.add_after(ref, delayed[1])
            return {}
        for wanted in due:
            data[wanted.key], times[wanted.key] = await self._request(home, wanted)
        if secret is None:
            await self._create(home, data, times)
        else:
            await self._patch(ref, secret, data, times)
        if self._repeated.sent(ref.namespace, ref, write) == REPORTED:
            self._events.warn(home, OVERWRITES, _overwritten(ref))
        return times

    async def _request(self, home: Object, wanted: TokenRequest) -> tuple[str, TokenTimes]:
        name, ref = service_accounts.service_account_name(home), service_accounts.pod_ref_of(home)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": ref.name, "uid": ref.uid}
        spec: Object = {"expirationSeconds": wanted.expiration_seconds, "boundObjectRef": bound}
        spec["audiences"] = [wanted.audience] if wanted.audience else []
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = SERVICE_ACCOUNTS.path(name, namespace=ref.namespace, subresource="token")
        try:
            answer = await self._home.request("POST", path, body=body)
        except NotRelatedToNode:
            raise  # The authorizer is about to see the pod; no permission is missing.
        except (BadRequest, Forbidden, Invalid, NotFound) as error:
            # Admission webhooks answer 403 too.
            if isinstance(error, Forbidden) and 'cannot create resource "' in error.message:
                action = f"create serviceaccounts/token of {name}"
                raise home_forbids(action, ref.namespace, server_message=error.message) from error
            account = f"ServiceAccount {ref.namespace}/{name}"
            raise ReconcileBlocked(
                "TokenRefused", f"home issues no token of {account}: {error.message}"
            ) from error
        status = answer.get("status") or {}
        expires = str(status.get("expirationTimestamp") or "")
        if not (status.get("token") and expires):
            message = "home: the answer to a TokenRequest has no token"
            raise ReconcileBlocked("TokenRefused", message)
        # From home's answer: home may have shortened the lifetime, and only home's clock knows when
        # the token was issued.
        granted = (answer.get("spec") or {}).get("expirationSeconds")
        lifetime = float(granted or wanted.expiration_seconds)
        before_expiry = lifetime * (1 - RENEW_AT + self._rng.uniform(0, JITTER))
        renew_at = parse_time(expires) - timedelta(seconds=before_expiry)
        times = self._recent[ref.uid, wanted.key] = TokenTimes(format_time(renew_at), expires)
        return str(status["token"]), times

    async def _create(
        self, home: Object, data: dict[str, str], times: dict[str, TokenTimes]
    ) -> None:
        ref = service_accounts.pod_ref_of(home)
        desired = service_accounts.token_secret(home, self._identity, data, times)
        namespace = await self._namespaces.ensure(ref.namespace)
        try:
            created = await self._remote.create(SECRETS, desired, namespace=namespace)
        except AlreadyExists:
            name = name_of(desired)
            created = await self._remote.get(SECRETS, name, namespace=namespace)
            if not is_owned_by_node(created, self._identity):
                raise ReconcileBlocked(
                    "RemoteClash",
                    f"remote: Secret {namespace}/{name} exists and is not managed by this "
                    "bridge; delete that one",
                ) from None
            self._secrets.observe_write(created)
            if self._secret(ref) is None:
                raise not_cached(f"Secret {namespace}/{name}") from None
            self.controller.queue.add(ref)  # The cache lagged: the next reconcile compares it.
        else:
            self._secrets.observe_write(created)
            fields = key_fields("Pod", ref)
            changes.info("tokens of pod %s: written to %s", ref, namespace, extra=fields)

    async def _patch(
        self, ref: PodRef, secret: Object, data: dict[str, str], times: dict[str, TokenTimes]
    ) -> None:
        text = service_accounts.format_token_times(times)
        annotations = {service_accounts.ANNOTATION_TOKEN_TIMES: text}
        encoded = {key: service_accounts.encode_secret_value(text) for key, text in data.items()}
        meta = {"uid": uid_of(secret), "annotations": annotations}
        patch: Object = {"metadata": meta, "data": encoded}
        changed = await self._remote.patch(
            SECRETS, name_of(secret), patch, namespace=namespace_of(secret)
        )
        self._secrets.observe_write(changed)
        log.debug("tokens of pod %s: renewed", ref)

    async def _delete(self, ref: PodRef, secret: Object) -> None:
        uid = uid_of(secret)
        if uid in self._deleted:
            return
        await self._remote.delete(SECRETS, name_of(secret), namespace=namespace_of(secret), uid=uid)
        if self._secret(ref) is not None:
            self._deleted.add(uid)
        changes.info("tokens of pod %s: deleted in the remote", ref, extra=key_fields("Pod", ref))

    # -- lookups ---------------------------------------------------------------------

    def _needs(self, home: Object) -> RequiredTokens:
        """The tokens that the pod needs now: none if it is terminal or not to run."""
        if self._policy.service_accounts != "home":
            return _NO_TOKENS
        required = service_accounts.required_tokens(home)
        is_live = action_planner.may_run(home, self._policy) and not pod_status.is_terminal(home)
        return required if required.tokens and is_live else _NO_TOKENS

    def _home_pod(self, ref: PodRef) -> Object | None:
        home = self._home_pods.store.get(Key(ref.namespace, ref.name))
        return home if home is not None and uid_of(home) == ref.uid else None

    def _secret(self, ref: PodRef) -> Object | None:
        namespace = self._identity.remote_namespace(ref.namespace)
        name = service_accounts.token_secret_name(ref.uid)
        secret = self._secrets.store.get(Key(namespace, name))
        return secret if secret and is_owned_by_node(secret, self._identity) else None

    def _has_remote_pod(self, ref: PodRef) -> bool:
        namespace = self._identity.remote_namespace(ref.namespace)
        remote = self._remote_pods.store.get(Key(namespace, ref.name))
        return remote is not None and has_home_uid(remote, ref.uid)

    def _valid(
        self, ref: PodRef, secret: Object | None, needs: RequiredTokens
    ) -> dict[str, TokenTimes]:
        """The tokens of the Secret that need no renewal yet, or were just requested: another client
        may have removed their times."""
        known, now = service_accounts.parse_token_times(secret or {}), self._home_now()
        valid: dict[str, TokenTimes] = {}
        for key in {wanted.key for wanted in needs.tokens}:
            times, recent = known.get(key), self._recent.get((ref.uid, key))
            if times is not None and _is_later(times.renew_at, now):
                valid[key] = times
            elif recent is not None and _digest_of(secret, key) is not None:
                valid[key] = recent
        return valid

    def _home_now(self) -> str:
        """The time of home's clock; of the bridge's clock before the first answer of home."""
        now = self._home.server_clock.now()
        return self._now() if now is None else format_time(now)

    def _is_current(self, ref: PodRef, needs: RequiredTokens) -> bool:
        """Whether the Secret has all tokens, and the CA if needed."""
        secret = self._secret(ref)
        if secret is None or is_deleting(secret):
            return False
        valid = self._valid(ref, secret, needs)
        if any(wanted.key not in valid for wanted in needs.tokens):
            return False
        return not needs.needs_ca or _digest_of(secret, CA_KEY) is not None

    async def _ca(self, namespace: HomeNamespace) -> str:
        """Home's CA, as published in the namespace. Raises ReconcileBlocked if it is missing, and
        KubeError."""
        text = None
        if self._references.get(key := root_ca_key(namespace)) is not None:
            async with self._references.whole(key) as config_map:
                text = (config_map.get("data") or {}).get(CA_KEY)
        if not text:
            raise ReconcileBlocked(
                "HomeCAMissing",
                f"home has no ConfigMap {namespace}/{references.ROOT_CA}, which its "
                "controller-manager publishes with the CA certificate for pods",
            )
        return str(text)


def _overwritten(ref: PodRef) -> str:
    return overwritten_message(f"Secret {service_accounts.token_secret_name(ref.uid)}")


def _digest_of(secret: Object | None, key: str) -> str | None:
    """The digest of a value of a cached Secret."""
    value = ((secret or {}).get("data") or {}).get(key)
    return None if value is None else str(value)


def _seconds(start: str, end: str) -> float:
    return (parse_time(end) - parse_time(start)).total_seconds()


def _is_later(text: str, now: str) -> bool:
    """Whether the time is in the future; False for a time that cannot be parsed."""
    try:
        return _seconds(now, text) > 0
    except ValueError:
        return False
