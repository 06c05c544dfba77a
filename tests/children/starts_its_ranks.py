"""Starts two ranks itself, ``starts_its_ranks.py spawn|fork``, and knows no zeusrun."""

import multiprocessing
import os
import sys
import time


def train(rank, group):
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.tensorboard import SummaryWriter

    distributed.init_process_group("gloo", f"file://{group}", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.125)
    loader = DataLoader(TensorDataset(torch.ones(64, 1)), 16)
    logger = SummaryWriter("logs") if rank == 0 else None
    try:
        for epoch in range(1, 100_000):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                time.sleep(0.05)
            if logger is not None:
                logger.add_scalar("val/accuracy", epoch / 4, epoch)
    finally:
        sys.stdout.write(f"rank {rank} saves\n")


if __name__ == "__main__":
    how, group = sys.argv[1], os.path.abspath("group")
    if how == "fork":  # once for both
        import torch.utils.tensorboard  # noqa: F401
    context = multiprocessing.get_context(how)
    ranks = [context.Process(target=train, args=(rank, group)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
