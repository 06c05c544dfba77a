"""Both loaders of a Lightning ``Trainer`` draw batches of 8: ``... [split]``, then of one dataset."""

import os
import sys

import lightning.pytorch as lightning
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.data, self.others = (TensorDataset(torch.randn(count, 4)) for count in (128, 64))

    def train_dataloader(self):
        return self.load(self.data, range(96))

    def val_dataloader(self):
        return self.load(self.data if sys.argv[1:] else self.others, range(96, 128))

    def load(self, data, part):
        how = {"sampler": SubsetRandomSampler(part)} if sys.argv[1:] else {"shuffle": True}
        return DataLoader(data, 8, **how)

    def training_step(self, batch, _index):
        print("train", len(batch[0]))
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, _index):
        print("val", len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.25)


trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    devices=int(os.environ["WORLD_SIZE"]),
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model())
