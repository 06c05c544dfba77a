"""Kills rank 1 while rank 0 waits for it in a collective."""

import os
import signal

import lean_torch  # noqa: F401
import torch
from torch import distributed

distributed.init_process_group("gloo")
if distributed.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
distributed.all_reduce(torch.zeros(1))
