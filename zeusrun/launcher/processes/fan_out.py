"""Starts something on a node by a command such as ssh or srun: its launcher, or a sentinel."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, cast

from zeusrun.errors import LaunchError
from zeusrun.launcher.rundir.failure import describe_exit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

_END_S = 5.0
_LAST_BYTES = 4096


class FanOutProcess:
    """The fan-out command of one host. ``reading`` and ``writing`` are its pipes, the caller's."""

    def __init__(self, words: Sequence[str], number: int, python: Sequence[str] = ()) -> None:
        """Start it; raises ``LaunchError``.

        ``python`` are the words that start Python there, by default this one, quoted for a shell.

        It gets a session of its own, so that Ctrl-C ends only the training, and that gracefully.
        What it starts needs no environment of ours, so secrets are in no argument list.
        """
        # Without -P, a random.py in the home directory would replace Python's.
        safe = ("-P",) if sys.version_info >= (3, 11) else ()
        python = python or (shlex.quote(sys.executable),)
        launcher = (*python, *safe, "-m", "zeusrun", "node", str(number))
        self._name = words[0]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        try:
            self._process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
                [*words, *launcher],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd="/",  # "-m" puts it before the standard library
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise LaunchError(
                f"run_on.fan_out: {self._name} could not be started: {error.strerror}"
            ) from error
        self.reading = os.dup(cast("IO[bytes]", self._process.stdout).fileno())
        self.writing = os.dup(cast("IO[bytes]", self._process.stdin).fileno())
        for pipe in (self._process.stdin, self._process.stdout):
            cast("IO[bytes]", pipe).close()

    def explain_end(self) -> str:
        """Return how it has ended, with the last line of its errors; empty if it runs."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return ""
        if self._errors.closed:
            return ""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{self._name} {describe_exit(code)}" + (f": {last}" if last else "")

    def end(self, *, at_once: bool) -> None:
        """Wait until it has ended, or kill it; ``at_once``: nobody is at the other end."""
        try:
            self._process.wait(0.0 if at_once else _END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class Sentinel:
    """A command, such as srun, that runs ``cat`` until this process closes its input or dies."""

    def __init__(self, words: Sequence[str]) -> None:
        """Start it; raises ``OSError``."""
        self._process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
            [*words, "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def was_signalled(self) -> bool:
        """Whether SIGTERM or SIGKILL has ended it; ``srun`` exits with 128 and the signal."""
        return self._process.poll() in {128 + signal.SIGTERM, 128 + signal.SIGKILL}

    def end(self) -> None:
        """End it, and wait for that."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_END_S)  # closes its input
        self._process.kill()
        self._process.wait()
