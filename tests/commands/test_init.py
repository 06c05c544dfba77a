"""``init``: from a command to a job that runs."""

from __future__ import annotations

import json
import os
import resource
from textwrap import dedent

import pytest
import yaml

from tests.factories import build_trial
from zeusrun.commands import short_run, try_run
from zeusrun.commands.short_run import Tried
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.yaml_reader import read_job_file
from zeusrun.metrics.progress import Progress
from zeusrun.metrics.propose import propose
from zeusrun.metrics.seen import Seen
from zeusrun.sidecar.events import Hooked

REPORTS = """
    import argparse
    import zeusrun

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    run = zeusrun.current()
    for epoch in range(1, arguments.epochs + 1):
        print("epoch", epoch, arguments.batch_size, arguments.lr)
        run.report(epoch=epoch, val_accuracy=0.3 * epoch, val_loss=1 / epoch)
        if run.should_stop():
            break
"""
TRAINS = """
    import os
    import torch

    if "RANK" in os.environ:  # so scripts of torchvision and nanoGPT decide
        raise SystemExit("python starts no rank")
    data = torch.utils.data.TensorDataset(torch.ones(96, 2))
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = 3 * 4
    for epoch in range(2):
        for (x,) in torch.utils.data.DataLoader(data, batch_size=size, shuffle=True):
            model(x).mean().backward()
            optimizer.step()
"""

SEES = """
    import argparse, os, time
    from zeusrun.sidecar.events import Observed, append_event
    from zeusrun.sidecar.step_clock import StepClock

    parser = argparse.ArgumentParser()
    parser.add_argument("{option}", type=int)
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    size, rank = {size}, int(os.environ.get("RANK", "0"))
    seen = Observed(time.monotonic(), rank, size, 1, length=64 // size)
    append_event(os.environ["ZEUSRUN_SIDECAR"], seen)
    clock = StepClock(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "clock", f"rank{{rank}}"))
    for epoch in range(1, {epochs} + 1):
        for _ in range(64 // size):
            clock.tick()
        print(f"epoch {{epoch}} val accuracy: {{0.5 + epoch / 8:.3f}}", flush=True)
"""
"""Tells what the worker sees of a training, without torch."""


@pytest.fixture
def script(zeusrun):
    def write(text, name="train.py"):
        (zeusrun.folder / name).write_text(dedent(text))

    return write


