"""Sends one attack and reads until the server closes the connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

from tests.bridge.kubelet.pki import Pki
from tests.fuzz.judgement import BOUND, Outcome
from tests.fuzz.request_parts import Listener
from tests.fuzz.requests import Attack

#: Seconds for a response to bytes that may not be a request, before the client ends its side.
PERHAPS = 0.03


class HostileClient:
    """Connections to the listeners, with or without a certificate of home's CA."""

    def __init__(self, pki: Pki) -> None:
        self._contexts = {True: pki.client_context("apiserver"), False: pki.client_context(None)}

    async def send(self, attack: Attack, listener: Listener) -> Outcome:
        """Sends the attack; the server's reset of a connection is an end like any other."""
        context = self._contexts[attack.certificate] if listener.tls else None
        reader, writer = await connect(listener.port, context)
        received = bytearray()
        closed = False
        sending = asyncio.create_task(_write(writer, attack))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BOUND + attack.pause * len(attack.parts)):
                if not (attack.complete or attack.patient):
                    await _read(reader, received, PERHAPS)
                    await _half_close(sending, writer)
                await _read(reader, received, None)
                closed = True
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.transport.abort()
        return Outcome(bytes(received), closed)


async def connect(
    port: int, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name = "127.0.0.1" if context else None
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)


async def _write(writer: asyncio.StreamWriter, attack: Attack) -> None:
    for part in attack.parts:
        writer.write(part)
        await writer.drain()
        if attack.pause:
            await asyncio.sleep(attack.pause)


async def _half_close(sending: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
    """Ends the client's direction. Below TLS too, without a close_notify."""
    with contextlib.suppress(OSError, AttributeError):  # the connection has ended already
        await sending
        sock = writer.get_extra_info("socket")
        sock.shutdown(socket.SHUT_WR)


async def _read(reader: asyncio.StreamReader, received: bytearray, seconds: float | None) -> None:
    """Reads until the end of the connection, or for these seconds."""
    with contextlib.suppress(OSError):
        try:
            async with asyncio.timeout(seconds):
                while part := await reader.read(65536):
                    received += part
        except TimeoutError:
            pass
