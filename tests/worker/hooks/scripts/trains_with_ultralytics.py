"""A model of Ultralytics that classifies images made on the spot, unedited: ``... [once]``.

With ``once``, it evaluates after the last epoch only.
Ultralytics itself trains several ranks on GPUs only; ``OnCPUs`` is what it lacks for CPUs.
"""

import json
import os
import sys

os.environ.update(YOLO_CONFIG_DIR=".", YOLO_OFFLINE="true", YOLO_AUTOINSTALL="false")

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import distributed
from ultralytics import YOLO
from ultralytics.models.yolo.classify import ClassificationTrainer

RANKS = int(os.environ["WORLD_SIZE"])
FOLDER = Path(f"rank{os.environ['RANK']}").resolve()


class Parallel(torch.nn.parallel.DistributedDataParallel):
    def __init__(self, model, device_ids, **options):
        super().__init__(model, **options)


class OnCPUs(ClassificationTrainer):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.world_size = RANKS
        torch.nn.parallel.DistributedDataParallel = Parallel

    def _do_train(self, *world_size):  # an argument in 8.3
        super()._do_train(*(RANKS for _ in world_size))

    def _setup_ddp(self, *_):
        distributed.init_process_group("gloo")

    def final_eval(self):
        """Evaluate the best model: no epoch, but Ultralytics runs the callbacks once more."""
        if RANKS == 1:
            return super().final_eval()
        self.metrics = dict.fromkeys(self.metrics or (), 9.0)
        self.epoch += 1
        self.run_callbacks("on_fit_epoch_end")
        self.epoch -= 1
        return None


def make_images(split, count):
    random = np.random.default_rng(0)
    for name, brightness in (("dark", 40), ("light", 215)):
        folder = FOLDER / "images" / split / name
        folder.mkdir(parents=True)
        for i in range(count):
            pixels = random.normal(brightness, 99, (32, 32, 3)).clip(0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")


def show(trainer):
    print("epoch", trainer.epoch + 1, trainer.metrics["metrics/accuracy_top1"])


make_images("train", 64)
make_images("val", 16)
layers = {"backbone": [[-1, 1, "Conv", [8, 3, 2]]], "head": [[-1, 1, "Classify", ["nc"]]]}
(FOLDER / "tiny-cls.yaml").write_text(json.dumps({"nc": 2, **layers}))  # which is YAML, too
batches = []
model = YOLO(FOLDER / "tiny-cls.yaml", task="classify")
model.add_callback("on_model_save", show)
model.add_callback("on_train_batch_end", lambda trainer: batches.append(trainer.epoch))
model.train(
    trainer=OnCPUs,
    data=FOLDER / "images",
    project=Path("runs").resolve(),
    imgsz=32,
    epochs=3,
    batch=16 * RANKS,
    nbs=16 * RANKS,
    optimizer="SGD",
    lr0=0.25,
    momentum=0.1,
    warmup_epochs=0,
    device="cpu",
    amp=False,
    plots=False,
    val="once" not in sys.argv,
)
print("steps", len(batches))
