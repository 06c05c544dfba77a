"""Train a LightningModule on forest cover types: an ordinary Lightning script."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import lightning
import numpy as np
import torch
from sklearn.datasets import make_classification
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

FEATURES, CLASSES = 54, 7


def read_covtype(path: Path) -> TensorDataset:
    """Read ``covtype.data`` or ``covtype.data.gz``: 54 numbers and the type, 1 to 7, in a row."""
    if not path.is_file():
        sys.exit(f"{path}: no such file; --data is covtype.data or covtype.data.gz")
    rows = np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)
    if rows.shape[1] != FEATURES + 1:
        sys.exit(f"{path}: {rows.shape[1]} columns; covtype.data has {FEATURES + 1}")
    features, types = rows[:, :-1], rows[:, -1].astype(np.int64)
    scaled = (features - features.mean(0)) / (features.std(0) + 1e-6)
    return TensorDataset(torch.tensor(scaled), torch.tensor(types - 1))


def make_up() -> TensorDataset:
    """Return data of the same shape, made by scikit-learn."""
    features, types = make_classification(
        6000, FEATURES, n_informative=12, n_classes=CLASSES, class_sep=1.6, random_state=0
    )
    return TensorDataset(torch.tensor(features, dtype=torch.float32), torch.tensor(types))


class CoverType(lightning.LightningModule):
    """A perceptron with two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, CLASSES),
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Log the accuracy; Lightning takes the mean over batches and ranks."""
        accuracy = (self.layers(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("val_acc", accuracy, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="covtype.data; default: made up")
    parser.add_argument("--devices", default="auto", help="as for Lightning's Trainer")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    lightning.seed_everything(0)
    data = make_up() if args.data is None else read_covtype(args.data)
    training, validation = random_split(data, [0.8, 0.2])
    trainer = lightning.Trainer(
        devices=args.devices,
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        CoverType(),
        DataLoader(training, batch_size=32, shuffle=True),
        DataLoader(validation, batch_size=500),
    )
    if trainer.is_global_zero:
        print(f"val_acc {trainer.callback_metrics['val_acc']:.4f} in epoch {trainer.current_epoch}")


if __name__ == "__main__":
    main()
