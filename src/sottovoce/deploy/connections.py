"""Let no connection of FLARE's hold a process up: neither a caller who says nothing, nor one that is opened too late.

FLARE shakes hands with one caller after the other on the port that it opens on loopback, for processes of jobs: a user
of the machine, who has no certificate, connects, says nothing, and no job starts at this site any more. Here each
caller has a thread and some seconds. And FLARE, when it stops, closes what is open, and waits for ever for a connection
that is opened at that moment, as when a server was started again.
"""

import socket
import threading
from functools import cache
from typing import Any

from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer

_SECONDS = 10.0  # for a handshake, which takes milliseconds
_AT_ONCE = 64  # handshakes; a further caller ends the oldest


@cache
def mend() -> None:
    """Mend the connections of this process."""
    _shake_hands_apart()
    _close_what_is_late()


def _close_what_is_late() -> None:
    """Close connections that are opened after their connector was stopped."""
    added = BaseDriver.add_connection

    def add_connection(self: BaseDriver, connection: Connection) -> None:
        added(self, connection)
        if connection.connector.stopped.is_set():
            connection.close()

    BaseDriver.add_connection = add_connection


def _shake_hands_apart() -> None:
    """Let FLARE's listeners of this process shake hands on the caller's thread, in bounded time and number."""
    made, process, finish = TcpStreamServer.__init__, TcpStreamServer.process_request, TcpStreamServer.finish_request
    shaking, lock = dict[Any, None](), threading.Lock()  # callers, the oldest first

    def init(self: TcpStreamServer, *given: Any) -> None:
        made(self, *given)
        if self.ssl_context:
            self.socket.do_handshake_on_connect = False

    def process_request(self: TcpStreamServer, request: Any, address: Any) -> None:
        with lock:
            shaking[request] = None
            if len(shaking) > _AT_ONCE:
                oldest = next(iter(shaking))
                del shaking[oldest]
                _end(oldest)
        process(self, request, address)

    def finish_request(self: TcpStreamServer, request: Any, address: Any) -> None:
        try:
            if self.ssl_context:
                request.settimeout(_SECONDS)
                request.do_handshake()
                request.settimeout(None)
        except OSError:  # it has no certificate, or said nothing
            return
        finally:
            with lock:
                shaking.pop(request, None)
        finish(self, request, address)

    TcpStreamServer.request_queue_size = 2 * _AT_ONCE
    for name, function in (
        ("__init__", init),
        ("process_request", process_request),
        ("finish_request", finish_request),
    ):
        setattr(TcpStreamServer, name, function)


def _end(caller: Any) -> None:
    """End a connection; its thread finds that out."""
    try:
        caller.shutdown(socket.SHUT_RDWR)
    except OSError:
        caller.close()