@pytest.mark.long
def test_a_model_that_a_script_saves_after_its_loop_is_kept(zeusrun, script):
    prints = 'print(f"epoch {epoch + 1} score {0.4 + epoch}", flush=True)'
    trains = dedent(TRAINS).replace("range(2)", "range(4)")
    script(f'{trains}    {prints}\ntorch.save(model, "model.pt")\n')
    job, model = zeusrun.folder / "train.yaml", zeusrun.folder / "model.pt"
    done = zeusrun("init", "--try", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert load_spec(job).objective.on_target == "continue"
    model.unlink()
    code, result, seen = zeusrun.submit(job, "--set", "objective.target=1")
    assert (code, result["trials"][0]["epochs"]) == (0, 2), seen
    assert model.is_file()
    stops = zeusrun("validate", job, "--set", "objective.on_target=stop")
    assert "line 16 of train.py saves after the training loop" in stops.stderr
    _, _, seen = zeusrun.submit(job, "--set", "objective.on_target=stop")
    assert seen.index("saves after the training loop") < seen.index("[rank0]")


def test_from_a_command_over_a_try_to_a_run(zeusrun, script):
    """Three commands: init, validate, submit."""
    script(REPORTS)
    command = ("torchrun", "--nproc-per-node", 2, "train.py", "--batch-size=16", "--lr", "0.2")
    done = zeusrun("init", "--try", "--", *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert "epoch 1 16 0.2" in done.stdout  # the try: as in the command, for one epoch
    assert "epoch 2" not in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["val_accuracy", "report", "1", "0.3", "0.3", "0.3", "to", "0.3"] in rows
    assert ["val_loss", "report", "1", "1", "1", "1", "to", "1"] in rows
    assert "train.yaml is updated with what the run has shown." in done.stdout
    assert "Proposed: val_accuracy at least 0.33." in done.stdout
    job = yaml.safe_load((zeusrun.folder / "train.yaml").read_text())
    text = (zeusrun.folder / "train.yaml").read_text()
    assert ("assumed" in text, "; checked by --try" in text) == (True, False)  # no loader
    assert job["objective"] == {
        "metric": "val_accuracy",
        "mode": "max",
        "target": 0.33,
        "max_epochs": 4,
    }
    assert zeusrun.history() == []
    assert not (zeusrun.home / "runs").exists()
    assert zeusrun("validate", "train.yaml").returncode == 0
    code, result, _ = zeusrun.submit("train.yaml")
    (trial,) = result["trials"]
    assert (code, trial["epochs"], trial["global_batch_size"]) == (0, 2, 32)
    assert trial["learning_rate"] == 0.2


NBEATS = """
    import argparse
    import zeusrun

    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    stop = dict(EarlyStopping=dict) and dict(monitor="val_q", mode="min")
    run = zeusrun.current()
    for epoch in range(1, epochs + 1):
        run.report(epoch=epoch, val_q=4.0 / epoch, val_p=0.3 * epoch)
"""


def test_a_name_that_says_nothing_is_asked_about_and_what_the_script_monitors_is_not(
    zeusrun, script
):
    script(NBEATS.replace("val_q=4.0 / epoch, ", ""))
    done = zeusrun("init", "--try", "--", "python", "train.py")
    assert done.returncode == 3, done.stderr
    assert "write whether val_p is better when it is low (mode: min) or high" in done.stdout
    text = (zeusrun.folder / "train.yaml").read_text()
    assert "  # metric: val_p " in text
    assert "  # mode: max or min" in text
    (zeusrun.folder / "train.yaml").unlink()
    script(NBEATS)
    done = zeusrun("init", "--try", "--", "python", "train.py")
    assert done.returncode == 3, done.stderr
    assert "Proposed: val_q at most 3.6." in done.stdout
    assert (
        "This is no finished job, because zeusrun has found no batch size to choose" in done.stdout
    )
    job = yaml.safe_load((zeusrun.folder / "train.yaml").read_text())
    assert (job["objective"]["metric"], job["objective"]["mode"]) == ("val_q", "min")


def test_a_batch_size_that_only_the_data_loader_shows_is_found(zeusrun, script):
    script(TRAINS)
    done = zeusrun("init", "--try", "--", "python", "train.py")
    assert (done.returncode, done.stderr) == (3, "")
    assert "no metric that zeusrun can see" in done.stdout
    assert "no optimizer step" not in done.stdout
    assert "docs/metrics.md" in done.stdout
    text = (zeusrun.folder / "train.yaml").read_text()
    assert yaml.safe_load(text)["batch_size"] == {
        "default": 12,
        "candidates": [3, 6, 12, 24, 48],
        "apply": "dataloader",
    }
    assert "# learning_rate: {base: 0.1, scale" in text
    assert "# metric: val_accuracy" in text
    assert yaml.safe_load(text)["objective"]["max_epochs"] == 2  # the whole training has run


def test_a_try_proposes_a_pattern_for_what_the_script_prints(zeusrun, script):
    script("""
        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, default=3)
        parser.add_argument("--batch-size", type=int, default=8)
        epochs = parser.parse_args().epochs
        print("data: 5000 samples in 'val', 2 classes")
        for epoch in range(1, epochs + 1):
            print(f"Epoch {epoch}/{epochs} | train loss: {1.0817 / epoch:.4f} | it's val acc: "
                  f"{80 + 7.1 * epoch:.2f}%", flush=True)
    """)
    done = zeusrun("init", "--try", "--", "torchrun", "--nproc-per-node=1", "train.py")
    assert done.returncode == 0, done.stderr
    assert "Proposed: it_s_val_acc at least 89." in done.stdout
    assert "lines such as: Epoch 1/1 | train loss: 1.0817 | it's val acc: 87.10%" in done.stdout
    job = yaml.safe_load((zeusrun.folder / "train.yaml").read_text())
    assert job["metrics"] == {
        "source": "stdout",
        "pattern": r"^Epoch +(?P<epoch>\d+)/ *\d+ \| train loss: *(?P<train_loss>\S+) "
        r"\| it's val acc: *(?P<it_s_val_acc>\S+)",
    }
    size = ("--set", "batch_size.default=8", "--set", "batch_size.candidates=[8]")
    code, result, _ = zeusrun.submit("train.yaml", *size)
    (trial,) = result["trials"]
    assert (code, trial["epochs"]) == (0, 2)


@pytest.mark.parametrize(
    ("size", "why", "share"),
    [
        ("given.b", "n = batch_size // world_size", "${local_batch_size}"),
        ("given.b // 2", "nothing", "${batch_size}"),
    ],
)
def test_a_try_corrects_who_shares_the_batch_size(zeusrun, script, size, why, share):
    script(
        SEES.format(option="-b", epochs="2", size=size)
        + f"""
    def never():
        # {why}
        import torch
        torch.distributed.init_process_group("gloo")
    """
    )
    done = zeusrun("init", "--try", "--", "torchrun", "--nproc-per-node=2", "train.py", "-b", 8)
    assert "'batch_size' and 'args' are corrected" in done.stderr
    job = yaml.safe_load((zeusrun.folder / "train.yaml").read_text())
    assert (job["args"][:2], job["batch_size"]["default"]) == (
        ["-b", share],
        16 if "local" in share else 8,
    )


@pytest.mark.long
def test_a_try_says_what_it_has_checked_and_that_a_metric_is_at_its_best(zeusrun, script):
    script("""
        import torch, zeusrun

        torch.distributed.init_process_group("gloo")
        data = torch.utils.data.TensorDataset(torch.ones(96, 2))
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for (x,) in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
            model(x).mean().backward()
            optimizer.step()
        zeusrun.current().report(accuracy=1.0)
    """)
    command = ("torchrun", "--nproc-per-node=2", "train.py", "--batch-size", 8, "--epochs", 2)
    done = zeusrun("init", "--try", "--", *command)
    assert "Proposed: accuracy at least 1." in done.stdout
    text = (zeusrun.folder / "train.yaml").read_text()
    assert "nothing says otherwise; checked by --try" in text


def test_a_try_says_that_the_script_trains_in_processes_of_its_own(zeusrun, script):
    script("""
        import json, os, time
        event = {"v": 1, "event": "spawned", "t": time.monotonic(), "pid": 1}
        with open(os.environ["ZEUSRUN_SIDECAR"], "a") as sidecar:
            sidecar.write(json.dumps(event) + "\\n")
    """)
    done = zeusrun("init", "--try", "--", "python", "train.py", "--batch-size", 8)
    assert "train.yaml: the script started training processes of its own" in done.stderr
    assert "made no optimizer step" not in done.stdout


def test_a_try_that_fails_leaves_the_file_and_says_why(zeusrun, script):
    script("raise RuntimeError('no data')")
    done = zeusrun("init", "--try", "--", "python", "train.py", "--batch-size", 8)
    assert done.returncode == 3
    assert "no data" in done.stdout + done.stderr
    assert "train.yaml stays as it is. Correct the cause, delete the file, and run" in done.stderr
    assert "# metric" in (zeusrun.folder / "train.yaml").read_text()


LOOP = """
    import argparse, time
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    epochs = parser.parse_args().epochs
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    {start}
    for epoch in range(1, epochs + 1):
        for _ in range(12):
            model(torch.ones(8, 2)).mean().backward()
            optimizer.step()
        {epoch}
        time.sleep(0.3)
"""
TRAINS_FOR_LONG = """
import os, time
from zeusrun.sidecar.step_clock import StepClock
clock = StepClock(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "clock", "rank0"))
while True:
    clock.tick()
    time.sleep(0.05)
"""


def test_imports_do_not_count_as_the_training_of_a_try():
    watch = short_run._Watch()
    for now_t, steps in ((0.0, None), (600.0, None), (610.0, 1), (650.0, 90)):
        watch.take(Progress(0.0, now_t, steps=steps))
    assert watch.trained_s == 40.0


@pytest.mark.parametrize("lines", ["val accuracy: 0.5", "Test Error: \n Accuracy: 12 %"])
def test_where_no_step_is_seen_the_first_result_begins_the_training_of_a_try(lines):
    watch = short_run._Watch()
    watch.take(Progress(0.0, 600.0))
    watch.take_lines(lines.splitlines())
    for now_t in (610.0, 650.0):
        watch.take(Progress(0.0, now_t))
    assert watch.trained_s == 40.0


def test_a_heading_without_a_number_belongs_to_the_next_line_alone():
    watch = short_run._Watch()
    watch.take_lines(["Test Error: ", " Accuracy: 13.8%", "loss: 2.3  [   64/60000]", "epoch 3"])
    assert watch._looks == 1
    watch.take_lines(["Loading validation data...", "step 10 loss 0.4933", "no eval", "loss 0.5"])
    assert watch._looks == 1


def test_a_try_that_trains_on_is_stopped_and_says_so(cli, zeusrun, script, monkeypatch):
    monkeypatch.setattr(short_run, "TRY_S", 1)
    script(TRAINS_FOR_LONG)
    _, out, _ = cli("init", "--try", "--", "python", "train.py")
    assert "stopping: it has trained for 1 s" in out


def test_a_try_that_is_stopped_before_its_first_step_says_so(cli, zeusrun, script, monkeypatch):
    monkeypatch.setattr(short_run, "TRY_S", 0.5)
    monkeypatch.setattr(short_run, "START_S", 0.5)
    script("import time; time.sleep(600)")
    _, out, _ = cli("init", "--try", "--", "python", "train.py")
    assert "It was stopped after 1 s, before its first optimizer step." in out
    assert "see its output above" not in out


ONCE = ("init", "--try", "--", "python", "train.py", "--batch-size", 8)


@pytest.mark.long
def test_what_is_printed_before_the_first_step_is_not_proposed(zeusrun, script):
    start = "print('val: 3 layers accuracy 0.5', flush=True); time.sleep(0.6)"
    script(LOOP.format(start=start, epoch="print('val loss: 0.25')"))
    done = zeusrun("init", "--try", "--", "python", "train.py", "--epochs", 3)
    assert done.returncode == 0, done.stderr
    assert "Proposed: val_loss at most 0.22." in done.stdout


def test_a_crash_after_the_first_epoch_keeps_what_was_seen(zeusrun, script):
    script("print('epoch 1 val acc: 0.5')\nraise RuntimeError('no test data')")
    done = zeusrun(*ONCE, "--epochs", 5)
    assert done.returncode == 3
    assert "Proposed: val_acc at least 0.55." in done.stdout
    assert "RuntimeError: no test data; the proposal is from what it had shown" in done.stderr
    assert "  metric: val_acc" in (zeusrun.folder / "train.yaml").read_text()


def test_a_script_that_cannot_be_imported_is_tried_once(zeusrun, script):
    script("import there_is_none")
    done = zeusrun(*ONCE, "--epochs", 5)
    assert done.returncode == 3
    assert "No module named 'there_is_none'" in done.stderr


def test_without_a_metric_the_lines_most_like_one_are_listed_with_a_pattern(zeusrun, script):
    script("""
        print("precision: 32.0")
        for step in (0, 10):
            print(f"step {step} | it's loss {1 / (step + 1):.4f} | lr 0.1")
    """)
    done = zeusrun(*ONCE)
    assert (done.returncode, done.stderr) == (3, "")
    *_, line, pattern, other, _ = done.stdout.splitlines()
    assert (line, other) == ("  step 10 | it's loss 0.0909 | lr 0.1", "  precision: 32.0")
    assert yaml.safe_load(pattern) == {
        "metrics": {"source": "stdout", "pattern": r"^step.*?\bit's loss +(?P<it_s_loss>\S+)"}
    }


def test_without_a_try_it_says_what_it_guessed_and_what_is_missing(cli, zeusrun, script):
    script("import presets, torchvision")
    code, out, err = cli("init", "--", "torchrun", "--nproc-per-node=2", "train.py", "-b", 8)
    assert (code, err) == (0, "")
    assert "guessed from -b 8 x 2 processes: scripts of torchvision usually mean" in out
    assert "candidates: [4, 8, 16, 32, 64]" in out
    assert "write metric and target under 'objective' in train.yaml (probably acc1" in out
    assert read_job_file(zeusrun.folder / "train.yaml", ()).problems == []
    code, _, err = cli("validate", "train.yaml")
    assert code == 2
    assert "the key 'metric' is missing under 'objective'" in err


def test_the_objective_is_all_that_is_missing(cli, script):
    script("print(1)")
    cli("init", "--", "python", "train.py", "--batch-size", 8)
    given = ("--set", "objective.metric=accuracy", "--set", "objective.target=0.9")
    code, out, _ = cli("validate", "train.yaml", *given)
    assert code == 0
    assert "2, 4, 8, 16, 32" in out


def test_nothing_is_overwritten(cli, zeusrun, script):
    script("print(1)")
    (zeusrun.folder / "train.yaml").write_text("name: mine\n")
    code, out, err = cli("init", "--", "python", "train.py")
    assert (code, out) == (2, "")
    sentence = "train.yaml exists, and init overwrites nothing; name another file with -o before the command"
    assert err.startswith(f"zeusrun: {sentence}: zeusrun init -o OTHER.yaml")
    assert (zeusrun.folder / "train.yaml").read_text() == "name: mine\n"
    assert cli("init", "-o", "other.yaml", "--", "python", "train.py")[0] == 0
    # After a try that failed, the same command may come again.
    assert cli("init", "-o", "other.yaml", "--", "python", "train.py")[0] == 0
    assert cli("init", "-o", "other.yaml", "--", "python", "train.py", "-v")[0] == 2


def test_a_try_runs_with_secrets_that_no_file_keeps(zeusrun, script):
    script("""
        import os, sys, zeusrun
        from pathlib import Path

        secrets = [os.environ["HF_TOKEN"], sys.argv[2]]
        print("with", *secrets, "val acc: 0.5")
        folder = Path(os.environ["ZEUSRUN_RUN_DIR"])
        for path in (*folder.parents[2].rglob("*"), Path("train.yaml")):
            if path.is_file() and path.parent.name not in {"logs", "files"}:
                if "sekret" in path.read_text():
                    print("found in", path)
        if secrets == ["sekret-1", "sekret-2"]:
            zeusrun.current().report(epoch=1, val_accuracy=0.5)
    """)
    (zeusrun.folder / "files").mkdir()
    for name in ("1", "2"):
        (zeusrun.folder / "files" / name).write_text(f"sekret-{name}\n")
    command = ("HF_TOKEN={secret_file: files/1}", "python", "train.py")
    command += ("--api-key", "{secret_file: files/2}", "--batch-size", 8)
    done = zeusrun("init", "--try", "--", *command)
    assert done.returncode == 0, done.stderr
    assert "Proposed: val_accuracy at least 0.5." in done.stdout
    assert "with *** *** val acc: 0.5" in done.stdout
    assert "found in" not in done.stdout
    assert "sekret" not in done.stdout + done.stderr
    assert "sekret" not in (zeusrun.folder / "train.yaml").read_text()


def test_no_line_with_a_secret_becomes_a_pattern(zeusrun, script):
    script("""
        import sys
        print("key", sys.argv[2], "val acc: 0.5")
    """)
    (zeusrun.folder / "key").write_text("sekret-1")
    command = ("python", "train.py", "--api-key", "{secret_file: key}")
    done = zeusrun("init", "--try", "--", *command)
    assert done.returncode == 3
    assert "no metric that zeusrun can see" in done.stdout
    assert "sekret" not in (zeusrun.folder / "train.yaml").read_text()


def test_a_folder_with_a_main_is_a_script(cli, zeusrun, script):
    (zeusrun.folder / "folder").mkdir()
    script("print(1)", "folder/__main__.py")
    assert cli("init", "-o", "folder.yaml", "--", "python", "folder")[0] == 0
    assert "script: folder" in (zeusrun.folder / "folder.yaml").read_text()


def test_a_job_file_without_secrets_may_be_read_by_others_as_the_umask_allows(cli, zeusrun, script):
    script("print(1)")
    before = os.umask(0o022)
    try:
        assert cli("init", "--", "python", "train.py")[0] == 0
    finally:
        os.umask(before)
    assert (zeusrun.folder / "train.yaml").stat().st_mode & 0o777 == 0o644


def test_a_job_file_elsewhere_runs_the_command_where_it_was(cli, zeusrun, script):
    script("print(1)")
    (zeusrun.folder / "jobs").mkdir()
    assert cli("init", "-o", "jobs/nightly.yaml", "--", "python", "train.py")[0] == 0
    job = yaml.safe_load((zeusrun.folder / "jobs" / "nightly.yaml").read_text())
    assert (job["name"], job["script"], job["workdir"]) == ("nightly", "../train.py", "..")
    code, _, err = cli("init", "-o", "nowhere/nightly.yaml", "--", "python", "train.py")
    assert code == 2
    assert "nowhere/nightly.yaml cannot be written: No such file or directory" in err


def test_a_full_disk_leaves_no_part_of_a_job_file(cli, zeusrun, script):
    script("print(1)")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        code, out, err = cli("init", "--", "python", "train.py")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, out, err) == (2, "", "zeusrun: train.yaml cannot be written: File too large\n")
    assert list(zeusrun.folder.glob("*.yaml")) == []


def test_a_warning_stands_in_the_file_and_on_the_terminal(cli, zeusrun, script, record):
    record(1, job="train")
    script("lr = args.lr * args.world_size")
    code, _, err = cli("init", "--", "python", "train.py", "--lr", "0.1")
    assert code == 0
    first, second = err.splitlines()
    assert first.startswith("zeusrun: warning: train.yaml: the script seems to multiply")
    assert "a job called 'train' has a history" in second
    assert "# Warning: the script seems to" in (zeusrun.folder / "train.yaml").read_text()


def test_the_settings_of_nanogpt_are_read_after_its_script(cli, zeusrun, script):
    script("batch_size = 12\nexec(open('configurator.py').read())")
    script("batch_size = 4", "small.py")
    assert cli("init", "--", "python", "train.py", "small.py", "--device=cpu")[0] == 0
    job = yaml.safe_load((zeusrun.folder / "train.yaml").read_text())
    assert job["args"] == ["small.py", "--device=cpu", "--batch_size=${local_batch_size}"]
    assert job["batch_size"]["default"] == 4


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("python", "nope.py"), "there is no script nope.py"),
        (("python", "."), ". is not a file"),
        (("./train.sh",), "train.sh is not a Python script"),
        (("torchrun", "--nnodes", "1:2", "train.py"), "give one number: --nnodes 1"),
        (("srun", "python", "train.py"), "'srun' is not a launcher that zeusrun knows"),
        (("python", "train.py", "\udcff"), "not UTF-8"),
    ],
)
def test_what_cannot_be_a_job_is_refused_in_one_sentence(cli, zeusrun, script, command, sentence):
    script("print(1)")
    script("#!/bin/sh\ntorchrun train.py", "train.sh")
    code, out, err = cli("init", "--", *command)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert list(zeusrun.folder.glob("*.yaml")) == []


