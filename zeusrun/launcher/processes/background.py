"""Processes beside a training: one that outlives its parent, and commands of a moment."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COMPLAINT_BYTES = 2000

Detached = subprocess.Popen[bytes]
"""A process that outlives this one."""


def start_detached(argv: Sequence[str], environment: Mapping[str, str], log: int) -> Detached:
    """Start a command that outlives this process: a session of its own, at ``/``, no input.

    Args:
        argv: The command and its arguments; no shell is involved.
        environment: The command's, and nothing else.
        log: A descriptor that its output goes to.

    Raises:
        OSError: If it could not be started.
    """
    return subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
        argv,
        env=dict(environment),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def run_briefly(argv: Sequence[str], content: bytes = b"") -> tuple[int, bytes, str]:
    """Run a command that ends by itself; return its exit code, output and complaints.

    Args:
        argv: The command and its arguments; no shell is involved.
        content: Its input.

    Raises:
        OSError: If it could not be started.
    """
    done = subprocess.run(argv, input=content, capture_output=True, check=False)  # noqa: S603
    return done.returncode, done.stdout, done.stderr.decode(errors="replace").strip()


def run_bounded(
    argv: Sequence[str], content: bytes, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, str]:
    """Run a command for so long at most; return its exit code and complaints.

    What it leaves in the background is not waited for.

    Raises:
        OSError: If it could not be started.
        TimeoutError: If it took too long; it has been killed, with what it started.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as complaints:
        given.write(content)
        given.seek(0)
        process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
            argv,
            env=dict(environment),
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TimeoutError(f"it took longer than {timeout_s:g} s") from error
        complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - _COMPLAINT_BYTES))
        return code, complaints.read(_COMPLAINT_BYTES).decode(errors="replace").strip()
