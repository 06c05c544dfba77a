"""Trains on fake GPUs: each optimizer step takes as long as the power limit in force makes it.

Needs the fake ``libnvidia-ml.so.1`` and ``FAKE_NVML_STATE`` (see ``tests/gpu/fake_nvml.c``). It
reaches the trial's target, whatever that is, after ``--epochs-to-target`` epochs.
"""

import argparse
import ctypes
import os
import signal
import time

from step_clock import count_steps

import zeusrun

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50, help="of an epoch")
parser.add_argument("--epochs-to-target", type=int, default=3)
parser.add_argument("--pause-s", type=float, default=0.0, help="without steps after each epoch")
parser.add_argument("--deaf", action="store_true", help="to SIGTERM")
arguments = parser.parse_args()
if arguments.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.fake_nvml_step_s.restype = ctypes.c_double
visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(",")
mine = visible[int(os.environ.get("LOCAL_RANK", "0"))]
gpu = int(mine) if mine.isdecimal() else 0  # MIG instances are GPU 0's
target = float(os.environ.get("ZEUSRUN_TARGET", "0.5"))
metric = os.environ.get("ZEUSRUN_METRIC", "accuracy")


def keep_busy(seconds):
    nvml.fake_nvml_work(gpu, ctypes.c_double(seconds))


take_step = count_steps()
run = zeusrun.current()
for epoch in run.epochs(default=10):
    done_s = time.monotonic()
    for _ in range(arguments.steps):
        step_s = nvml.fake_nvml_step_s(gpu)
        # From the end that the last step was due at, so that waking up late adds nothing: a busy
        # machine may keep a process waiting for tenths of a second.
        done_s = max(done_s, time.monotonic() - 0.5) + step_s
        keep_busy(step_s + 0.05)
        time.sleep(max(0.0, done_s - time.monotonic()))
        take_step()
    keep_busy(0.0)
    time.sleep(arguments.pause_s)
    run.report(epoch=epoch, **{metric: target * epoch / arguments.epochs_to_target})
