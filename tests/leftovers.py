"""What belongs to the process of the tests: each test leaves it as it found it.

A worker of pytest runs hundreds of tests. A signal handler, a descriptor, a thread, a child or a
variable that one of them leaves shows much later, in another test, if it shows at all.
"""

from __future__ import annotations

import _signal
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

_ENDING_S = 120.0  # for what another thread or process ends or closes; a limit against hangs
_OF_PYTEST = {b"PYTEST_CURRENT_TEST"}
# What libraries keep from their first use on, once in a process; so does multiprocessing's tracker.
_VARIABLES_OF_LIBRARIES = {  # torch, scikit-learn and Lightning set them
    b"PYTORCH_NVML_BASED_CUDA_CHECK",
    *(b"KMP_DUPLICATE_LIB_OK", b"KMP_INIT_AT_FORK", b"TORCHINDUCTOR_CACHE_DIR"),
}
_FILES_OF_LIBRARIES = (".ttf",)  # matplotlib's fonts
_THREADS_OF_LIBRARIES = ("tqdm_monitor", "TMonitor", "AnyIO worker thread")

# That of SIGALRM is pytest-timeout's: it changes when a test fails.
_NUMBERS = [int(number) for number in signal.valid_signals() - {signal.SIGALRM}]

shared_descriptors: set[int] = set()
"""Those that the tests of a worker share, such as the connection to a fork server."""
shared_children: set[int] = set()
"""Process ids of what the tests of a worker share."""


class _Starts:
    """Counts the processes that this one starts: most tests start none."""

    count = 0
    looked = -1  # at what count ``children`` were looked for
    children: frozenset[psutil.Process] = frozenset()

    def __call__(self, event: str, _: object) -> None:
        if event in {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}:
            self.count += 1

    def find_children(self) -> frozenset[psutil.Process]:
        """Return the children, looked for only if one has been started since."""
        if self.looked != self.count:
            count = self.count  # another thread may start one meanwhile
            found = _child_pids() - shared_children - {resource_tracker._resource_tracker._pid}
            self.looked = count
            children = set()
            for pid in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    children.add(psutil.Process(pid))
            self.children = frozenset(children)
        return self.children


def _child_pids() -> set[int]:
    """Return the children of this process; psutil would read the state of every process."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):
            found.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
    return found


_starts = _Starts()
sys.addaudithook(_starts)


def _descriptors() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    free = os.open(os.devnull, os.O_RDONLY)  # the number that the listing itself had
    os.close(free)
    return found - shared_descriptors - {free, resource_tracker._resource_tracker._fd}


def _describe(descriptor: int) -> str | None:
    """Return what a descriptor is of; ``None`` if it is closed, or a library keeps it."""
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return None if target.endswith(_FILES_OF_LIBRARIES) else f"descriptor {descriptor}: {target}"


def _handlers() -> list[object]:
    # Not signal.getsignal: looking for an enum for each takes a millisecond.
    return [_signal.getsignal(number) for number in _NUMBERS]


def _wakeup_descriptor() -> int:
    number = signal.set_wakeup_fd(-1)
    if number != -1:
        signal.set_wakeup_fd(number, warn_on_full_buffer=False)
    return number


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # it was deleted


def _threads() -> set[threading.Thread]:
    return {
        each for each in threading.enumerate() if not each.name.startswith(_THREADS_OF_LIBRARIES)
    }


def _environment() -> dict[bytes, bytes]:
    kept = dict(os.environ._data)  # undecoded: os.environ takes ten times as long
    for name in _OF_PYTEST | _VARIABLES_OF_LIBRARIES:
        kept.pop(name, None)
    return kept


@dataclass
class State:
    """What belongs to this process, at one moment."""

    handlers: list[object] = field(default_factory=_handlers)
    blocked: set[int] = field(default_factory=lambda: _signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    wakeup: int = field(default_factory=_wakeup_descriptor)
    umask: int = field(default_factory=_umask)
    folder: str | None = field(default_factory=_folder)
    environment: dict[bytes, bytes] = field(default_factory=_environment)
    threads: set[threading.Thread] = field(default_factory=_threads)
    descriptors: set[int] = field(default_factory=_descriptors)
    children: frozenset[psutil.Process] = field(default_factory=_starts.find_children)

    def find_left(self) -> list[str]:
        """Return what is different now, a line each."""
        began_t = collected_t = time.monotonic()
        while left := self._differences():
            ending = any(each.startswith(("thread", "child", "descriptor")) for each in left)
            now_t = time.monotonic()
            if now_t - began_t > (_ENDING_S if ending else 0.0):
                break
            # A cycle of references may keep it. Beside torch, a full collection takes 0.7 s of CPU.
            if now_t - collected_t > 0.5:
                gc.collect()
                collected_t = time.monotonic()
            else:
                gc.collect(1)
                time.sleep(0.01)
            _starts.looked = -1  # children may have ended
        return left

    def _differences(self) -> list[str]:
        now = State()
        left = [
            f"handler of signal {number}: {after}"
            for number, before, after in zip(_NUMBERS, self.handlers, now.handlers, strict=True)
            if before != after
        ]
        for name in ("blocked", "wakeup", "umask", "folder"):
            before, after = getattr(self, name), getattr(now, name)
            if before != after:
                left.append(f"{name}: {after}, was {before}")
        if self.environment != now.environment:
            for name in sorted(self.environment.keys() | now.environment.keys()):
                before, after = self.environment.get(name), now.environment.get(name)
                if before != after:
                    left.append(f"variable {name}: {after!r}, was {before!r}")
        left += [f"thread: {each.name}" for each in now.threads - self.threads if each.is_alive()]
        left += filter(None, map(_describe, sorted(now.descriptors - self.descriptors)))
        return left + [f"child: {each}" for each in now.children - self.children]
