"""Python programs without their imports: one process imports once, and each program is a fork of it.

The process serves all workers of pytest. The controller starts it and tells them its address.

A zeusrun takes half a second of CPU for its imports, and a rank three seconds for torch. A fork
also ends without taking the modules apart, which would take it 0.07 s.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import NoReturn, TextIO

import psutil
import pynvml
import pytest

import zeusrun
from tests import leftovers

TIMEOUT_S = 300
_SERVER = "import sys; from tests.forks import serve; serve(*map(int, sys.argv[1:3]), sys.argv[3:])"

addresses: dict[str, str] = {}
"""Where a server listens, by what it has imported; empty until the first is asked for."""


class Forks:
    """Runs programs as forks of a server; several threads may call it."""

    def __init__(self, address: str) -> None:
        self._ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.connect(address)
        leftovers.shared_descriptors.add(self._ours.fileno())

    def close(self) -> None:
        """Close the connection; programs that run go on."""
        leftovers.shared_descriptors.discard(self._ours.fileno())
        self._ours.close()

    def run(self, argv, env, cwd) -> subprocess.CompletedProcess[str]:
        """Run ``python -m`` of a module with arguments to its end, as ``subprocess.run`` does."""
        with contextlib.ExitStack() as stack:
            out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            pid, answer = self._fork(out, err, argv=argv, env=env, cwd=str(cwd), session=False)
            stack.enter_context(answer)
            if not select.select([answer], [], [], TIMEOUT_S)[0]:
                Forked(pid, answer).kill()
                raise subprocess.TimeoutExpired(argv, TIMEOUT_S)
            code = int(answer.readline())
            texts = [_read(file) for file in (out, err)]
        return subprocess.CompletedProcess(argv, code, *texts)

    def start(self, code, arguments, env, cwd, log) -> Forked:
        """Start ``python -c`` of a code in a session of its own, its output to a log."""
        argv = ["-c", code, *arguments]
        pid, answer = self._fork(log, log, argv=argv, env=env, cwd=str(cwd), session=True)
        return Forked(pid, answer)

    def open(self, argv, env, cwd) -> Forked:
        """Start ``python -m`` of a module with arguments, as ``subprocess.Popen`` does.

        Both of its streams are in ``stdout``, as text.
        """
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as pipe:
            pid, answer = self._fork(pipe, pipe, argv=argv, env=env, cwd=str(cwd), session=False)
        return Forked(pid, answer, os.fdopen(reading, errors="replace"))

    def _fork(self, out, err, **request):
        """Return the process id, and the file that gets the exit code."""
        reading, writing = os.pipe()
        try:
            descriptors = [out.fileno(), err.fileno(), writing]
            socket.send_fds(self._ours, [json.dumps(request).encode()], descriptors)
        finally:
            os.close(writing)
        answer = os.fdopen(reading)
        return int(answer.readline() or pytest.fail("the server of the forks has ended")), answer


class Forked(psutil.Process):
    """A process that a fork server has started, with what tests use of ``subprocess.Popen``."""

    def __init__(self, pid: int, answer: TextIO, stdout: TextIO | None = None) -> None:
        self._init(pid, _ignore_nsp=True)  # as psutil.Popen: it may have ended
        self._answer = answer
        self.stdout = stdout
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raises ``psutil.TimeoutExpired``."""
        if self.returncode is None:
            if not select.select([self._answer], [], [], timeout)[0]:
                raise psutil.TimeoutExpired(timeout, self.pid)
            with self._answer:
                self.returncode = int(self._answer.readline())
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while it runs."""
        with contextlib.suppress(psutil.TimeoutExpired):
            return self.wait(0)
        return None

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Return all that it prints until its end."""
        until_t = None if timeout is None else time.monotonic() + timeout
        parts = []
        while not self.stdout.closed:
            left = None if until_t is None else max(0.0, until_t - time.monotonic())
            if not select.select([self.stdout], [], [], left)[0]:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout)
            part = os.read(self.stdout.fileno(), 1 << 16)
            parts.append(part)
            if not part:
                break
        self.wait(timeout)
        return b"".join(parts).decode(errors="replace"), None

    def send_signal(self, sig: int) -> None:
        """Send a signal; do nothing if the process has ended, as ``subprocess.Popen`` does."""
        with contextlib.suppress(psutil.NoSuchProcess):
            super().send_signal(sig)

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        self.send_signal(signal.SIGKILL)


