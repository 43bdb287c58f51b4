"""A line between clients and one server that can be disturbed: a TCP proxy on 127.0.0.1.

What is held back arrives when the line is whole again, as TCP would send it anew.
"""

from __future__ import annotations

import socket
import struct
import threading

__all__ = ["Proxy"]

_PIECE = 1 << 16


class Proxy:
    """Begins whole. ``target`` is the port of the server; a change is for connections to come.

    Locking: ``_lock`` guards all fields; who waits for a whole line waits on it. A pump never holds
    it while it receives or sends.
    """

    def __init__(self, target: int) -> None:
        self._lock = threading.Condition()
        self._target = target
        self._held = self._slow = frozenset[str]()
        self._is_closed = self._refuses = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listens.getsockname()[1]
        self._start(self._accept)

    def hold(self, *ways: str) -> None:
        """Nothing passes in these ways: "to server", "to client"."""
        with self._lock:
            self._held = frozenset(ways)

    def slow(self, *ways: str) -> None:
        """One byte a second passes in these ways of each connection."""
        with self._lock:
            self._slow = frozenset(ways)

    def refuse(self) -> None:
        """Resets all connections, those to come as well."""
        with self._lock:
            self._refuses = True
        self.reset()

    def heal(self) -> None:
        """The line is whole."""
        with self._lock:
            self._held, self._slow, self._refuses = frozenset(), frozenset(), False
            self._lock.notify_all()

    def redirect(self, target: int) -> None:
        """Connections to come are to another server; the others are reset."""
        with self._lock:
            self._target = target
        self.reset()

    def reset(self) -> None:
        """Ends all connections of now by RST."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            _end(each)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        # Wakes the thread that accepts: closing alone does not.
        self._listens.shutdown(socket.SHUT_RDWR)
        self._listens.close()
        self.reset()
        for each in self._threads:
            each.join()

    def _start(self, call: object, *arguments: object) -> None:
        thread = threading.Thread(target=call, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listens.accept()
            except OSError:
                return
            with self._lock:
                target, refuses = self._target, self._refuses or self._is_closed
            try:
                if refuses:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", target), 5)
            except OSError:
                _end(client)
                continue
            with self._lock:
                self._sockets += [client, server]
            self._start(self._pump, client, server, "to server")
            self._start(self._pump, server, client, "to client")

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            source.settimeout(None)
            while data := source.recv(_PIECE):
                with self._lock:
                    while data and not self._is_closed:
                        if way in self._held:
                            self._lock.wait()
                            continue
                        piece = data[:1] if way in self._slow else data
                        data = data[len(piece) :]
                        self._lock.release()
                        try:
                            sink.sendall(piece)
                        finally:
                            self._lock.acquire()
                        if way in self._slow and data:
                            self._lock.wait(1.0)  # or until it is whole
        except OSError:
            pass
        _end(source)
        _end(sink)


def _end(one: socket.socket) -> None:
    """Ends it at once, by RST, also for a thread that receives from it."""
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
