"""Credentials that expire, are revoked or rotated, or are rejected for moments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.clusters.native import NativeControl
from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault, JoinMode
from e2e.faults.faulty_proxy import Harm, Rule

#: Issuer of the API servers of `e2e.clusters`.
_ISSUER = "https://kubernetes.default.svc.cluster.local"
#: Number of bursts of rejections, and seconds of each and between two.
_BURSTS, _BURST_SECONDS = 6, (1.0, 3.0)


@contextmanager
def _revoked(stage: Stage) -> Iterator[None]:
    stage.credential.revoke()
    try:
        yield
    finally:
        stage.credential.renew()


@contextmanager
def _rotated(stage: Stage) -> Iterator[None]:
    """Replaces the token before the old one is revoked, as recommended."""
    old = stage.credential
    old.renew()
    stage.work(stage.random.uniform(0.5, 2.0))
    old.revoke()
    old.renew()
    yield


@contextmanager
def _expired(stage: Stage) -> Iterator[None]:
    """Starts the bridge with a token that soon expires, and replaces it some time later."""
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


@contextmanager
def _refused(stage: Stage) -> Iterator[None]:
    """Bursts of 401 responses on both sides, with load during and between them."""
    proxies = (stage.home_proxy, stage.remote_proxy)
    try:
        for _ in range(_BURSTS):
            for proxy in proxies:
                proxy.rules = (Rule(Harm.ANSWER, 0.9, code=401),)
            stage.work(stage.random.uniform(*_BURST_SECONDS))
            for proxy in proxies:
                proxy.rules = ()
            stage.work(stage.random.uniform(*_BURST_SECONDS))
        yield
    finally:
        for proxy in proxies:
            proxy.rules = ()


FAULTS = (
    Fault(
        "credential: refused in bursts",
        "nine of ten requests to both API servers are answered with 401, for 1 to 3 s, six times",
        "the proxies pass everything on as it is",
        _refused,
        join=JoinMode.PROXY,
        counts=6,
        seconds=(1.0, 3.0),
    ),
    Fault(
        "credential: revoked",
        "the remote's service account is deleted, and its token with it",
        "the kubeconfig has the token of a new account",
        _revoked,
        join=JoinMode.TOKEN,
        seconds=(25.0, 45.0),
    ),
    Fault(
        "credential: rotated",
        "the kubeconfig has a new token, and the old one is revoked",
        "by itself",
        _rotated,
        join=JoinMode.TOKEN,
        seconds=(12.0, 18.0),
    ),
    Fault(
        "credential: expired",
        "the token ends 12 s after the bridge was joined with it",
        "the kubeconfig has a new token",
        _expired,
        join=JoinMode.TOKEN,
        native=True,
        seconds=(35.0, 50.0),
    ),
)
