"""Lightning on several ranks; prints how far apart they are where each evaluation begins."""

import lightning.pytorch as lightning
import torch

torch.set_num_threads(1)
torch.manual_seed(0)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, _):
        self.log("accuracy", self.layer(batch).square().mean(), sync_dist=True)

    def on_validation_epoch_start(self):
        weights = self.all_gather(self.layer.weight.detach())
        print("apart", (weights - weights[0]).abs().max().item(), flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


data = torch.randn(40, 4)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    num_sanity_val_steps=0,
)
train = torch.utils.data.DataLoader(data, batch_size=4)
trainer.fit(Module(), train, torch.utils.data.DataLoader(data, batch_size=20))
