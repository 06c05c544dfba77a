"""Train a small network on scikit-learn's handwritten digits with DiLoCo, by torchft.

Each rank is a replica group of its own: it trains alone for an epoch, then all average what they
have learned. The lines that call zeusrun are marked; under plain ``torchrun`` they return their
defaults.
"""

from __future__ import annotations

import argparse
from datetime import timedelta

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchft import DistributedSampler, Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

import zeusrun

HOST = "127.0.0.1"


def train(epochs: int, seed: int) -> None:
    """Train until zeusrun, or the number of epochs, says stop."""
    store, rank, world_size = next(dist.rendezvous("env://"))  # the store of torchrun
    if rank == 0:
        lighthouse = LighthouseServer(bind=f"{HOST}:0", min_replicas=world_size)
        store.set("lighthouse", lighthouse.address().rpartition(":")[2])
    own_store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)

    run = zeusrun.current()  # zeusrun
    torch.manual_seed(seed)  # the same weights on every rank: no init_sync below
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    inner = torch.optim.AdamW(model.parameters(), lr=run.learning_rate(default=0.003))  # zeusrun
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    data = TensorDataset(images.float() / 16, labels)
    training, validation = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    sampler = DistributedSampler(
        training, rank, num_replica_groups=world_size, group_rank=0, num_replicas=1, seed=seed
    )
    batch_size = run.local_batch_size(default=32)  # zeusrun
    loader = DataLoader(training, batch_size=batch_size, sampler=sampler)

    def load_state(state: dict[str, dict]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        load_state_dict=load_state,
        min_replica_size=world_size,
        use_async_quorum=False,
        init_sync=False,
        rank=0,  # within the replica group
        world_size=1,
        store_addr=HOST,
        store_port=own_store.port,
        lighthouse_addr=f"http://{HOST}:{store.get('lighthouse').decode()}",
        replica_id=f"rank{rank}",
        hostname=HOST,
    )
    with DiLoCo(manager, [model], inner, outer, sync_every=len(loader)):
        for epoch in range(1, epochs + 1):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                inner.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                inner.step()  # the last one of the epoch averages the ranks
            images, labels = validation[:]
            with torch.no_grad():
                accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
            run.report(epoch=epoch, val_accuracy=accuracy)  # zeusrun
            print(f"epoch {epoch}: val_accuracy {accuracy:.4f}", flush=True)
            stop = torch.tensor(float(run.should_stop()))  # zeusrun
            manager.allreduce(stop).wait()
            if stop:  # on one rank, so on all: no rank waits for another one that has ended
                break
    manager.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order")
    options = parser.parse_args()
    train(options.epochs, options.seed)
