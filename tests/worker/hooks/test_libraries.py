"""Every hook over its real library: an unedited script on two ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import ClassVar

import pytest

from tests.contracts.hook import HookContract

SCRIPTS = Path(__file__).with_name("scripts")
LOGGERS = {
    "tensorboard": ("tensorboard", "torch.utils.tensorboard.writer/accuracy"),
    "tensorboardX": ("tensorboard", "tensorboardX.writer/accuracy"),
    "mlflow": ("mlflow", "accuracy"),
    "wandb": ("wandb", "accuracy"),
    "accelerate": ("accelerate", "accuracy"),
}


def is_installed(library):
    return importlib.util.find_spec(library) is not None


def needs(library):
    return pytest.mark.skipif(not is_installed(library), reason=f"{library} is not installed")


class ControllingHookContract(HookContract):
    controls = True

    @pytest.mark.long  # to load such a library on two ranks takes 10 s of CPU
    def test_an_unedited_script_is_seen(self, run):
        super().test_an_unedited_script_is_seen(run)


@needs("transformers")
class TestTransformers(ControllingHookContract):
    command = (SCRIPTS / "trains_with_transformers.py",)
    metrics: ClassVar = {"transformers": ("transformers", "eval_accuracy")}


@needs("lightning")
class TestLightning(ControllingHookContract):
    command = (SCRIPTS / "trains_with_lightning.py", "lightning.pytorch")
    metrics: ClassVar = {"lightning": ("lightning", "val_acc")}


@pytest.mark.long  # the same code as for lightning
@needs("pytorch_lightning")
class TestPytorchLightning(ControllingHookContract):
    command = (SCRIPTS / "trains_with_lightning.py", "pytorch_lightning")
    metrics: ClassVar = {"pytorch_lightning": ("pytorch_lightning", "val_acc")}


class TestLoggers(HookContract):
    metrics: ClassVar = {
        library: seen for library, seen in LOGGERS.items() if is_installed(library)
    }
    command = (SCRIPTS / "logs.py", *metrics)

    def test_all_loggers_are_installed_and_none_was_left_out(self):
        absent = LOGGERS.keys() - self.metrics.keys()
        if absent:
            pytest.skip(f"not installed: {', '.join(sorted(absent))}")
