"""Both ends of a connection: real channels, and real node launchers in threads or processes."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time

from tests.factories import CHILDREN
from tests.runs import wait_for
from zeusrun.launcher.processes.command import WORKER, Command, find_torchrun
from zeusrun.launcher.processes.fan_out import FanOutProcess
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.run_on.hosts.channel import PREAMBLE, Channel, write_all
from zeusrun.run_on.hosts.node_launcher import NodeLauncher, versions
from zeusrun.run_on.hosts.remote_node import RemoteNode

ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "ZEUSRUN_CPU_WATTS_PER_CORE": "10"}


def connect(number=1):
    """Return the ends of a connection over pipes: the head's, and that of a node."""
    to_node, to_head = os.pipe(), os.pipe()
    write_all(to_head[1], PREAMBLE)
    return Channel(to_head[0], to_node[1], number), Channel(to_node[0], to_head[1], number)


def frame(payload):
    return len(payload).to_bytes(4, "big") + payload


def until(channel, kind):
    """Return the next message of a kind."""
    while (message := channel.receive()) is not None:
        if message["kind"] == kind:
            return message
    raise EOFError(kind)


class Hosts:
    """The head's side of other hosts. The test plays some of them; in others, zeusrun runs."""

    def __init__(self, stack, signals):
        self._stack, self.signals = stack, signals

    def play(self, name="b", number=1, *, greets=True, **said):
        """Return a node, and its end of the channel, on which the test says what a node says."""
        head, own = connect(number)
        if greets:
            own.send("hello", **{"versions": versions(), "host": name, **said})
        node = RemoteNode(number, name, head)
        self._stack.callback(node.close)
        self._stack.callback(own.close)
        return node, own

    def serve(self, name="b", number=1):
        """Return a node whose launcher runs in a thread."""
        head, own = connect(number)
        thread = threading.Thread(target=NodeLauncher(own).serve)
        thread.start()
        node = RemoteNode(number, name, head)
        self._stack.callback(thread.join)
        self._stack.callback(node.close)
        assert node.wait_for_hello(60.0)
        return node

    def start(
        self,
        name="b",
        number=1,
        *,
        through=lambda reading, writing: (reading, writing),
        words=(),
        **env,
    ):
        """Return a node whose launcher is a process, and that process."""
        variables = [f"{key}={value}" for key, value in env.items()]
        shell = ["sh", "-c", 'eval "exec $*"', "sh"]  # as ssh joins the words for one
        process = FanOutProcess([*words, "env", f"HOST={name}", *variables, *shell], number)
        node = RemoteNode(
            number,
            name,
            Channel(*through(process.reading, process.writing), number),
            process.explain_end,
        )
        self._stack.callback(process.end, at_once=False)
        self._stack.callback(node.close)
        assert node.wait_for_hello(60.0), node.lost
        return node, process


@contextlib.contextmanager
def open_hosts():
    """Yield ``Hosts``; all their launchers end with the block. Only in the main thread."""
    with CaughtSignals() as signals, contextlib.ExitStack() as stack:
        yield Hosts(stack, signals)


def prepare(node, home, *, ranks=1, first=1, env=ON_CPU, nic="lo"):
    """Let a node open its devices, as the head does."""
    answer = node.call(
        "prepare",
        host=node.name,
        nic=nic,
        head="127.0.0.1",
        heartbeat_s=60.0,
        home=str(home),
        env=dict(env),
        nproc_per_node=ranks,
        most=None,
    )
    node.prepare(answer, first)
    return node


def measure(node, times=3):
    """Measure the difference of the clocks."""
    for _ in range(times):
        before = len(node._pings)
        node.ping()
        wait_for(lambda before=before: len(node._pings) > before, 30.0, "an answer")


def command(paths, node, *script, nnodes=1, **changes):
    """Return a command that runs a script on a node by the fake torchrun, as the head builds it."""
    own = paths.of_node(node.number)
    words = [str(CHILDREN / script[0]), *map(str, script[1:])]
    env = {
        "ZEUSRUN_RUN_DIR": str(own.run_dir),
        "ZEUSRUN_SIDECAR": str(own.sidecar),
        "ZEUSRUN_TRIAL": "job-1-1",
        "ZEUSRUN_METRIC": "accuracy",
        "ZEUSRUN_TARGET": "2.0",
        "ZEUSRUN_MODE": "max",
        "ZEUSRUN_MAX_EPOCHS": "5",
        "ZEUSRUN_BATCH_SIZE": "32",
        "ZEUSRUN_ON_TARGET": "stop",
        "ZEUSRUN_CHECKPOINT_DIR": str(paths.checkpoints),
        **changes.pop("env", {}),
    }
    flags = [f"--nnodes={nnodes}", f"--nproc-per-node={len(node.ranks)}", "--max-restarts=0", "--"]
    argv = (*find_torchrun().argv, *flags, str(WORKER), *words)
    return Command(argv, env, paths.run_dir, **changes)


def events(paths):
    """Return the records of the head's sidecar."""
    return [json.loads(line) for line in paths.sidecar.read_bytes().splitlines()]


class Relay:
    """Copies bytes from one pipe into another, each so many seconds later."""

    def __init__(self, source, delay_s):
        self.reading, self._writing = os.pipe()
        self._source, self._delay_s = source, delay_s
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while data := os.read(self._source, 1 << 16):
            time.sleep(self._delay_s)
            write_all(self._writing, data)
        os.close(self._source)
        os.close(self._writing)
