"""The network of the pods of TrainJobs: each has an address on a bridge that no other test sees."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import threading
from contextlib import suppress

HOST = "10.78.0.1"  # of the bridge: where a pod finds what the test offers
_BRIDGE = f"""
ip link set lo up
ip link add br0 type bridge
ip addr add {HOST}/16 dev br0
ip link set br0 up
echo ready
exec cat
"""
_NEW_NETWORK = 1 << 30


class Network:
    """A network namespace with a bridge; it ends when the test is done or was killed."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-ec", _BRIDGE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._holder.stdout.readline() != b"ready\n":
            raise RuntimeError("no bridge here")
        self._plugs: dict[str, list] = {}
        self._listening: list[socket.socket] = []
        self._connections: list[socket.socket] = []
        self._acceptors: list[threading.Thread] = []
        self._pumps: list[threading.Thread] = []

    def plug(self, uid) -> list:
        """Return what ``container.join_network`` needs for a pod: its address stays the same."""
        number = len(self._plugs) + 1
        address = f"10.78.{1 + number // 250}.{1 + number % 250}"
        return self._plugs.setdefault(uid, [self._holder.pid, number, address, HOST])

    def listen(self, port=0) -> socket.socket:
        """Return a socket that listens on the bridge; it is of this process all the same."""
        made = []

        def work():  # the namespace is that of a thread, and a socket stays where it was made
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/proc/{self._holder.pid}/ns/net", "rb") as namespace:
                if libc.setns(namespace.fileno(), _NEW_NETWORK):
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server((HOST, port)))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self._listening += made
        return made[0]

    def forward(self, port) -> str:
        """Let pods reach a server on 127.0.0.1; return its URL for them."""
        self._acceptors.append(_start(self._accept, self.listen(port), port))
        return f"http://{HOST}:{port}"

    def close(self):
        for opened, threads in (
            (self._listening, self._acceptors),  # first: then nobody adds a connection
            (self._connections, self._pumps),
        ):
            for each in opened:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            for each in threads:
                each.join()
            for each in opened:
                each.close()
        self._holder.communicate()

    def _accept(self, listener, port):
        while True:
            try:
                there, _ = listener.accept()
            except OSError:
                return
            try:
                here = socket.create_connection(("127.0.0.1", port))
            except OSError:
                there.close()
                continue
            self._connections += (there, here)
            for pair in ((there, here), (here, there)):
                self._pumps.append(_start(_pump, *pair))


def _start(target, *args) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


def _pump(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