def _read(file) -> str:
    file.seek(0)
    return file.read().decode()


@functools.cache
def zeusrun_forks() -> Forks:
    """Return forks that have imported everything but the ranks' side of zeusrun."""
    return Forks(find_server("zeusrun"))


@functools.cache
def torch_forks() -> Forks:
    """Return forks that have imported torch, and what torchrun and the first step would import."""
    return Forks(find_server("torch"))


def close() -> None:
    """Close the connections of this process."""
    for each in (zeusrun_forks, torch_forks):
        if each.cache_info().currsize:
            each().close()


def find_server(name: str) -> str:
    """Return the address of a server, and start it if nobody has."""
    if name not in addresses:
        if name == "torch":
            modules = ["torch", "torch._dynamo", "torch.nn.parallel", "torch.distributed.run"]
        else:
            found = (module.name for module in pkgutil.walk_packages(zeusrun.__path__, "zeusrun."))
            left_out = ("zeusrun.worker", "zeusrun.__main__")
            modules = [each for each in found if not each.startswith(left_out)]
            modules += ["tests.impatient", "tests.calm"]
            modules += ["numpy.ma", "numpy.random", "encodings.utf_8_sig"]  # imported when used
        addresses[name] = start_server(modules)
    return addresses[name]


def start_server(modules: list[str]) -> str:
    """Start a server that imports some modules; return its address. It ends with this process."""
    address = f"\0zeusrun-tests-{secrets.token_hex(8)}"  # in Linux's abstract namespace
    ends, ours = os.pipe()  # the server ends once ``ours`` is closed
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        handed = (listener.fileno(), ends)
        argv = [sys.executable, "-c", _SERVER, *map(str, handed), *modules]
        server = subprocess.Popen(argv, pass_fds=handed)
    os.close(ends)
    leftovers.shared_descriptors.add(ours)
    leftovers.shared_children.add(server.pid)
    return address


def serve(listening: int, end: int, modules: list[str]) -> None:
    """Import the modules, then fork for each worker that connects, until ``end`` is closed."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy every page of the modules
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    with socket.socket(fileno=listening) as listener:
        while end not in select.select([listener, end], [], [])[0]:
            requests, _ = listener.accept()
            with requests:
                if os.fork() == 0:
                    listener.close()
                    os.close(end)
                    _serve_worker(requests)
                    os._exit(0)


def _serve_worker(requests: socket.socket) -> None:
    """Fork for each request until the other end is closed."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not text:
            return
        if os.fork() == 0:
            requests.close()
            _answer(json.loads(text), *descriptors)
        for each in descriptors:
            os.close(each)


def _answer(request, out: int, err: int, answer: int) -> None:
    """Fork the program, wait for it, and answer with its process id and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.closerange(3, max(out, err, answer) + 1)
        _become(**request)
    os.close(out)
    os.close(err)
    os.write(answer, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    os.write(answer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(argv: list[str], env: dict[str, str], cwd: str, *, session: bool) -> NoReturn:
    if session:
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the server ignores it
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    first = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [cwd, *filter(None, first), *sys.path]
    _find_libraries(env.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    tempfile.tempdir = None  # an import may have asked for it
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115 - as Python does; those of the server are of a file
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    code = 0
    try:
        if argv[0] == "-c":
            sys.argv[:] = argv[:1] + argv[2:]
            exec(argv[1], {"__name__": "__main__"})
        else:
            sys.argv[:] = argv
            runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:  # noqa: BLE001 - Python, too, prints what a program does not catch
        sys.excepthook(*sys.exc_info())
        code = 1
    _exit(code)


def _find_libraries(folders: list[str]) -> None:
    """Let pynvml find NVML in these folders: the loader has read their names before the fork."""
    for folder in filter(None, folders):
        library = os.path.join(folder, "libnvidia-ml.so.1")
        if os.path.exists(library):
            pynvml.nvmlLib = ctypes.CDLL(library)
            return


def _exit(code: int) -> NoReturn:
    """End as Python does, but leave the modules as they are."""
    threading._shutdown()  # joins the threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)
