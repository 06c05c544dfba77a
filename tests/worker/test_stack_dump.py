"""The stacks of a rank: told when asked, whatever its main thread is in."""

from __future__ import annotations

import signal
import time

from tests.worker.rank import Rank
from zeusrun.sidecar.orders import STACK_SIGNAL

HANG = """
import ctypes, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # keeps the interpreter's lock
libc.pthread_mutex_init(mutex, None)
libc.pthread_mutex_lock(mutex)
print("ready")
libc.pthread_mutex_lock(mutex)
"""


def test_a_rank_that_hangs_in_c_with_the_lock_held_tells_its_line_and_its_threads(tmp_path):
    rank, script = Rank(tmp_path / "run"), tmp_path / "script.py"
    script.write_text(HANG)
    process = rank.start(script)
    log, stack = rank.run_dir / "logs" / "rank0.log", rank.run_dir / "logs" / "rank0.stack"
    try:
        while not log.exists() or "ready" not in log.read_text():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(STACK_SIGNAL)
        while 'script.py", line 8 in <module>' not in stack.read_text():
            assert process.poll() is None
            time.sleep(0.01)
        assert stack.read_text().startswith("Thread 0x")  # the other one, before the main thread
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path):
    rank, script, victim = Rank(tmp_path / "run"), tmp_path / "script.py", tmp_path / "victim"
    script.write_text("print(1)")
    (rank.run_dir / "logs" / "rank0.stack").symlink_to(victim)
    code, log = rank.run(script)
    assert code == 0
    assert log.endswith("1\n")
    assert not victim.exists()
