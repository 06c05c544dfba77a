"""Imports torch once, then forks a rank for each request on standard input, as JSON lines."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch._dynamo  # noqa: F401 - and its first optimizer step one more

from zeusrun.worker.__main__ import main

for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = request["argv"]
        main()
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer
