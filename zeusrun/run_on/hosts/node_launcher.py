"""The launcher of one node: runs what depends on local processes and devices, for a head elsewhere.

It decides nothing. It starts torchrun when the head says so, copies to the head what the ranks
write, sends it the readings of the devices, and passes stops on. If the connection ends, the head
is dead, and the ranks are killed, as the watchdog of a head does it. If the head is silent for the
heartbeat, the link is cut: then the ranks have their grace to save.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

from zeusrun import __version__
from zeusrun.energy.sharing import ForeignProcesses, Sharing
from zeusrun.errors import DeviceError, LaunchError, ZeusrunError
from zeusrun.files.home import trusted_home
from zeusrun.gpu.registry import job_devices
from zeusrun.launcher.power.control import open_limits
from zeusrun.launcher.processes.command import (
    DEFAULTS,
    WORKER,
    Command,
    find_torchrun,
    without_own_variables,
)
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.processes.torchrun import TICK_S, StopLevel, check_descriptors
from zeusrun.launcher.rundir.layout import RunPaths, has_checkpoint
from zeusrun.launcher.supervision.neighbours import Neighbours
from zeusrun.launcher.supervision.ranks import RunningRanks
from zeusrun.lever import POWER, Lever
from zeusrun.metrics.base import SidecarReader
from zeusrun.run_on.hosts.channel import receive_all
from zeusrun.run_on.hosts.devices import Sampler, describe_device
from zeusrun.run_on.hosts.mirror import FileReader, create_node_folders, remove_node_folders
from zeusrun.run_on.hosts.network import find_endpoint
from zeusrun.sidecar.events import Regrouped, append_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.energy.device import Device
    from zeusrun.gpu.power_limits.holder import LimitHolder
    from zeusrun.run_on.hosts.channel import Channel, Message

_MAX_BACKLOG_BYTES = 4 << 20  # while the link is slow, the ranks write on and nothing is read
_COPY_S = 60.0  # for the rest of the files, once the ranks have ended
_STATE_S = 1.0  # between two messages with the same state


def versions() -> dict[str, str]:
    """Return what must be the same on all hosts of a run; raises ``LaunchError`` without torch."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"zeusrun": __version__, "torch": find_torchrun().version, "Python": python}


