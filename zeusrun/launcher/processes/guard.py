"""Starts the process that restores power limits if zeusrun dies, and talks to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING, cast

from zeusrun.errors import DeviceError
from zeusrun.launcher.processes.torchrun import is_readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# "-m" would put the working directory before the standard library.
_GUARD_MAIN = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from zeusrun.gpu.power_limits.guard import main; main()"
)


class GuardProcess:
    """The process that runs ``gpu/power_limits/guard.py``; a ``Guard`` of ``holder.py``."""

    _READY_S = 10.0
    _GONE_S = 5.0

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        uuids: Sequence[str],
        descriptors: Sequence[int],
    ) -> None:
        """Start it, and wait until it is ready; raises ``DeviceError``.

        ``directory`` contains the records of the GPUs with these UUIDs. The process keeps
        ``descriptors`` open. If it is killed before it is ready, another follows.
        """
        command = [sys.executable, "-c", _GUARD_MAIN, str(directory), *uuids]
        for _ in range(2):
            try:
                self._process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
                    command,
                    env=dict(environment),
                    cwd="/",
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=tuple(descriptors),
                    start_new_session=True,
                )
            except OSError as error:
                raise DeviceError(f"no guard could be started: {error}") from error
            stdout = cast("IO[bytes]", self._process.stdout).fileno()
            if is_readable(stdout, self._READY_S) and os.read(stdout, 64) != b"":
                return
            errors = b""
            try:
                errors = self._process.communicate(timeout=1.0)[1]
            except subprocess.TimeoutExpired:
                self._process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the driver
                    errors = self._process.communicate(timeout=self._GONE_S)[1]
                break
            if self._process.returncode != -signal.SIGKILL:
                break
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise DeviceError(f"no guard could be started: {''.join(last) or 'it does not answer'}")

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def dismiss(self) -> None:
        """Make it exit, and wait for that; it stays while it still has a limit to restore."""
        cast("IO[bytes]", self._process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._GONE_S)
        for stream in (self._process.stdout, self._process.stderr):
            cast("IO[bytes]", stream).close()
