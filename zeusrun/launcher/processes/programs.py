"""Starts programs other than torchrun: in the background, or for a moment.

Every function raises ``OSError`` if the program cannot be started. No shell is involved.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STDERR_BYTES = 2000

Detached = subprocess.Popen[bytes]
"""A process that outlives this one."""


def start_detached(
    argv: Sequence[str], environment: Mapping[str, str], log: int, inherited: Sequence[int] = ()
) -> Detached:
    """Start a command that outlives this process; its output goes to the descriptor ``log``.

    It also gets the descriptors ``inherited``.
    """
    return subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
        argv,
        env=dict(environment),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        pass_fds=inherited,
    )


def run_briefly(
    argv: Sequence[str],
    content: bytes = b"",
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> tuple[int, bytes, str]:
    """Run a command with ``content`` as input; return its exit code, output and error output.

    Raises ``TimeoutError`` if it took too long; it has been killed.
    """
    try:
        done = subprocess.run(  # noqa: S603 - an argument vector, never a shell
            argv,
            input=content,
            env=environment,
            capture_output=True,
            check=False,
            timeout=timeout_s,
            start_new_session=True,  # Ctrl-C is for zeusrun
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"it took longer than {timeout_s:g} s") from error
    return done.returncode, done.stdout, done.stderr.decode(errors="replace").strip()


def run_bounded(
    argv: Sequence[str], content: bytes, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, str]:
    """Run a command with ``content`` as input; return its exit code and end of its error output.

    Does not wait for processes that the command leaves in the background. Raises ``TimeoutError``
    if it took too long; it has been killed, with its process group.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(content)
        stdin.seek(0)
        process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
            argv,
            env=dict(environment),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TimeoutError(f"it took longer than {timeout_s:g} s") from error
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
        return code, stderr.read(_STDERR_BYTES).decode(errors="replace").strip()
