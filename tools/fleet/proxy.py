"""TCP proxies between servers of a cluster, or before them, so that one can be cut off, or an answer lost, without root."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading


class Proxies:
    """Listens on a port for each (from, to) pair and forwards to `to`; `cut(name)` drops all that touch a node."""

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._cut = set()
        self._links = []
        self._lock = threading.Lock()
        self._lose, self._mark = 0, b""
        self.lost = 0
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, name, other, listener, port):
        """Forward what connects to the socket `listener` to loopback `port`; it belongs to nodes `name` and `other`."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, (frozenset((name, other)), port))

    def cut(self, name):
        """Nothing passes from or to node `name` any more."""
        with self._lock:
            self._cut.add(name)
            for nodes, one, two in self._links:
                if name in nodes:
                    for end in (one, two):
                        with contextlib.suppress(OSError):
                            end.shutdown(socket.SHUT_RDWR)

    def heal(self):
        """Everything passes again."""
        with self._lock:
            self._cut.clear()

    def lose(self, count, mark):
        """The next `count` answers with `mark` in them do not arrive: the connection breaks instead."""
        with self._lock:
            self._lose, self._mark = count, mark

    def _spoils(self, chunk):
        with self._lock:
            if self._lose and self._mark in chunk:
                self._lose -= 1
                self.lost += 1
                return True
        return False

    def _run(self):
        while True:
            for key, _ in self._selector.select(0.5):
                nodes, port = key.data
                with contextlib.suppress(OSError):
                    one, _ = key.fileobj.accept()
                    if self._cut & nodes:
                        one.close()
                        continue
                    one.setblocking(True)
                    try:
                        two = socket.create_connection(("127.0.0.1", port), timeout=2)
                    except OSError:
                        one.close()
                        continue
                    two.settimeout(None)
                    with self._lock:
                        self._links.append((nodes, one, two))
                    for a, b, spoils in ((one, two, None), (two, one, self._spoils)):
                        threading.Thread(target=_pump, args=(a, b, spoils), daemon=True).start()


def _pump(source, target, spoils):
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            if spoils is not None and spoils(chunk):
                break
            target.sendall(chunk)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        source.close()