class NodeLauncher:
    """The launcher of one node, from the connection to its end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._heard_t = time.monotonic()
        self._heartbeat_s = 60.0  # until the head says what the job file says
        self._devices: list[Device] = []
        self._home = Path()
        self._environment: dict[str, str] = {}
        self._sampler: Sampler | None = None
        self._holder: LimitHolder | None = None
        self._open = contextlib.ExitStack()  # devices, sampler, limits
        self._run: _NodeRun | None = None
        self._leaving = False

    def serve(self) -> bool:
        """Serve the head until it is done, gone or silent; return whether it used this host."""
        receiving = threading.Thread(target=self._receive, name="zeusrun-head", daemon=True)
        receiving.start()
        with self._open, CaughtSignals() as signals:
            self._channel.send("hello", **_hello())
            told, looked_t = 0, self._heard_t
            while not self._leaving or self._run is not None:
                self._handle_all(TICK_S if self._run is None else 0.0)
                for number in signals.received[told:]:
                    self._channel.send("signal", number=number)
                told = len(signals.received)
                if told and self._run is None:
                    self._leave(StopLevel.KILL, f"it got {Signals(signals.received[0]).name}")
                now_t = time.monotonic()
                if now_t - looked_t > self._heartbeat_s / 2 + 1.0:
                    self._heard_t = now_t  # this process was stopped, and has to read first
                looked_t = now_t
                if (silent_s := now_t - self._heard_t) > self._heartbeat_s:
                    why = f"it heard nothing from this host for {silent_s:.0f} s"
                    self._leave(StopLevel.TERMINATE, f"{why} (run_on.heartbeat_s)")
                if self._run is not None and not self._run.advance(self._guard_limits()):
                    self._run = None
        self._channel.close()
        receiving.join()
        return self._sampler is not None

    def _receive(self) -> None:
        receive_all(self._channel, self._take)
        self._messages.put(None)

    def _take(self, message: Message) -> None:
        self._channel.node = self._channel.node or message["node"]  # after a join, the head's
        if message["node"] != self._channel.node:
            return
        self._heard_t = time.monotonic()
        if message["kind"] == "ping":
            self._channel.send("pong", t=message["t"], own_t=time.monotonic())
        else:
            self._messages.put(message)

    def _handle_all(self, timeout_s: float) -> None:
        """Handle the messages that have come; wait for the first one."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._messages.get(timeout=timeout_s)
                timeout_s = 0.0
                if message is None:
                    self._leave(StopLevel.KILL)
                    return
                self._handle(message)

    def _leave(self, level: StopLevel, why: str = "") -> None:
        """Leave, once the ranks have ended as ``level`` says; ``why``: what the head must know."""
        if why and not self._leaving:
            self._channel.send("left", why=why)
        self._leaving = True
        if self._run is not None:
            self._run.stop(level)

    def _handle(self, message: Message) -> None:
        kind, number = message["kind"], message.get("call")
        if kind == "bye":
            self._leave(StopLevel.KILL)
        elif kind == "stop" and self._run is not None:
            self._run.stop(StopLevel(message["level"]))
        elif kind == "remove":  # the head has written all files of an ended run
            remove_node_folders(RunPaths(Path(message["run_dir"])), self._channel.node)
        elif kind == "members" and self._run is not None:
            self._run.ranks.take(Regrouped(time.monotonic(), 0, tuple(message["ranks"]), ""))
        elif kind in {"stacks", "kill"} and self._run is not None:
            ranks = self._run.ranks
            (ranks.ask_for_stacks if kind == "stacks" else ranks.kill)()
        elif number is not None:
            handlers: dict[str, Callable[[Message], dict[str, Any]]] = {
                "prepare": self._prepare,
                "hold_limits": self._enter_limits,
                "limit": self._limit,
                "start": self._start,
            }
            try:
                answer = handlers[kind](message)
            except ZeusrunError as error:
                answer = {"error": str(error), "type": type(error).__name__}
            self._channel.send("answer", call=number, **answer)

    def _prepare(self, message: Message) -> dict[str, Any]:
        """Open the devices, and return what the head has to know of this host."""
        self._heartbeat_s = float(message["heartbeat_s"])
        self._home = trusted_home({"ZEUSRUN_HOME": message["home"]})
        endpoint = find_endpoint(message["host"], message["nic"], message["head"])
        self._environment = {**os.environ, **message["env"]}
        per_node, most = message["nproc_per_node"], message["most"]
        self._devices, ranks = job_devices(per_node, self._environment, most)
        check_descriptors(ranks)
        for device in self._devices:
            self._open.callback(device.close)
        self._sampler = self._open.enter_context(Sampler(self._channel, self._devices))
        return {
            "ranks": ranks,
            "nic": endpoint.nic,
            "address": endpoint.address,
            "devices": [describe_device(device) for device in self._devices],
            "readings": self._sampler.read(),
        }

    def _enter_limits(self, message: Message) -> dict[str, Any]:
        holder = open_limits(message["mode"], self._devices, self._home, self._environment)
        if holder is not None:
            self._holder = self._open.enter_context(holder)
        return self._limit_state()

    def _limit(self, message: Message) -> dict[str, Any]:
        """Hold or check a limit, or restore the original ones if no watts are given."""
        holder, watts = self._holder, message["watts"]
        if holder is None:
            raise DeviceError("it has no GPU whose power limit can be set")
        if watts is None:
            holder.restore()
        elif message["trial"] is None:
            holder.check(Lever(POWER, watts))
        else:
            holder.hold(Lever(POWER, watts), message["trial"])
        return self._limit_state()

    def _limit_state(self) -> dict[str, Any]:
        holder = self._holder
        if holder is None:
            return {"levers": None, "refused": None, "taken": None}
        watts = [lever.value for lever in holder.levers]
        return {"levers": watts, "refused": holder.refused, "taken": holder.taken}

    def _guard_limits(self) -> dict[str, Any]:
        """Keep the guard of the limits running, and return their state."""
        if self._holder is not None:
            try:
                self._holder.keep_guarded()
            except DeviceError as error:
                return {**self._limit_state(), "refused": str(error)}
        return self._limit_state()

    def _start(self, message: Message) -> dict[str, Any]:
        if self._sampler is None:
            raise LaunchError("it was not prepared")
        _check_start(message, self._environment)
        run = _NodeRun(self._channel, message, self._sampler, self._home)
        run.begin(message, self._environment)
        self._run = run
        return {}


def _check_start(message: Message, environment: dict[str, str]) -> None:
    """Raise ``LaunchError`` if this host lacks what the trial needs."""
    paths = RunPaths(Path(message["run_dir"]))
    cwd, script = message["cwd"], message["script"]
    missing = next((each for each in (cwd, script or cwd) if not Path(each).exists()), None)
    if missing is not None:
        raise LaunchError(
            f"there is no {missing}. The script and its data need the same path on every host: "
            "copy them, or put them on a shared file system"
        )
    if message["continues"] and not has_checkpoint(paths.run_dir):
        raise LaunchError(
            f"the run continues from a checkpoint in {paths.checkpoints}, and this host has none. "
            "Put ZEUSRUN_HOME on a file system that all hosts share, copy the folder there, or "
            f"give the run up: zeusrun cancel {paths.run_dir.name}"
        )
    lacking = [name for name in message["own_env"] if name not in environment]
    if lacking:
        raise LaunchError(
            f"{', '.join(lacking)} is not set. zeusrun sends no secret over a connection that "
            "is not encrypted: set it for `zeusrun join` on this host"
        )


