"""Trains 20 steps of 50 samples an epoch, and restores what ``--restores`` names.

It numbers its epochs from 1, unless it has restored ``both``. The accuracy is 0.14 an epoch that
the weights have been trained for, so it shows whether they were restored.
"""

import argparse
import os
import time
from pathlib import Path

import lean_torch  # noqa: F401
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--restores", choices=["both", "weights", "nothing"], default="both")
arguments = parser.parse_args()

torch.set_num_threads(1)
loader = DataLoader(TensorDataset(torch.ones(1000, 1)), batch_size=50)
model = torch.nn.Linear(1, 1)
torch.nn.init.zeros_(model.weight)
torch.nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.14 / 20)
path = Path(os.environ["ZEUSRUN_RUN_DIR"], "weights.pt")
done = 0
if path.exists() and arguments.restores != "nothing":
    done, weights = torch.load(path)
    model.load_state_dict(weights)
    done = done if arguments.restores == "both" else 0
for epoch in range(done + 1, 20):
    for (batch,) in loader:
        optimizer.zero_grad()
        (-model(batch).mean()).backward()
        optimizer.step()
        time.sleep(0.01)
    torch.save((epoch, model.state_dict()), path)
    print(f"epoch {epoch} accuracy {model.bias.item():.4f}", flush=True)
    time.sleep(2.0 * (model.bias.item() > 0.95))  # so that a late launcher ends it in time
