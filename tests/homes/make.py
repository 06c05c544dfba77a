"""Makes a home by real commands: ``python tests/homes/make.py FOLDER``.

``0.1.0`` was made so, with the zeusrun of that version, and is never changed again. What names this
machine is replaced: its home becomes ``/home/someone/zeusrun``, its host ``somewhere``.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = "/home/someone/zeusrun"
SCRIPT = """\
import os, time
import zeusrun

run = zeusrun.current()
mode, size = os.environ["MODE"], run.local_batch_size(default=32)
run.learning_rate(default=0.1)
for epoch in range(1, 4):
    time.sleep({"slow": 30, "long": 1.5}.get(mode, 0.05))
    if mode == "fail":
        raise ValueError("the data set is empty")
    run.report(epoch=epoch, accuracy=0.2 if mode == "miss" else min(0.9, 0.3 * epoch))
"""
JOB = """\
name: {name}
script: train.py
env: {{MODE: well}}
launch: {{grace_period_s: 2}}
objective: {{metric: accuracy, target: {target}, max_epochs: 3}}
batch_size: {{default: 32, candidates: [16, 32, 64]}}
learning_rate: {{base: 0.1}}
attempts: 1
{more}
"""
# Volumes of 3 trials instead of 100: a volume with so many would be too large for a repository.
COMMAND = """\
import sys
from zeusrun.history.tinydb.store import TinyDBHistory
TinyDBHistory.__init__.__kwdefaults__["volume_trials"] = 3
from zeusrun.cli import main
main()
"""


def make(target: Path) -> None:
    """Make the home; it takes a minute."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        home = folder / "home"
        (folder / "train.py").write_text(SCRIPT)
        (folder / "digits.yaml").write_text(
            JOB.format(
                name="digits",
                target=0.8,
                more="notify: {on: [failed], command: [/bin/false]}\nschedule: {cron: '@daily'}",
            )
        )
        (folder / "words.yaml").write_text(JOB.format(name="words", target=0.5, more="pue: 1.2"))
        home.mkdir(mode=0o700)
        (home / "tariff.yaml").write_text("price: {per_kwh: 0.3, currency: EUR}\n")
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "ZEUSRUN_HOME": str(home),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'fake_torchrun'}",
        }
        argv = [sys.executable, "-c", COMMAND]

        def zeusrun(*words: str, code: int = 0) -> None:
            done = subprocess.run(
                [*argv, *words],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)

        for _ in range(3):
            zeusrun("submit", "digits.yaml", "--batch-size", "32")
        zeusrun("submit", "digits.yaml", "--batch-size", "64", "--set", "env.MODE=miss", code=4)
        zeusrun("submit", "digits.yaml", "--set", "env.MODE=long", code=4)
        zeusrun("submit", "digits.yaml", "--set", "env.MODE=fail", code=3)
        zeusrun("submit", "digits.yaml")
        for _ in range(2):
            zeusrun("submit", "words.yaml")
        zeusrun("gc", "--last", "1")
        zeusrun("schedule", "add", "digits.yaml", "--no-cron")
        child = subprocess.Popen(
            [*argv, "submit", "digits.yaml", "--set", "env.MODE=slow"],
            cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while not list((home / "runs" / "digits").glob("digits-8-1/live.json")):
            time.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 75
        while any((home / "notices").glob("*.tmp")):
            time.sleep(0.1)
        _copy(folder, target)


def _copy(folder: Path, target: Path) -> None:
    """Copy the home and the job files, without what names this machine, and without locks."""
    names = {
        f"{folder}/home": PLACE,
        str(folder): "/home/someone",
        f"{ROOT}:{ROOT / 'tests' / 'fake_torchrun'}": "/opt/zeusrun",
        str(ROOT): "/opt/zeusrun",
        sys.executable: "/usr/bin/python3",
        os.path.realpath(sys.executable): "/usr/bin/python3",
        platform.node(): "somewhere",
    }
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        unwanted = path.suffix in {".lock", ".bak"} or path.name in {"lock", "ticked", "rank0"}
        if not path.is_file() or unwanted or not path.stat().st_size:
            continue
        text = path.read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text)


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    make(Path(sys.argv[1]))
