"""Real nats-server processes for tests and tools: one alone, or three as a cluster, on loopback ports of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from ledger.errors import GatebookError

SERVER = shutil.which("nats-server", path=os.path.dirname(sys.executable)) or shutil.which("nats-server")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def eventually(what, seconds=60):
    """`what()`, tried again while the cluster is not ready."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return what()
        except GatebookError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class Server:
    """One server with its own folder; `start` after `kill` takes the same place again."""

    def __init__(self, folder, name: str = "n1", port: int = 0, *, routes: str = "", extra: str = "") -> None:
        self.folder = str(folder)
        self.name = name
        os.makedirs(self.folder, exist_ok=True)
        self.config = os.path.join(self.folder, "server.conf")
        self._chosen, self._routes, self._extra = port, routes, extra
        self._choose()
        self.process: subprocess.Popen | None = None

    def _choose(self) -> None:
        """Take free ports (another process may be quicker: then `start` chooses again)."""
        self.port, self.monitor = (self._chosen, free_ports(1)[0]) if self._chosen else free_ports(2)
        name, routes, extra = self.name, self._routes, self._extra
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(
                f'server_name: {name}\nhost: 127.0.0.1\nport: {self.port}\nhttp: "127.0.0.1:{self.monitor}"\n'
                f'jetstream {{ store_dir: "{self.folder}/js", sync_interval: always }}\n{routes}\n{extra}\n'
            )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Server:
        new = not os.path.exists(os.path.join(self.folder, "log"))
        log = open(os.path.join(self.folder, "log"), "ab")
        self.process = subprocess.Popen([SERVER, "-c", self.config], stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                said = open(os.path.join(self.folder, "log")).read()
                if self.process.poll() is not None and new and not self._chosen and "in use" in said:
                    os.unlink(os.path.join(self.folder, "log"))
                    self._choose()
                    return self.start()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(said[-3000:]) from None
                time.sleep(0.02)

    def kill(self, how: int = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait()

    def wipe(self) -> None:
        """Lose the disk."""
        shutil.rmtree(os.path.join(self.folder, "js"), ignore_errors=True)


class Cluster:
    """Three servers; `url(name)` names a ledger on it. With `proxies` (tools/fleet/proxy.py) nodes can be cut off."""

    def __init__(self, folder, extra: str = "", proxies=None) -> None:
        ports = free_ports(6)
        clients, routes = ports[:3], ports[3:]
        self.proxies = proxies
        self.servers = []
        for n in range(3):
            others = []
            for other in range(3):
                port = routes[other]
                if proxies is not None and other != n:
                    listener = socket.create_server(("127.0.0.1", 0))
                    port = listener.getsockname()[1]
                    proxies.add(f"n{n + 1}", f"n{other + 1}", listener, routes[other])
                if proxies is None or other != n:
                    others.append(f"nats://127.0.0.1:{port}")
            cluster = (
                f"cluster {{ name: fleet, host: 127.0.0.1, port: {routes[n]}, pool_size: 1, "
                f"no_advertise: {'true' if proxies else 'false'}, routes: [{', '.join(others)}] }}"
            )
            place = os.path.join(str(folder), f"n{n + 1}")
            self.servers.append(Server(place, f"n{n + 1}", clients[n], routes=cluster, extra=extra))

    def start(self) -> Cluster:
        for server in self.servers:
            server.start()
        return self

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def named(self, name: str) -> Server:
        return next(server for server in self.servers if server.name == name)

    def url(self, name: str, first: int = 0) -> str:
        servers = self.servers[first:] + self.servers[:first]
        return f"nats://{','.join(server.address for server in servers)}/{name}"
