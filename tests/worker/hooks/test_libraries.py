"""Every hook over its real library: an unedited script on two ranks."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import ClassVar

import pytest

from tests.contracts.hook import HookContract
from tests.runs import check_that_it_imports
from tests.worker.rank import Rank
from zeusrun.sidecar.events import Applied, Observed, Reported, Spawned, Watched

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


@pytest.mark.long  # the short tier trains with Lightning in tests/metrics/test_csv.py
@needs("lightning")
class TestLightning(ControllingHookContract):
    command = (SCRIPTS / "trains_with_lightning.py", "lightning.pytorch")
    metrics: ClassVar = {"lightning": ("lightning", "val_acc")}

    @pytest.mark.parametrize("words", [(), ("split",)], ids=["two datasets", "two samplers"])
    def test_only_its_training_loader_gets_the_chosen_batch_size(self, tmp_path, words):
        """Lightning asks for that of its sanity check first, and rebuilds both."""
        ranks, given = Rank(tmp_path / "run"), {"ZEUSRUN_GIVEN_BATCH_SIZE": "16"}
        script = SCRIPTS / "shuffles_with_lightning.py"
        logs = ranks.run_all(script, *words, world_size=2, cwd=tmp_path, **given)
        for log in logs:
            assert set(re.findall(r"^(?:train|val) \d+$", log, re.MULTILINE)) == {
                "train 16",
                "val 8",
            }


@pytest.mark.long  # the same code as for lightning
@needs("pytorch_lightning")
class TestPytorchLightning(ControllingHookContract):
    command = (SCRIPTS / "trains_with_lightning.py", "pytorch_lightning")
    metrics: ClassVar = {"pytorch_lightning": ("pytorch_lightning", "val_acc")}


@pytest.mark.long  # to load Ultralytics on two ranks takes 7 s of CPU
@needs("ultralytics")
class TestUltralytics(HookContract):
    command = (SCRIPTS / "trains_with_ultralytics.py",)
    metrics: ClassVar = {"ultralytics": ("ultralytics", "metrics/accuracy_top1")}
    controls = True

    @pytest.fixture(autouse=True)
    def torchvision(self):
        check_that_it_imports("torchvision")

    def test_a_stop_order_ends_it_on_both_ranks_in_one_step(self, tmp_path):
        ranks = Rank(tmp_path / "run")
        (ranks.run_dir / "stop").touch()
        logs = ranks.run_all(*self.command, world_size=2, cwd=tmp_path)
        (steps,) = {re.findall(r"^steps (\d+)$", log, re.MULTILINE)[0] for log in logs}
        assert int(steps) <= 4  # those of an epoch
        assert "epoch 2" not in logs[0]

    def test_an_epoch_without_an_evaluation_has_its_losses_only(self, tmp_path):
        ranks = Rank(tmp_path / "run")
        code, log = ranks.run(*self.command, "once", LOCAL_RANK="0", cwd=tmp_path)
        assert code == 0, log
        losses = self.reports(ranks.events, "ultralytics", "train/loss")
        evaluations = self.reports(ranks.events, "ultralytics", "metrics/accuracy_top1")
        assert [epoch for epoch, _ in losses] == [1, 2, 3]
        assert [epoch for epoch, _ in evaluations] == [3]


@pytest.mark.long  # each library on two ranks
class TestLoggers(HookContract):
    metrics: ClassVar = {
        library: seen for library, seen in LOGGERS.items() if is_installed(library)
    }
    command = (SCRIPTS / "logs.py", *metrics)

    def check(self, events, logs, epochs, samples=16):
        super().check(events, logs, epochs, samples)
        if "tensorboard" not in self.metrics:
            return
        means = dict(self.reports(events, "tensorboard", "of_a_batch"))
        printed = re.findall(r"^epoch (\d+) (\S+)$", logs[0], re.MULTILINE)
        assert means == {int(epoch): pytest.approx(float(value)) for epoch, value in printed}
        own = {
            name: [e for e in events if isinstance(e, Reported) and name in e.metrics]
            for name in ("of_a_batch", "in_each_step")
        }
        assert {event.parts for event in own["of_a_batch"]} == {3}
        assert all(event.each_step for event in own["in_each_step"])

    def test_all_loggers_are_installed_and_none_was_left_out(self):
        absent = LOGGERS.keys() - self.metrics.keys()
        if absent:
            pytest.skip(f"not installed: {', '.join(sorted(absent))}")


@pytest.mark.long  # timm loads torchvision
class TestTimm(HookContract):
    command = (SCRIPTS / "logs.py", "timm")
    metrics: ClassVar = {"timm": ("timm", "eval_top1")}

    @pytest.fixture(autouse=True)
    def timm(self):
        check_that_it_imports("timm")


class InOwnProcesses(HookContract):
    """The script starts its two ranks itself, so torchrun starts one process."""

    @pytest.fixture
    def run(self, tmp_path):
        def start(**environment):
            rank = Rank(tmp_path / "run")
            code, log = rank.run(*self.command, cwd=tmp_path, **environment)
            assert code == 0, log
            spawned = [event for event in rank.events if isinstance(event, Spawned)]
            assert [(e.world_size, e.followed) for e in spawned] == [(2, True)] * 2
            epochs = 1 if environment["ZEUSRUN_TARGET"] == "0" else 3
            steps = 128 // int(environment.get("ZEUSRUN_BATCH_SIZE", "32"))
            assert rank.steps.steps == steps * epochs  # of rank 0 alone
            return rank.events, [log]

        return start


OWN = SCRIPTS / "in_own_processes.py"


class LogsInOwnProcesses(InOwnProcesses):
    """Of the script, nothing is edited, so its batch size can be replaced as in any other."""

    metrics: ClassVar = {"tensorboard": LOGGERS["tensorboard"]}

    @pytest.mark.long  # the same, but for the batch size, as the test below
    def test_an_unedited_script_is_seen(self, run):
        super().test_an_unedited_script_is_seen(run)

    def test_it_is_seen_its_batch_size_replaced_and_its_gradients_measured(self, run):
        events, logs = run(
            ZEUSRUN_TARGET="2",
            ZEUSRUN_GIVEN_BATCH_SIZE="32",
            ZEUSRUN_BATCH_SIZE="8",
            ZEUSRUN_PARTS=json.dumps({"watch": {"noise_scale": {"interval": 1}}}),
        )
        self.check(events, logs, epochs=[1, 2, 3], samples=4)
        (applied,) = [e for e in events if isinstance(e, Applied)]
        assert (applied.given, applied.chosen, applied.where) == (16, 4, "logs.py:37")
        observed = [e for e in events if isinstance(e, Observed)]
        assert {(e.rank, e.samples) for e in observed} == {(0, 4), (1, 4)}
        watched = [e for e in events if isinstance(e, Watched)]
        assert {(e.rank, e.how) for e in watched} == {(0, "ranks")}
        assert watched[-1].values["noise_scale_low"] > 0


@pytest.mark.long  # the short tier forks ranks in test_own_processes.py
@needs("tensorboard")
class TestSpawned(LogsInOwnProcesses):
    command = (OWN, "spawn", SCRIPTS / "logs.py", "tensorboard")


@pytest.mark.long  # the short tier forks ranks in test_members.py
@needs("tensorboard")
class TestForked(LogsInOwnProcesses):
    command = (OWN, "fork", SCRIPTS / "logs.py", "tensorboard")


@pytest.mark.long  # as spawned
@needs("tensorboard")
class TestForkedByAServer(LogsInOwnProcesses):
    command = (OWN, "forkserver", SCRIPTS / "logs.py", "tensorboard")


@pytest.mark.long  # to load it on two ranks takes 10 s of CPU
@needs("transformers")
class TestTransformersSpawned(InOwnProcesses):
    controls = True
    command = (OWN, "spawn", SCRIPTS / "trains_with_transformers.py")
    metrics: ClassVar = {"transformers": ("transformers", "eval_accuracy")}


@pytest.mark.long  # to load it in three processes takes 15 s of CPU
@needs("lightning")
class TestLightningSpawned(InOwnProcesses):
    """Lightning pickles its trainer for the processes that it starts."""

    controls = True
    command = (SCRIPTS / "trains_with_lightning.py", "lightning.pytorch", "2", "ddp_spawn")
    metrics: ClassVar = {"lightning": ("lightning", "val_acc")}
