"""Connections to pods by port-forward: over SPDY sessions that are kept and used again, or else
over a WebSocket each.

- `PortForwards.open` returns a connection to a port of a pod. If a session with the pod is usable
  (`bridge.net.spdy_session`), that takes no round trip; otherwise a session is opened, for which
  the API server and the kubelet connect. So there are four to seven times as many connections a
  second as over WebSockets (`python -m e2e.bench relay`, with and without ``--without-spdy``).
- Sessions belong to one pod, by its UID, and are closed `IDLE_SECONDS` after their last stream has
  ended. At most `MAX_IDLE` idle ones are kept, the newest.
- If the API server, or a proxy before it, rejects SPDY, this connection gets a WebSocket. If that
  works, the whole remote gets WebSockets for `RETRY_SECONDS`; otherwise the pod is the reason.
- Whether the pod listens on the port is not known when `open` returns: the kubelet reports that
  later (``on_error``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from bridge.net.port_forward_connection import (
    OPEN_TIMEOUT,
    PortForwardTransport,
    open_port_forward,
    rejection,
)
from bridge.net.spdy_session import SpdySession
from sync.kube.api_errors import Unreachable
from sync.kube.api_resources import PODS
from sync.kube.http_upgrade import UpgradeResponse, open_upgrade
from sync.kube.layered_transport import LayeredTransport
from sync.kube.transport import Transport
from translators.relay.forward_plan import Backend

log = logging.getLogger(__name__)

#: The protocol of a port-forward inside SPDY (k8s.io/apimachinery, portforward.PortForwardV1Name).
PROTOCOL = "portforward.k8s.io"
#: Seconds that an idle session is kept.
IDLE_SECONDS = 30.0
#: Idle sessions that are kept, of all pods: some 30 KiB each.
MAX_IDLE = 64
#: Seconds until SPDY is tried again with a remote that has rejected it.
RETRY_SECONDS = 600.0

#: The UID of a remote pod.
_PodUid = str


class OpenedPortForward:
    """A connection to a pod that nothing is attached to yet: `attach` or `close` it."""

    def __init__(self, way: SpdySession | UpgradeResponse, port: int) -> None:
        self._way = way
        self._port = port

    def attach(self, above: asyncio.Protocol, on_error: Callable[[str], None]) -> LayeredTransport:
        """Connects ``above``, which receives the data; ``on_error`` is called once if the
        connection ends abnormally."""
        if isinstance(self._way, SpdySession):
            return self._way.open_stream(self._port, above, on_error)
        transport = PortForwardTransport(above, on_error)
        self._way.take(transport)
        return transport

    def close(self) -> None:
        """Gives the connection up."""
        if isinstance(self._way, SpdySession):
            self._way.unreserve()
        else:
            self._way.close()


class PortForwards:
    """The port-forwards of one remote."""

    def __init__(self, remote: Transport) -> None:
        self._remote = remote
        self._usable: dict[_PodUid, dict[SpdySession, None]] = {}
        self._all: dict[SpdySession, _PodUid] = {}
        self._idle: dict[SpdySession, asyncio.TimerHandle] = {}
        self._spdy_from = 0.0

    async def open(self, backend: Backend) -> OpenedPortForward:
        """A connection to a port of the pod. Raises KubeError if the API server cannot connect it
        to the pod."""
        loop = asyncio.get_running_loop()
        if (session := self._take(backend.uid)) is not None:
            return OpenedPortForward(session, backend.port)
        rejected: _SpdyRejectedError | None = None
        if loop.time() >= self._spdy_from:
            try:
                return OpenedPortForward(await self._open_session(backend), backend.port)
            except _SpdyRejectedError as error:
                rejected = error
        opened = OpenedPortForward(await open_port_forward(self._remote, backend), backend.port)
        if rejected is not None:
            self._spdy_from = loop.time() + RETRY_SECONDS
            log.info("remote: port-forwards use WebSockets: %s", rejected)
        return opened

    def close(self) -> None:
        """Closes all sessions."""
        for session in [*self._all]:
            session.close()

    # -- sessions --------------------------------------------------------------------------

    def _take(self, pod: _PodUid) -> SpdySession | None:
        usable = self._usable.get(pod, {})
        while usable:
            session, _ = usable.popitem()  # The newest: the others expire.
            if session.is_usable and not session.is_stalled:
                self._cancel_expiry(session)
                session.reserve()
                return session
        return None

    def _changed(self, session: SpdySession) -> None:
        """Keeps what is usable, and lets what is idle expire."""
        pod = self._all.get(session)
        if pod is None:
            return
        usable = self._usable.setdefault(pod, {})
        if session.is_usable:
            usable[session] = None
        else:
            usable.pop(session, None)
        if not usable:
            del self._usable[pod]
        if session.has_ended:
            del self._all[session]
            self._cancel_expiry(session)
        elif session.is_idle and session not in self._idle:
            self._expire_later(session)

    def _expire_later(self, session: SpdySession) -> None:
        loop = asyncio.get_running_loop()
        if len(self._idle) >= MAX_IDLE:
            next(iter(self._idle)).close()
        seconds = IDLE_SECONDS if session.is_usable else 0.0
        self._idle[session] = loop.call_later(seconds, session.close)

    def _cancel_expiry(self, session: SpdySession) -> None:
        if (timer := self._idle.pop(session, None)) is not None:
            timer.cancel()

    async def _open_session(self, backend: Backend) -> SpdySession:
        path = PODS.path(backend.name, namespace=backend.namespace, subresource="portforward")
        what = f"POST {path}"
        headers = [
            ("Upgrade", "SPDY/3.1"),
            ("X-Stream-Protocol-Version", PROTOCOL),
            ("Content-Length", "0"),
        ]
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                upgraded = await open_upgrade(self._remote, "POST", path, [], headers)
        except TimeoutError as error:
            message = f"no port-forward to the pod within {OPEN_TIMEOUT:.0f} s"
            raise Unreachable(message, side=self._remote.side, what=what) from error
        if upgraded.status != 101:
            rejected = rejection(self._remote, upgraded, what)
            if upgraded.status in _NOT_SPDY:
                raise _SpdyRejectedError(str(rejected))
            raise rejected
        if upgraded.head.values("X-Stream-Protocol-Version") != [PROTOCOL]:
            upgraded.close()
            raise _SpdyRejectedError(f"{what}: the response is not of {PROTOCOL}")
        session = SpdySession(self._changed)
        session.reserve()
        self._all[session] = backend.uid
        upgraded.take(session)
        return session


#: Statuses of servers and proxies that do not know the upgrade, or do not permit POST.
_NOT_SPDY = (400, 403, 405, 501, 502)


class _SpdyRejectedError(Exception):
    """The API server, or a proxy before it, does not accept SPDY; others may."""