class _NodeRun:
    """The ranks of one trial on this host."""

    def __init__(self, channel: Channel, message: Message, sampler: Sampler, home: Path) -> None:
        self._channel, self._sampler = channel, sampler
        self._paths = RunPaths(Path(message["run_dir"]))
        self._level = StopLevel.NONE
        first, count = message["ranks"]
        files = self._paths.of_node(channel.node)
        self.ranks = RunningRanks(files, range(first, first + count))
        self._own, self._files = files, FileReader(files)
        self._events = SidecarReader(files.sidecar)
        self._on_cpu = not any(device.is_gpu for device in sampler.devices)
        self._neighbours = Neighbours(home, on_cpu=self._on_cpu, submit_pid=message["pid"])
        self._stack = contextlib.ExitStack()
        self._launched_t = time.monotonic()
        self._spawned = False
        self._last_state: dict[str, Any] = {}
        self._state_t = 0.0

    def begin(self, message: Message, environment: dict[str, str]) -> None:
        """Start torchrun."""
        try:
            create_node_folders(self._paths, self._channel.node)
        except OSError as error:
            raise LaunchError(
                f"{error.filename} cannot be created there: {error.strerror}. Set ZEUSRUN_HOME to "
                "a folder that can be written on every host"
            ) from error
        inherited = os.environ
        env = {
            **without_own_variables(inherited),
            **{name: environment[name] for name in message["own_env"]},
            **message["env"],
            # Unless the job sets them; those of the message have no placeholders.
            **{
                each: inherited[each]
                for each in DEFAULTS
                if inherited.get(each) == environment.get(each, "")
            },
        }
        own = {message["worker"]: str(WORKER), message["python"]: sys.executable}
        argv = tuple(own.get(word, word) for word in message["argv"])
        command = Command(argv, env, Path(message["cwd"]))
        self._sampler.sharing = None if self._on_cpu else Sharing(ForeignProcesses())
        self._stack.enter_context(self.ranks.run(command, message["grace_s"]))

    def stop(self, level: StopLevel) -> None:
        """End the ranks as firmly as ``level`` says; it never falls."""
        self._level = max(self._level, level)

    def advance(self, limits: dict[str, Any]) -> bool:
        """Do what is due, about ten times a second; return whether the run goes on."""
        running = self.ranks.step(self._level)
        self._look_around()
        self._copy()
        self._send_state(limits)
        if running:
            return True
        self._end()
        return False

    def _look_around(self) -> None:
        with contextlib.suppress(OSError):  # of a disk that does not answer now
            for event in self._events.read():
                self.ranks.take(event)
        now_t, trains = time.monotonic(), bool(self.ranks.counts())
        if not (trains or self._spawned):
            for spawned in self.ranks.find_others(now_t, self._launched_t):
                self._spawned = True
                with contextlib.suppress(OSError):  # a full disk must not end the training
                    append_event(self._own.sidecar, spawned)
        if (text := self._neighbours.check(now_t, trains=trains)) is not None:
            self._channel.send("warning", text=text)

    def _copy(self) -> bool:
        """Send what is new; return whether there was anything, or the link is busy."""
        if self._channel.backlog > _MAX_BACKLOG_BYTES:
            return True
        found = False
        for name, data in self._files.read():
            found = True
            self._channel.send("file", name=name, data=data.decode("latin-1"))
        return found

    def _send_state(self, limits: dict[str, Any]) -> None:
        counts = {
            rank: [each.steps, each.first_step_t, *each.place, each.waits_s]
            for rank, each in self.ranks.counts().items()
        }
        state = {
            "counts": counts,
            "states": self.ranks.states,
            "all_live": self.ranks.all_live(),
            "oom_kills": self.ranks.oom_kills(),
            "shared": (self._sampler.sharing or self._neighbours).shared,
            "limits": limits,
        }
        now_t = time.monotonic()
        if state != self._last_state or now_t > self._state_t + _STATE_S:
            self._last_state, self._state_t = state, now_t
            self._channel.send("state", **state)

    def _end(self) -> None:
        """Leave nothing of the run, send the rest of its files, then how it ended."""
        self._stack.close()
        until_t = time.monotonic() + _COPY_S
        copied = False
        while not (copied or self._channel.broken) and time.monotonic() < until_t:
            copied = not self._copy()
            if self._channel.backlog > _MAX_BACKLOG_BYTES:
                time.sleep(TICK_S)
        if (text := self._neighbours.describe_load()) is not None:
            self._channel.send("warning", text=text)
        if not copied:
            self._channel.send(
                "warning", text=f"its logs are too large to copy; they are in {self._own.logs}"
            )
        saved = has_checkpoint(self._paths.run_dir)
        if saved and not self._paths.trial.exists():
            text = f"its checkpoints are on its own disk, in {self._paths.checkpoints}"
            self._channel.send("warning", text=text)
        self._send_state({})
        exit_ = self.ranks.exit
        ended = [exit_.code, exit_.ended_t, exit_.outlived, exit_.left]
        self._channel.send("ended", exit=ended, saved=saved, copied=copied)


def _hello() -> dict[str, Any]:
    try:
        return {"versions": versions()}
    except LaunchError as error:
        return {"error": str(error)}
