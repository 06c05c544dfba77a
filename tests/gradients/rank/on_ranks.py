"""Runs the named cases of ``ddp_cases`` on the ranks of one training."""

from __future__ import annotations

import sys
from datetime import timedelta

import ddp_cases
from torch import distributed

from zeusrun.gradients.rank import ddp

distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
ddp_cases.watch._observer.samples = lambda: ddp_cases.SHARE
ddp.STEPS = 1  # most cases have few steps
for name in sys.argv[1:]:
    print(name, flush=True)
    vars(ddp_cases)[f"case_{name}"]()
distributed.barrier()
distributed.destroy_process_group()
