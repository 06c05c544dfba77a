"""A hook that does not fit leaves the library as it was, and the training goes on."""

from __future__ import annotations

import textwrap

import pytest

from tests.worker.rank import Rank
from zeusrun.sidecar.events import Hooked
from zeusrun.worker.hooks.install import MODULES


@pytest.fixture
def run(tmp_path):
    """Run a script beside modules of the given texts, which stand for versions to come."""

    def start(script, **modules):
        for name, text in modules.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            for folder in path.relative_to(tmp_path).parents[:-1]:
                init = tmp_path / folder / "__init__.py"
                init.write_text("__version__ = '99.1'\n")
            path.write_text(textwrap.dedent(text))
        tmp_path.joinpath("script.py").write_text(textwrap.dedent(script))
        rank = Rank(tmp_path / "run")
        code, log = rank.run(tmp_path / "script.py")
        return code, log, [event for event in rank.events if isinstance(event, Hooked)]

    return start


def test_a_library_that_has_changed_is_named_with_its_version_and_stays_as_it_was(run):
    code, log, hooked = run(
        """
        import transformers.trainer
        print(transformers.trainer.DEFAULTS)
        """,
        transformers__trainer="DEFAULTS = ['callback']",
    )
    assert (code, log) == (0, "['callback']\n")
    assert [(e.library, e.version) for e in hooked] == [("transformers", "99.1")]
    assert "DEFAULT_CALLBACKS" in hooked[0].problem or "TrainerCallback" in hooked[0].problem


def test_of_two_functions_both_are_hooked_or_none(run):
    code, log, hooked = run(
        """
        import mlflow.tracking.fluent as fluent
        print(fluent.log_metric.__name__, hasattr(fluent.log_metric, "__wrapped__"))
        """,
        mlflow__tracking__fluent="def log_metric(key, value): pass",
    )
    assert (code, log) == (0, "log_metric False\n")
    assert "log_metrics" in hooked[0].problem


def test_an_error_in_a_hook_is_none_of_the_script(run):
    code, log, hooked = run(
        """
        import importlib.util
        importlib.util.find_spec("tensorboardX.writer")  # to ask is not to import
        from tensorboardX.writer import SummaryWriter
        print(SummaryWriter().add_scalar(name="loss", at=1))
        """,
        tensorboardX__writer="""
        class SummaryWriter:
            def add_scalar(self, *, name, at):
                return name
        """,
    )
    assert (code, log) == (0, "loss\n")
    assert hooked[0].problem is None


def test_what_is_hooked_can_be_pickled_as_before(run):
    code, log, _ = run(
        """
        import copy, pickle
        from mlflow.tracking import fluent
        from transformers.trainer import DEFAULT_CALLBACKS
        callback = DEFAULT_CALLBACKS[-1]()
        callback.on_train_begin()
        assert type(copy.deepcopy(callback)) is type(callback)
        print(pickle.loads(pickle.dumps(fluent.log_metric)) is fluent.log_metric)
        print(type(pickle.loads(pickle.dumps(callback))).__name__)
        """,
        mlflow__tracking__fluent="def log_metric(key, value): pass\ndef log_metrics(metrics): pass",
        transformers__trainer="""
        DEFAULT_CALLBACKS = []
        class Trainer: pass
        class TrainerCallback: pass
        """,
    )
    assert (code, log) == (0, "True\nTrainerCallback\n")


def test_a_loader_that_takes_no_attribute_imports_the_library_without_the_hook(run):
    code, log, hooked = run(
        """
        import importlib.util, sys

        class Finder:
            class Loader:
                __slots__ = ()
                def create_module(self, spec): pass
                def exec_module(self, module): module.SummaryWriter = 1

            def find_spec(self, name, path=None, target=None):
                if name == "tensorboardX.writer":
                    return importlib.util.spec_from_loader(name, self.Loader())

        sys.meta_path.insert(1, Finder())
        from tensorboardX.writer import SummaryWriter
        print(SummaryWriter)
        """,
        tensorboardX__other="",
    )
    assert (code, log, hooked) == (0, "1\n", [])


def test_a_module_that_fails_to_import_fails_as_without_the_hook(run):
    code, log, hooked = run(
        """
        try:
            import wandb.sdk.wandb_run
        except ImportError as error:
            print(error)
        """,
        wandb__sdk__wandb_run="raise ImportError('no network')",
    )
    assert (code, log, hooked) == (0, "no network\n", [])


def test_a_module_that_is_not_there_is_not_there(run):
    code, log, hooked = run(
        "import importlib.util; print(importlib.util.find_spec('tensorboardX.writer'))",
        tensorboardX__other="",
    )
    assert (code, log, hooked) == (0, "None\n", [])


def test_every_module_has_its_hook():
    assert set(MODULES.values()) >= {"pytorch.optimizer", "pytorch.loader", "transformers"}
