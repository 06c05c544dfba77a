"""The head's side of a node launcher: its ranks, its devices, its power limits."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from zeusrun import errors
from zeusrun.errors import LaunchError, ZeusrunError
from zeusrun.launcher.processes.command import WORKER
from zeusrun.launcher.processes.torchrun import ProcessExit, StopLevel
from zeusrun.launcher.rundir.layout import has_checkpoint
from zeusrun.run_on.hosts.channel import receive_all
from zeusrun.run_on.hosts.devices import RemoteDevice, RemoteLimits
from zeusrun.run_on.hosts.mirror import write_copy
from zeusrun.sidecar.step_clock import StepCount

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.launcher.processes.command import Command
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.run_on.hosts.channel import Channel, Message

_ANSWER_S = 30.0  # a node that prepares opens its GPUs
_MARGIN_S = 70.0  # after the grace of the ranks, for the rest of their files
_KEPT_PINGS = 30  # of the last ones, the fastest tells the difference of the clocks
_STALE_S = 1.0  # a device is read ten times a second


class RemoteNode:
    """One other host of a submit, from its first message to its last. A thread reads them.

    Attributes:
        number: Of the node; the head's host is 0.
        name: Of the host, as the user calls it.
        ranks: Of this host, once it is prepared.
        states: The process state of each of its live ranks, as psutil names it.
        counts: The step clock of each of its ranks that has made a step.
        lost: Why the host is lost, as a sentence; ``None`` if it is not.
        shared: Whether others computed on its devices in this run; ``None`` if unknown.
        notices: Sentences of the node for the user, oldest first; whoever shows one removes it.
    """

    def __init__(
        self, number: int, name: str, channel: Channel, explain_end: Callable[[], str] = lambda: ""
    ) -> None:
        """Start to read; ``explain_end`` returns why the connection has ended, if that is known."""
        self.number, self.name, self.channel = number, name, channel
        self.ranks = range(0)
        self.devices: list[RemoteDevice] = []
        self.hello: Message | None = None
        self.lost: str | None = None
        self.notices: deque[str] = deque()
        self.signals: deque[int] = deque()  # that the node launcher got
        self.limits = RemoteLimits(name, self.call)
        self.ended = threading.Event()  # the present run has, or the host is lost
        self._explain_end = explain_end
        self._leaving = False
        self._left: str | None = None  # why the node launcher has left, as a sentence
        self._calls = itertools.count(1)
        self._answers: dict[int, Message] = {}
        self._answered = threading.Condition()
        self._pings: deque[tuple[float, float]] = deque(maxlen=_KEPT_PINGS)  # round trip, offset
        self.heard_t = time.monotonic()
        self._begin_run(None)
        self._thread = threading.Thread(target=self._read, name=f"zeusrun-{name}", daemon=True)
        self._thread.start()

    def _begin_run(self, paths: RunPaths | None) -> None:
        self._paths, self._grace_s = paths, 0.0
        self._started, self._copies_all = 0, True
        self._exit: ProcessExit | None = None
        self._level = StopLevel.NONE
        self.counts: dict[int, StepCount] = {}
        self.states: dict[int, str] = {}
        self.all_live = True
        self.oom_kills: int | None = None
        self.shared: bool | None = None
        self.saved = False  # whether a checkpoint of the run is on its disk, or on a shared one
        self._until_t = math.inf
        if self.lost is None:
            self.ended.clear()

    # Messages

    def call(self, kind: str, **fields: Any) -> Message:  # noqa: ANN401 - of a message
        """Ask the node, and wait for its answer; raises what the node raises."""
        return self.wait_for(self.ask(kind, **fields))

    def ask(self, kind: str, **fields: Any) -> int:  # noqa: ANN401 - of a message
        """Ask the node; return the number of the call."""
        number = next(self._calls)
        self.channel.send(kind, call=number, **fields)
        return number

    def wait_for(self, call: int) -> Message:
        """Return the answer to a call; raises what the node raises, with the name of the host."""
        with self._answered:
            self._answered.wait_for(lambda: call in self._answers or self.lost, _ANSWER_S)
            answer = self._answers.pop(call, None)
        if answer is None:
            raise LaunchError(self.lost or f"host {self.name} has not answered for {_ANSWER_S:g} s")
        if (text := answer.get("error")) is not None:
            kind: type[ZeusrunError] = getattr(errors, answer["type"], LaunchError)
            names_host = text.startswith(f"host {self.name}")
            raise kind(text if names_host else f"host {self.name}: {text}")
        return answer

    def wait_for_hello(self, timeout_s: float) -> Message | None:
        """Return the first message of the node; ``None`` if the connection ended or is late."""
        with self._answered:
            self._answered.wait_for(lambda: self.hello or self.lost, timeout_s)
        return self.hello

    def ping(self) -> None:
        """Ask for a sign of life, which also measures the difference of the clocks."""
        self.channel.send("ping", t=time.monotonic())

    def to_own_time(self, t: float) -> float:
        """Return a time of the node's clock by the clock of this host; never later than now."""
        offset_s = min(self._pings, default=(0.0, math.nan))[1]
        now_t = time.monotonic()
        return now_t if math.isnan(offset_s) else min(t + offset_s, now_t)

    def mark_lost(self, why: str) -> None:
        """Give the host up."""
        with self._answered:
            if self.lost is None:
                self.lost = why
            self.ended.set()
            self._answered.notify_all()

    def close(self) -> None:
        """Tell the node to end, and close the connection."""
        self._leaving = True
        self.channel.send("bye")
        self._thread.join(_STALE_S)  # for the last words of the node
        self.channel.close()
        self._thread.join(_STALE_S)  # it may write to a disk that does not answer

    def _read(self) -> None:
        problem = None
        if not self.channel.is_private or self.channel.skip_noise():
            problem = receive_all(self.channel, self._take)
        if not self._leaving:
            why = problem or self._explain_end()
            what = "is lost: its node launcher has ended, or the connection was lost"
            what = "cannot be reached" if self.hello is None else what
            self.mark_lost(self._left or f"host {self.name} {what}{f' ({why})' if why else ''}")

    def _take(self, message: Message) -> None:
        self.heard_t = time.monotonic()
        kind = message["kind"]
        if kind in {"hello", "answer"}:
            self._take_answer(message)
        elif kind == "pong":
            round_trip_s = self.heard_t - message["t"]
            self._pings.append((round_trip_s, message["t"] + round_trip_s / 2 - message["own_t"]))
        elif kind == "readings":
            self._take_readings(message["readings"])
        elif kind == "file":
            self._take_file(message["name"], message["data"].encode("latin-1"))
        elif kind == "state":
            self._take_state(message)
        elif kind == "warning":
            self.notices.append(f"host {self.name}: {message['text']}")
        elif kind == "signal":
            self.signals.append(message["number"])
        elif kind == "left":
            self._left = f"host {self.name} left because {message['why']}"
        elif kind == "ended":
            self._take_end(message)

    def _take_answer(self, message: Message) -> None:
        with self._answered:
            if message["kind"] == "hello":
                self.hello = message
            else:
                self._answers[message["call"]] = message
                if message["call"] == self._started and "error" in message:
                    self.ended.set()  # it did not start
            self._answered.notify_all()

    def _take_file(self, name: str, data: bytes) -> None:
        if self._paths is not None:
            try:
                write_copy(self._paths, self.number, name, data, self.to_own_time)
            except OSError as error:
                self._copies_all = False
                path = error.filename or self._paths.run_dir / name
                self.notices.append(f"{path} is incomplete: {error.strerror}")

    def _take_end(self, message: Message) -> None:
        self.saved = message["saved"]
        if message["copied"] and self._copies_all and self._paths is not None:
            self.channel.send("remove", run_dir=str(self._paths.run_dir))
        code, ended_t, outlived, left = message["exit"]
        names = self._named(outlived), self._named(left)
        self._exit = ProcessExit(code, self.to_own_time(ended_t), *names)
        if self._left is not None:  # by now its ranks have saved
            self.mark_lost(self._left)
        self.ended.set()

    def _named(self, processes: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"{name} on {self.name}" for name in processes)

    def _take_state(self, message: Message) -> None:
        self.states = {int(rank): state for rank, state in message["states"].items()}
        self.all_live, self.oom_kills = message["all_live"], message["oom_kills"]
        self.shared = message["shared"]
        if message["limits"]:
            self.limits.take(message["limits"])
        for rank, (steps, first_t, last_t, _, *more) in message["counts"].items():
            times = self.to_own_time(first_t), self.to_own_time(last_t)
            samples, passes, others, waits_s = more
            done = steps, *times, samples, passes, others
            self.counts[int(rank)] = StepCount(*done, waits_s=tuple(waits_s))

    def _take_readings(self, readings: Sequence[Any]) -> None:
        for device, reading in zip(self.devices, readings, strict=False):
            device.take(reading, self.to_own_time)

    # The preparation

    def prepare(self, answer: Message, first_rank: int) -> None:
        """Take what the node says of its host."""
        self.ranks = range(first_rank, first_rank + answer["ranks"])
        self.devices = [RemoteDevice(self.name, each) for each in answer["devices"]]
        self._take_readings(answer["readings"])

    # One run

    def start(self, command: Command, paths: RunPaths, grace_period_s: float) -> None:
        """Let the node start torchrun; ``wait_until_started`` says whether it could."""
        self._begin_run(paths)
        self._grace_s = grace_period_s
        env, unsent = dict(command.env), () if self.channel.is_private else command.secrets
        for name in unsent:
            del env[name]
        self._started = next(self._calls)
        self.channel.send(
            "start",
            call=self._started,
            pid=os.getpid(),
            run_dir=str(paths.run_dir),
            ranks=[self.ranks.start, len(self.ranks)],
            argv=command.argv,
            worker=str(WORKER),
            python=sys.executable,
            env=env,
            own_env=unsent,
            cwd=str(command.cwd),
            script=None if command.script is None else str(command.script),
            grace_s=grace_period_s,
            continues=has_checkpoint(paths.run_dir),
        )

    def wait_until_started(self) -> None:
        """Wait until torchrun runs there; raises ``LaunchError`` with the name of the host."""
        self.wait_for(self._started)

    @property
    def is_running(self) -> bool:
        """Whether its torchrun runs."""
        return bool(self._started) and not self.ended.is_set()

    @property
    def failed(self) -> bool:
        """Whether its torchrun has ended, and not with 0, or the host is lost."""
        return self.lost is not None or (self._exit is not None and self._exit.code != 0)

    def stop(self, level: StopLevel) -> None:
        """End its ranks as firmly as ``level`` says; it never falls.

        A launcher that answers and does not end them in time is given up.
        """
        now_t = time.monotonic()
        if level > self._level and self._started:
            self._level = level
            self.channel.send("stop", level=int(level))
            if level >= StopLevel.TERMINATE:
                grace_s = self._grace_s if level is StopLevel.TERMINATE else 0.0
                self._until_t = now_t + grace_s + _MARGIN_S
        if self.is_running and now_t > self._until_t:
            self.mark_lost(f"host {self.name} is lost: its ranks did not end")

    def finish(self) -> ProcessExit:
        """Wait for the end of the run there, and return how it ended."""
        if self._started and not self.ended.wait(self._grace_s + _MARGIN_S):
            self.mark_lost(f"host {self.name} is lost: its ranks did not end")
        if self._exit is None:
            return ProcessExit(1, time.monotonic(), ())
        return self._exit

    def ask_for_stacks(self) -> None:
        """Ask its ranks to write their stacks, which are copied as its logs are."""
        self.channel.send("stacks")

    def set_members(self, ranks: Sequence[int]) -> None:
        """Say which of its processes are ranks now."""
        self.channel.send("members", ranks=ranks)

    def kill_ranks(self) -> None:
        """Kill its ranks, so that torchrun restarts them."""
        self.channel.send("kill")