def test_a_module_is_found_in_the_working_directory(cli, zeusrun):
    (zeusrun.folder / "package").mkdir()
    (zeusrun.folder / "package" / "__main__.py").write_text("from timm import utils")
    code, out, _ = cli("init", "--", "python", "-m", "package", "-b", "8")
    assert code == 0
    assert "scripts of timm" in out
    assert yaml.safe_load((zeusrun.folder / "package.yaml").read_text())["module"] == "package"


def test_a_file_that_changes_during_the_try_stays(zeusrun, script):
    script("""
        from pathlib import Path
        Path("train.yaml").write_text("name: mine")
        print("step 0: train loss 4.2, val loss 4.1")
    """)
    done = zeusrun("init", "--try", "--", "python", "train.py", "--batch-size", 8)
    assert done.returncode == 0, done.stderr
    assert "train.yaml was edited meanwhile, so init has not changed it." in done.stdout
    assert "Proposed: val_loss at most 4." in done.stdout  # as nanoGPT prints it
    assert (zeusrun.folder / "train.yaml").read_text() == "name: mine"


@pytest.mark.long  # as over the fake one
@pytest.mark.torchrun
def test_a_try_under_the_real_torchrun_is_recorded_nowhere(zeusrun, script):
    script(REPORTS)
    done = zeusrun("init", "--try", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert "Proposed: val_accuracy at least 0.33." in done.stdout
    assert json.loads(zeusrun("history", "--json").stdout) == []


LOADED = """
import argparse, torch
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--epochs", type=int, default=2)
given = parser.parse_args()
data = TensorDataset(torch.randn(64, 4))
loader = DataLoader(data, batch_size={size}, shuffle=True)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
for epoch in range(1, given.epochs + 1):
    for (batch,) in loader:
        layer(batch).square().mean().backward()
        optimizer.step()
    print(f"epoch {{epoch}} val accuracy: {{0.5 + epoch / 8:.3f}}", flush=True)
"""


def test_a_try_rehearses_another_batch_size_and_says_why_a_metric_was_chosen(zeusrun, script):
    script(SEES.format(option="--batch-size", epochs="given.epochs", size="given.batch_size"))
    done = zeusrun("init", "--try", "--", "python", "train.py", "--batch-size", 16, "--epochs", 2)
    assert done.returncode == 0, done.stderr
    assert "Rehearsing batch size 8" in done.stdout
    assert "Batch size 8 arrives in the training." in done.stdout
    said = "Chosen: val_accuracy (of an evaluation, higher is better), as the script prints it."
    assert said in done.stdout


@pytest.mark.long
def test_a_batch_size_that_never_changes_is_found_by_the_rehearsal(zeusrun, script):
    script(LOADED.format(size=16))
    done = zeusrun("init", "--try", "--", "python", "train.py", "--batch-size", 16, "--epochs", 2)
    assert "batch size 8 does not arrive: the run trained with 16" in done.stderr
    assert done.returncode == 3
    assert "Next: this is no finished job" in done.stdout


@pytest.mark.long
def test_a_fixed_batch_size_that_happens_to_be_a_multiple_is_none(zeusrun, script):
    script(LOADED.format(size=16))
    done = zeusrun("init", "--try", "--", "python", "train.py", "--batch-size", 8, "--epochs", 2)
    assert done.returncode == 3
    assert "size of 16, not with 8; correct 'batch_size' and 'args'" in done.stderr
    assert "batch size 4 does not arrive: the run trained with 16" in done.stderr
    job = yaml.safe_load((zeusrun.folder / "train.yaml").read_text())
    assert (job["args"][1], job["batch_size"]["default"]) == ("${local_batch_size}", 8)


@pytest.mark.long
def test_the_same_training_reaches_the_target_that_a_whole_try_proposes(zeusrun, script):
    script(
        LOADED.format(size=16)
        .replace('"--epochs", type=int, default=2', '"--e"')
        .replace("range(1, given.epochs + 1)", "range(1, 3)")
        .replace('print(f"epoch {epoch}', 'print(f"[{epoch}/2] loss: 0.5')
        .replace("/ 8:", "/ 9:")
    )
    done = zeusrun("init", "--try", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert "Proposed: val_accuracy at least 0.72. The whole training has run" in done.stdout
    path = zeusrun.folder / "train.yaml"
    assert "max_epochs: 2 " in path.read_text()
    assert zeusrun.submit(path)[0] == 0


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("train_loss", "It is of the training"),
        ("d_loss", None),
        ("val_loss", None),
        ("acc", None),
    ],
)
def test_a_loss_of_the_training_is_said_to_be_one(metric, said):
    proposal = propose({(metric, "stdout"): Seen(0.5, 0.4)})
    _, told = try_run._describe_proposal(proposal, None, proposal.mode, whole=False)
    assert (said in told) if said else ("training" not in told)


