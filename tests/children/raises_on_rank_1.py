"""Raises on rank 1 while rank 0 waits for it in a collective."""

import lean_torch  # noqa: F401
import torch

torch.distributed.init_process_group("gloo")
if torch.distributed.get_rank() == 1:
    raise ValueError("the data of rank 1 is broken")
torch.distributed.all_reduce(torch.zeros(1))
