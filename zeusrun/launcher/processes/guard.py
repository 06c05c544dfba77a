"""The process that restores power limits if zeusrun dies, as its parent sees it."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from typing import IO, TYPE_CHECKING, cast

from zeusrun.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# "-m" would put the working directory before the standard library; see torchrun.py.
_GUARD_MAIN = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from zeusrun.gpu.power_limits.guard import main; main()"
)


class GuardProcess:
    """The process that restores power limits when this one dies; see ``gpu.guard``."""

    _READY_S = 10.0
    _GONE_S = 5.0

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        found_w: Mapping[str, float],
        descriptors: Sequence[int],
    ) -> None:
        """Start it, and wait until it watches.

        Args:
            directory: Of the records.
            environment: Its environment.
            found_w: The limits to go back to, in watts, by the GPU's UUID.
            descriptors: File descriptors that it inherits and keeps open.

        Raises:
            DeviceError: If it does not come up.
        """
        limits = [f"{uuid}={watts!r}" for uuid, watts in found_w.items()]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
                [sys.executable, "-c", _GUARD_MAIN, str(directory), *limits],
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
        if not self._is_ready():
            self._process.kill()
            complaint = b""
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the driver
                _, complaint = self._process.communicate(timeout=self._GONE_S)
            last = complaint.decode(errors="replace").strip().splitlines()[-1:]
            raise DeviceError(f"no guard could be started: {''.join(last) or 'it does not answer'}")

    def is_alive(self) -> bool:
        """See ``gpu.power_limit.Guard``."""
        return self._process.poll() is None

    def dismiss(self) -> None:
        """See ``gpu.power_limit.Guard``."""
        cast("IO[bytes]", self._process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._GONE_S)  # it goes on trying where a limit was not restored
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _is_ready(self) -> bool:
        told = cast("IO[bytes]", self._process.stdout).fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(told, selectors.EVENT_READ)
            answered = selector.select(self._READY_S)
        return bool(answered) and bool(os.read(told, 64))
