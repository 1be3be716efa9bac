"""A long cable on one machine: a TCP relay that hands bytes on some time later.

    with Delay(to=8002) as cable:    # connect to cable.port instead of 8002
        cable.seconds = 0.05

Order is kept and nothing is lost. Bytes on their way do not wait for each other, so the delay limits no throughput.
"""

import asyncio
import threading
from contextlib import suppress
from types import TracebackType

_PIECE = 1 << 18


class Delay:
    """Listens at `port` of this machine, and hands bytes to port `to` and back, each `seconds` later."""

    def __init__(self, to: int, seconds: float = 0.0) -> None:
        self.to, self.seconds, self.port = to, seconds, 0
        self._loop, self._ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True, name="delay")

    def __enter__(self) -> "Delay":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _live(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0, limit=_PIECE))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)  # connections that nobody has closed
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        server.close()
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to, limit=_PIECE)
        except OSError:
            return writer.close()
        with suppress(asyncio.CancelledError):  # the cable is taken away
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read at once, write later."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        writing = asyncio.create_task(self._write(waiting, writer))
        data = b"."
        while data:
            try:
                data = await reader.read(_PIECE)
            except OSError:
                data = b""
            waiting.put_nowait((self._loop.time() + self.seconds, data))
        await writing

    async def _write(self, waiting: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                due, data = await waiting.get()
                if (left := due - self._loop.time()) > 0:
                    await asyncio.sleep(left)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