def tried(steps=16, passes=2, finished=True, asked=(), hooks=(), **changes):
    hooked = [Hooked(1.0, name, "1", problem) for name, problem in hooks]
    progress = Progress(
        launched_t=0.0, now_t=9.0, steps=steps, passes=passes, asked=frozenset(asked),
        hooks=tuple(hooked),
    )  # fmt: skip
    return Tried(build_trial(), 0, progress, [], ended=False, finished=finished, **changes)


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({}, True),
        ({"asked": ["batch_size"]}, True),
        ({"hooks": [("tensorboard", None), ("lightning", "does not fit")]}, True),
        ({"finished": False}, False),
        ({"is_part": True}, False),
        ({"asked": ["stop"]}, False),  # it asks whether to go on
        ({"hooks": [("lightning", None)]}, False),  # a hook ends it after max_epochs
        ({"hooks": [("transformers", None)]}, False),
    ],
)
def test_a_training_that_zeusrun_ended_after_an_epoch_is_not_the_whole(changes, whole):
    """One epoch of 100 was "the whole training has run"."""
    assert tried(**changes).is_whole is whole


@pytest.mark.long  # each part is judged above and in tests/jobfile/test_guess.py
def test_a_try_knows_that_zeusrun_has_ended_the_training(zeusrun, script):
    script(
        """
        import torch, zeusrun
        from torch.utils.data import DataLoader, TensorDataset

        run = zeusrun.current()
        loader = DataLoader(TensorDataset(torch.ones(640, 2)), run.local_batch_size(default=16))
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adadelta(model.parameters(), lr=run.learning_rate(default=1.0))
        for epoch in run.epochs(100):
            for (x,) in loader:
                model(x).mean().backward()
                optimizer.step()
            run.report(epoch=epoch, val_accuracy=0.5)
        """
    )
    done = zeusrun("init", "--try", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert "The whole training has run" not in done.stdout


@pytest.mark.long
def test_a_script_that_crashes_before_any_training_is_tried_once(zeusrun, script):
    script(LOOP.format(start="raise OSError('no data/train.bin')", epoch=""))
    done = zeusrun("init", "--try", "--", "python", "train.py", "--epochs", 6)
    assert done.returncode == 3
    assert "no data/train.bin" in done.stderr
