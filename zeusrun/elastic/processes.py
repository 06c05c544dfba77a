"""Starts, signals and reaps the processes of the ranks on one host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from zeusrun.elastic.plan import Plan
from zeusrun.elastic.rank.board import FOLDER
from zeusrun.sidecar.orders import AGENT_TOKEN
from zeusrun.worker.ending import announce_agent, end_with_parent
from zeusrun.worker.failure import failed_in_restart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that end an agent, which passes them on to the ranks."""

SIGNALS = {signal.SIGCHLD, *PASSED_ON}


class Exit(NamedTuple):
    """How a process of a rank has ended.

    Attributes:
        code: Its exit code, negative for a signal.
        out_of_memory: Whether it lacked memory.
        error: The content of its error file; empty without one.
        how: In words, if the code does not say it.
    """

    code: int
    out_of_memory: bool = False
    error: str = ""
    how: str = ""


class RankProcess(Protocol):
    """A process of a rank, on any host."""

    @property
    def pid(self) -> int:
        """Its process id on its host; 0 as long as that is unknown."""

    def signal(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to it and its children."""

    def read_exit(self) -> Exit | None:
        """Return how it has ended; ``None`` as long as it runs."""


class Host(Protocol):
    """A host on which ranks can start.

    Attributes:
        number: 0 for the host of the head.
        ranks: How many ranks it has at the start.
        most: How many ranks it may have.
        address: Where other hosts reach it.
    """

    number: int
    ranks: int
    most: int
    address: str

    def start(self, slot: int, restart: int, variables: Mapping[str, object]) -> RankProcess:
        """Start a process in a session of its own; raises ``OSError``."""

    def forget_error(self) -> None:
        """Remove the record of an error that is not the cause if the training fails later."""


class LocalHost:
    """This host. See ``Host``.

    Args:
        plan: That of its agent.
        run_dir: With the files of its ranks.
        command: Of a rank.
        mask: The signals that are blocked in a rank.
    """

    def __init__(
        self, plan: Plan, run_dir: Path, command: Sequence[str], mask: set[signal.Signals]
    ) -> None:
        self._run_dir, self._command, self._mask = run_dir, command, mask
        self.number, self.address = plan.number, plan.address
        self.ranks, self.most = plan.own_ranks or plan.ranks, plan.most_here

    def start(self, slot: int, restart: int, variables: Mapping[str, object]) -> LocalProcess:
        """See ``Host.start``."""
        error = self._run_dir / FOLDER / f"error{slot}.{restart}.json"
        given = {**variables, "TORCHELASTIC_ERROR_FILE": error}
        process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
            self._command,
            env={
                **{name: each for name, each in os.environ.items() if name != AGENT_TOKEN},
                **{name: str(each) for name, each in given.items()},
            },
            start_new_session=True,
            preexec_fn=self._restore_mask,  # noqa: PLW1509 - the agent has no threads
        )
        return LocalProcess(process, error, str(self._run_dir / "error.json"), restart)

    def _restore_mask(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as torchrun leaves it

    def forget_error(self) -> None:
        """See ``Host.forget_error``."""
        with contextlib.suppress(OSError):
            (self._run_dir / "error.json").unlink()


class LocalProcess:
    """A process of a rank on this host."""

    def __init__(
        self, process: subprocess.Popen[bytes], error: Path, run_error: str, restart: int
    ) -> None:
        self._process, self._error = process, error
        self._run_error, self._restart = run_error, restart

    @property
    def pid(self) -> int:
        """See ``RankProcess.pid``."""
        return self._process.pid

    def signal(self, number: int = signal.SIGKILL) -> None:
        """See ``RankProcess.signal``."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, number)

    def read_exit(self) -> Exit | None:
        """See ``RankProcess.read_exit``.

        If it failed, this kills its data loader workers, which keep its connections open.
        """
        # With WNOWAIT, no other process gets its pid before ``wait``.
        end = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if end is None:
            return None
        if (end.si_code, end.si_status) != (os.CLD_EXITED, 0):
            self.signal()
        code, error = self._process.wait(), ""
        if code:
            with contextlib.suppress(OSError):
                error = self._error.read_text(encoding="utf-8", errors="replace")
        memory = failed_in_restart(self._run_error, "out_of_memory") == self._restart
        return Exit(code, memory, error)


def begin() -> tuple[Plan, LocalHost, Path]:
    """Begin the process of an agent; return its plan, this host and the run directory."""
    end_with_parent()
    announce_agent()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS, signal.SIGUSR1})
    plan, run_dir = Plan(**json.loads(sys.argv[1])), Path(os.environ["ZEUSRUN_RUN_DIR"])
    return plan, LocalHost(plan, run_dir, sys.argv[2:], set(map(signal.Signals, mask))), run_dir
