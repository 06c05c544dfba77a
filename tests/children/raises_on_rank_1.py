"""Raises on rank 1 while rank 0 waits for it in a collective."""

import torch
from torch import distributed

distributed.init_process_group("gloo")
if distributed.get_rank() == 1:
    raise ValueError("the data of rank 1 is broken")
distributed.all_reduce(torch.zeros(1))
