"""The workers of loaders that libraries build or wrap."""

from __future__ import annotations

import json

import pytest

from tests.worker.hooks.test_libraries import needs
from tests.worker.rank import Rank
from zeusrun.sidecar.events import LoaderWorkers

DATA = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 200
    def __getitem__(self, n):
        time.sleep(0.004)
        return {"x": torch.ones(4), "labels": torch.zeros(1)}

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.inner(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}
"""
SCRIPTS = {
    "accelerate": """
from accelerate import Accelerator
accelerator, layer = Accelerator(cpu=True), Layer()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
loader = DataLoader(Data(), 5, shuffle=True, num_workers=1)
layer, optimizer, loader = accelerator.prepare(layer, optimizer, loader)
for epoch in range(5):
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(layer(**batch)["loss"])
        optimizer.step()
""",
    "transformers": """
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(
    "out", per_device_train_batch_size=5, num_train_epochs=5, dataloader_num_workers=1,
    use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
)
Trainer(Layer(), arguments, train_dataset=Data()).train()
""",
    "lightning": """
import lightning.pytorch as pl
pl.seed_everything(1, workers=True)
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
    def training_step(self, batch, number): return self.layer(**batch)["loss"]
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)
trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False)
trainer.fit(Module(), DataLoader(Data(), 5, shuffle=True, num_workers=1))
""",
}


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(
            name, marks=[needs(name), *([pytest.mark.long] if name != "accelerate" else [])]
        )
        for name in SCRIPTS
    ],
)
def test_its_loader_is_tuned(tmp_path, library):
    path = tmp_path / "script.py"
    path.write_text(DATA + SCRIPTS[library])
    given = {"workers": "tune", "max_workers": 4, "from_zero": False, "start": None, "never": []}
    rank = Rank(tmp_path / "run")
    code, log = rank.run_forked(path, cwd=tmp_path, ZEUSRUN_PARTS=json.dumps({"loader": given}))
    assert code == 0, log
    events = [each for each in rank.events if isinstance(each, LoaderWorkers)]
    assert [each.problem for each in events if each.problem] == []
    assert [each.workers for each in events if each.step_s is None][:3] == [1, 2, 4], log
    assert rank.steps.waits_s[0] > 0.3
