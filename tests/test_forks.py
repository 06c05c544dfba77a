"""Programs without their imports; see ``forks.py``."""

from __future__ import annotations

import contextlib
import signal

from tests.forks import Forks, start_server


def test_a_program_heeds_sighup_though_the_tests_were_started_with_nohup(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        forks = Forks(start_server([]))
    finally:
        signal.signal(signal.SIGHUP, before)
    code = "import signal; print(signal.getsignal(signal.SIGHUP).name)"
    with contextlib.closing(forks):
        assert forks.run(["-c", code], {}, tmp_path).stdout == "SIG_DFL\n"
