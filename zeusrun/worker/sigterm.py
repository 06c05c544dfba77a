"""Turns SIGTERM into a stop, so that a script which asks whether to stop can save its state."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SIGTERM_EXIT_CODE = 143  # 128 + SIGTERM: ended by one that zeusrun did not send


def catch_sigterm(stop: Callable[[], None], watch: Callable[[], None]) -> None:
    """Let SIGTERM stop the training of a rank; a handler of the script wins.

    Args:
        stop: Called in the main thread.
        watch: Called in a thread of its own, also if the main thread is stuck.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    rank_pid = os.getpid()

    def on_sigterm(_signal: int, _frame: object) -> None:
        if os.getpid() != rank_pid:  # a forked child is no rank
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        stop()

    signal.signal(signal.SIGTERM, on_sigterm)
    others = signal.set_wakeup_fd(-1)
    if others != -1:
        signal.set_wakeup_fd(others)  # it belongs to an event loop of the script
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _leave_forks_out(on_sigterm)

    def wait() -> None:
        while os.read(reader, 1) != bytes([signal.SIGTERM]):
            pass
        watch()

    threading.Thread(target=wait, daemon=True).start()


def _leave_forks_out(on_sigterm: Callable[..., None]) -> None:
    """Give forked children, which are no ranks, the default handler, and no pipe to write to.

    A SIGTERM that a child gets meanwhile is blocked, as Python would lose it. The mask belongs to
    the thread that forks.
    """
    before = threading.local()

    def hold() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def resume() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def forget() -> None:
        signal.set_wakeup_fd(-1)  # the thread that forked is the main one of the child
        if signal.getsignal(signal.SIGTERM) is on_sigterm:  # not the script's own by now
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resume()

    os.register_at_fork(before=hold, after_in_parent=resume, after_in_child=forget)
