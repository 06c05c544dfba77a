"""A Lightning ``Trainer``, unedited: ``... (lightning.pytorch|pytorch_lightning) [BATCHES [STRATEGY]]``."""

import importlib
import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

lightning = importlib.import_module(sys.argv[1])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, _index):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss)
        self.log("epoch_of_mean", float(self.current_epoch + 1), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _index):
        right = (self.layer(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("val_acc", right, sync_dist=True)

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            value = self.trainer.callback_metrics["val_acc"]
            print("epoch", self.current_epoch + 1, float(value))

    def on_train_epoch_end(self):
        self.log("epoch_of_end", float(self.current_epoch + 1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.25)


def loader(count, size, seed, **options):
    features = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(features, (features.sum(1) > 0).long()), size, **options)


if __name__ == "__main__":
    accumulated, strategy = [*sys.argv[2:], *["2", "auto"][len(sys.argv) - 2 :]]
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]) if strategy == "auto" else 2,
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=int(accumulated),
    )
    trainer.fit(Model(), loader(128, 8, 0, shuffle=True), loader(64, 16, 1))
    print("steps", trainer.global_step)
