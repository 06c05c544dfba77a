"""The right to change a GPU's power limit: one zeusrun has it, until it is gone.

It is a name in Linux' abstract socket namespace (unix(7)): no file and no permission is in the
way between users of a machine (to be exact, of a network namespace), and the kernel frees it with
the last process that has it. A guard that inherits it keeps it until the GPU is as it was found.
"""

from __future__ import annotations

import errno
import socket

from zeusrun.errors import DeviceError


class LimitLock:
    """The lock of one GPU."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._socket: socket.socket | None = None

    def acquire(self) -> bool:
        """Take the lock; return whether it was free.

        Raises:
            DeviceError: If the kernel knows no such locks.
        """
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0zeusrun/power-limit/{self._uuid}")
        except OSError as error:
            name.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise DeviceError(f"{self._uuid}: its limit cannot be locked: {error}") from error
        self._socket = name
        return True

    def fileno(self) -> int:
        """Return the descriptor that a guard inherits; the lock must be held."""
        return -1 if self._socket is None else self._socket.fileno()

    def release(self) -> None:
        """Let go. More than once is fine."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def is_held(uuid: str) -> bool:
    """Whether somebody has the lock of a GPU now."""
    lock = LimitLock(uuid)
    free = lock.acquire()
    lock.release()
    return not free
