"""A plain loop over every logger there is: ``logs.py LOGGER ...``. It knows nothing of zeusrun."""

import os
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

loggers, rank = set(sys.argv[1:]), int(os.environ["RANK"])
distributed.init_process_group("gloo")
writers = []
if "tensorboard" in loggers:
    from torch.utils.tensorboard import SummaryWriter

    writers.append(SummaryWriter)
if "tensorboardX" in loggers:
    import tensorboardX

    writers.append(tensorboardX.SummaryWriter)
if "mlflow" in loggers:
    import mlflow

    mlflow.set_tracking_uri("sqlite:///mlflow.db")
if "wandb" in loggers:
    import wandb
if "timm" in loggers:
    from timm.utils import update_summary
if "accelerate" in loggers:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)

features = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
data = TensorDataset(features, (features.sum(1) > 0).long())
loader = DataLoader(data, 16, sampler=DistributedSampler(data))
checks = DataLoader(data, 48)  # 48, 48 and 32 samples
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.25)
if rank == 0:
    writers = [writer("logs") for writer in writers]
    if "mlflow" in loggers:
        mlflow.start_run()
    if "wandb" in loggers:
        run = wandb.init(mode="offline", project="made-up")

for epoch in range(1, 4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if "tensorboard" in loggers and rank == 0:
            writers[0].add_scalar("in_each_step", 1 / (1 + loss.item()))
    right = 0
    with torch.no_grad():
        for x, y in checks:
            part = (model.module(x).argmax(1) == y).sum()
            right += part
            if "tensorboard" in loggers and rank == 0:
                writers[0].add_scalar("of_a_batch", part / len(x))
    accuracy = right / len(data)
    if rank == 0:
        for writer in writers:
            writer.add_scalar(f"{type(writer).__module__}/accuracy", accuracy, epoch - 1)
            writer.add_text("note", "this is no number")
        if "mlflow" in loggers:
            mlflow.log_metric("accuracy", accuracy.item(), step=epoch)
            mlflow.log_metrics({"error": 1 - accuracy.item()})
        if "wandb" in loggers:
            run.log({"accuracy": accuracy, "note": "this is no number"})
        if "timm" in loggers:
            update_summary(epoch - 1, {"loss": loss.item()}, {"top1": accuracy}, "summary.csv")
        if "accelerate" in loggers:
            accelerator.log({"accuracy": accuracy})
        print("epoch", epoch, float(accuracy))
if "wandb" in loggers and rank == 0:
    run.finish()
distributed.destroy_process_group()
