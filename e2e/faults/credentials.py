"""The remote's credential ends, or another takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.clusters.native import NativeControl
from e2e.faults.model import Fault, Join
from e2e.faults.stage import Stage

#: Of the API servers of `e2e.clusters`.
_ISSUER = "https://kubernetes.default.svc.cluster.local"


@contextmanager
def _revoked(stage: Stage) -> Iterator[None]:
    stage.credential.revoke()
    try:
        yield
    finally:
        stage.credential.renew()


@contextmanager
def _rotated(stage: Stage) -> Iterator[None]:
    """The new one is there before the old one ends, as it should be."""
    old = stage.credential
    old.renew()
    stage.work(stage.random.uniform(0.5, 2.0))
    old.revoke()
    old.renew()
    yield


@contextmanager
def _expired(stage: Stage) -> Iterator[None]:
    """The bridge begins with a token that soon ends; nobody brings another for a while."""
    control = stage.remote.control
    assert isinstance(control, NativeControl)
    key = control.site.pki / "sa.key"
    stage.credential.expire(12.0, signing_key=key, issuer=_ISSUER)
    stage.bridge.stop()
    stage.bridge.start()
    try:
        yield
    finally:
        stage.credential.renew()


FAULTS = (
    Fault(
        "credential: revoked",
        "the remote's service account is deleted, and its token with it",
        "the kubeconfig has the token of a new account",
        _revoked,
        join=Join.TOKEN,
        seconds=(25.0, 45.0),
    ),
    Fault(
        "credential: rotated",
        "the kubeconfig has a new token, and the old one is revoked",
        "by itself",
        _rotated,
        join=Join.TOKEN,
        seconds=(12.0, 18.0),
    ),
    Fault(
        "credential: expired",
        "the token ends 12 s after the bridge was joined with it",
        "the kubeconfig has a new token",
        _expired,
        join=Join.TOKEN,
        native=True,
        seconds=(35.0, 50.0),
    ),
)
