"""A fake torchrun: starts, watches, restarts and ends the ranks of one node, and is up in 0.1 s.

Real torchrun imports torch for more than a second before it starts a rank. With this folder's
grandparent in ``PYTHONPATH``, ``from torch.distributed.run import main`` finds this module, so
zeusrun needs no switch for it. The ranks do not see it: they import the installed torch. What both
must do is in ``tests/contracts/agent.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from string import Template

FOLDER = str(Path(__file__).parents[2])
OPTIONS = (  # one a line: zeusrun reads which options a torchrun has from its source
    "--nnodes",
    "--nproc-per-node",
    "--max-restarts",
    "--monitor-interval",
    "--no-python",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--shutdown-timeout",
)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
MONITOR_INTERVAL_S = 0.1
RESERVED: list[socket.socket] = []  # bound, but not listening
AFTER_FAILURE_S = 30.0  # torchrun's own; --shutdown-timeout counts for signals alone


class SignalException(Exception):  # noqa: N818 - the name that torchrun's traceback ends with
    """The agent was told to end."""


class ChildFailedError(Exception):
    """The ranks have failed and no restart is left."""


@dataclass
class Rank:
    """One process, its leader's process group, and the file it may leave its error in."""

    rank: int
    process: subprocess.Popen[bytes]
    error_file: Path

    @property
    def failed(self) -> bool:
        return self.process.poll() not in (None, 0)

    def describe(self) -> str:
        code = self.process.returncode
        signalled = f" ({signal.Signals(-code).name})" if code < 0 else ""
        return (
            f"  rank      : {self.rank} (local_rank: {self.rank})\n"
            f"  exitcode  : {code} (pid: {self.process.pid}){signalled}\n"
            f"  traceback : {read_error(self.error_file)}"
        )


def main() -> None:
    options, command = parse(sys.argv[1:])
    if options["--nnodes"] != "1":
        sys.exit("this fake runs on one node")
    errors = tempfile.mkdtemp(prefix="fake-torchrun-")
    try:
        run(options, command, Path(errors))
    finally:
        shutil.rmtree(errors, ignore_errors=True)


def parse(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split off our own options; ``--``, or the first word that is none, ends them."""
    options = dict.fromkeys(OPTIONS, "")
    while arguments and arguments[0].startswith("-"):
        name, _, value = arguments.pop(0).partition("=")
        if name == "--":
            break
        if name not in options or not (value or name == "--no-python"):
            sys.exit(f"unrecognized argument: {name}")
        options[name] = value or "yes"
    return options, arguments


def run(options: dict[str, str], command: list[str], errors: Path) -> None:
    """Start the ranks, again after a failure as often as that is allowed, and wait for them."""
    restarts, left = 0, int(options["--max-restarts"])
    ranks: list[Rank] = []
    for number in SIGNALS:
        signal.signal(number, tell_the_end)
    try:
        start(ranks, options, command, restarts, errors)
        while True:
            time.sleep(MONITOR_INTERVAL_S)
            if not any(rank.process.poll() is None or rank.failed for rank in ranks):
                return
            failed = [rank for rank in ranks if rank.failed]
            if not failed:
                continue
            end(ranks, signal.SIGTERM, AFTER_FAILURE_S)
            if restarts == left:
                raise ChildFailedError(table(failed[0], [r for r in ranks if r.failed]))
            restarts += 1
            start(ranks, options, command, restarts, errors)
    except SignalException as told:
        grace = options["--shutdown-timeout"] or os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
        try:
            end(ranks, told.args[1], float(grace or 30))
        except SignalException:  # told again: they keep their grace
            end(ranks, signal.SIGTERM, float(grace or 30))
            raise
        raise


def tell_the_end(number: int, _frame: object) -> None:
    raise SignalException(f"Process {os.getpid()} got signal: {number}", signal.Signals(number))


def start(
    ranks: list[Rank], options: dict[str, str], command: list[str], restarts: int, errors: Path
) -> None:
    """Start every rank in a session of its own."""
    ranks.clear()
    world_size = int(options["--nproc-per-node"])
    port = reserve_port()
    shared = {
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "ROLE_WORLD_SIZE": world_size,
        "GROUP_WORLD_SIZE": 1,
        "GROUP_RANK": 0,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": options["--rdzv-id"],
        "TORCHELASTIC_RESTART_COUNT": restarts,
        "TORCHELASTIC_MAX_RESTARTS": options["--max-restarts"],
        "TORCHELASTIC_USE_AGENT_STORE": False,  # rank 0 serves the store
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
    }
    inherited = dict(os.environ)
    if world_size > 1:
        inherited.setdefault("OMP_NUM_THREADS", "1")
    rest = [path for path in inherited.pop("PYTHONPATH", "").split(":") if path != FOLDER]
    if any(rest):
        inherited["PYTHONPATH"] = ":".join(rest)
    python = [] if options["--no-python"] else [sys.executable, "-u"]
    for rank in range(world_size):
        error_file = errors / f"{restarts}-{rank}.json"
        own = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank}
        place = {"local_rank": rank}
        own["TORCHELASTIC_ERROR_FILE"] = error_file
        process = subprocess.Popen(
            [*python, *(Template(word).safe_substitute(place) for word in command)],
            env={**inherited, **{name: str(value) for name, value in {**shared, **own}.items()}},
            start_new_session=True,
        )
        ranks.append(Rank(rank, process, error_file))


def reserve_port() -> int:
    """Return a port that rank 0 may listen on, and nobody else gets while this process lives."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # rank 0 sets it, too
    reserved.bind(("", 0))
    RESERVED.append(reserved)
    return int(reserved.getsockname()[1])


def end(ranks: list[Rank], number: int, timeout_s: float) -> None:
    """Signal the process groups of the ranks that run, and kill those that outlast the timeout."""
    name = signal.Signals(number).name
    for rank in ranks:
        if rank.process.poll() is None:
            os.killpg(rank.process.pid, number)
    until_t = time.monotonic() + timeout_s
    for rank in ranks:
        try:
            rank.process.wait(max(0.0, until_t - time.monotonic()))
        except subprocess.TimeoutExpired:
            pid = rank.process.pid
            sys.stderr.write(f"Unable to shutdown process {pid} via {name}\n")
            os.killpg(pid, signal.SIGKILL)
            rank.process.wait()


def table(root: Rank, failed: list[Rank]) -> str:
    """Describe the ranks that failed as torchrun does, as far as zeusrun reads it."""
    others = "\n".join(rank.describe() for rank in failed if rank is not root)
    return (
        f"FAILED\nFailures:\n{others or '  none'}\n"
        f"Root Cause (first observed failure):\n{root.describe()}"
    )


def read_error(path: Path) -> str:
    """Return the traceback that a rank has left where ``@record`` leaves it."""
    try:
        message = json.loads(path.read_text(encoding="utf-8"))["message"]
    except FileNotFoundError:
        return "none was left"
    return str(message if isinstance(message, str) else message["extraInfo"]["py_callstack"])


if __name__ == "__main__":
    main()
