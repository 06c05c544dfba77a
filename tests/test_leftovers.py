"""A test that leaves something in its process fails."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.factories import ROOT

LEAVES = {
    "pass": "",
    "signal.signal(signal.SIGTERM, print)": "handler of signal 15",
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})": "blocked",
    "r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w)": "wakeup",
    "os.umask(0o77)": "umask",
    "os.chdir('/')": "folder",
    "os.environ['LEFT'] = '1'": "variable b'LEFT'",
    "threading.Thread(target=signal.pause).start()": "thread",
    "os.dup(1)": "descriptor",
    "subprocess.Popen(['sleep', '9'], stdout=-3, stderr=-3)": "child",
    "if os.fork() == 0: os._exit(0)": "child",
    "kept = [open('/dev/null')]; kept.append(kept); del kept": "",  # only a cycle keeps it
}
_PROGRAM = """
import json, os, signal, subprocess, sys, threading
from tests import leftovers
leftovers._ENDING_S = 0.1
for code in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        before = leftovers.State()
        exec(code)
        print(json.dumps([code, before.find_left()]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_what_is_left_is_found():
    command = [sys.executable, "-c", _PROGRAM, json.dumps([*LEAVES])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert found.keys() == LEAVES.keys()
    for code, left in found.items():
        assert bool(left) == bool(LEAVES[code]), code
        assert not left or left[0].startswith(LEAVES[code]), left
