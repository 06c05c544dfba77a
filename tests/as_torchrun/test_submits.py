"""``zeusrun submit`` leaves what ``torchrun`` leaves.

In the short tier a few cases over the fake torchrun, against Python itself; in the long tier all of
them over the real one, against the real one.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.as_torchrun.cases import CASES, DDP, TORCH
from tests.as_torchrun.test_ranks import (
    OF_THE_PROCESS,
    check_that_it_runs_here,
    start_plain,
    without_allowed,
)
from tests.forks import torch_forks
from zeusrun.launcher.processes.command import Place

NOT_STARTED = {"missing", "folder-without-main", "zip-without-main"}
"""Cases that the job file refuses before anything starts."""

IN_SHORT = ("argv", "module-package.train", "folder-runs")
DETACHED = "forks_daemon"
SUBMITTED = [case for case in CASES if case.name not in {*NOT_STARTED, DETACHED}]
TORCHRUN = "from torch.distributed.run import main; main()"
_OWN_LINE = re.compile(r"^[EWI]\d{4} [\d:.]+ \d+ .*torch/distributed/", re.MULTILINE)


def named(name):
    (case,) = (case for case in CASES if case.name == name)
    return case


def rank_code(torchrun_log):
    """Return the exit code of the rank; torchrun names it only if it is not 0."""
    found = re.search(r"^\s*exitcode\s*: (-?\d+)", torchrun_log, re.MULTILINE)
    return int(found[1]) if found else 0


def submit(zeusrun, case, place, **changes):
    """Run a case by a submit; return what it leaves."""
    place.fill(case)
    first, *rest = case.words
    script = None if first == "-m" else str(place.work / first)
    job = zeusrun.job(
        script,
        module=rest.pop(0) if first == "-m" else None,
        args=[word.replace("$", "$$") for word in rest],
        env={**case.env, **place.environment},
        workdir=str(place.work),
        attempts=1,
        **changes,
    )
    _, result, told = zeusrun.submit(job)
    assert result is not None, told
    logs = zeusrun.run_dir() / "logs"
    code = rank_code((logs / "torchrun.log").read_text())
    return comparable(case, place.look(case, code, logs / "rank0.log"))


def run_torchrun(zeusrun, case, place, nproc=1):
    """Run a case by the installed torchrun; return what it leaves.

    Torchrun is a fork of a process that has imported torch; its rank is a process of its own.
    """
    place.fill(case)
    place.log.parent.mkdir(parents=True)
    first, *rest = case.words
    command = [first if first == "-m" else str(place.work / first), *rest]
    # Torchrun replaces ${local_rank} and $$ in each word.
    words = [*Place(nproc).flags("case"), *(word.replace("$", "$$") for word in command)]
    environment = {**zeusrun.environment, **case.env, **place.environment}
    with place.log.open("ab") as log:
        torchrun = torch_forks().start(TORCHRUN, words, environment, place.work, log)
        torchrun.wait(300)
    output = place.log.read_text(encoding="utf-8", errors="surrogateescape")
    own = _OWN_LINE.search(output)
    text = output if own is None else output[: own.start()]
    place.log.write_text(text, encoding="utf-8", errors="surrogateescape")
    return comparable(case, place.look(case, rank_code(output[len(text) :])))


def comparable(case, seen):
    """Leave out what torchrun itself has in TMPDIR."""
    return replace(without_allowed(case, seen), temporary=0)


@pytest.mark.parametrize("name", IN_SHORT)
def test_a_submit_leaves_what_python_leaves(name, zeusrun, places):
    case, place = named(name), places("plain")
    place.fill(case)
    code = start_plain(case, place).wait(300)
    plain = comparable(case, place.look(case, code))
    assert submit(zeusrun, case, places("submit")) == plain


BARE = [case for case in SUBMITTED if case.name in OF_THE_PROCESS]  # the others: test_ranks.py


@pytest.mark.long
@pytest.mark.torchrun
@pytest.mark.parametrize(
    ("case", "instrument"),
    [
        *(pytest.param(case, True, id=f"{case.name}-hooked") for case in (*SUBMITTED, *TORCH)),
        *(pytest.param(case, False, id=f"{case.name}-bare") for case in (*BARE, *TORCH)),
    ],
)
def test_a_submit_leaves_what_torchrun_leaves(case, instrument, zeusrun, places):
    check_that_it_runs_here(case)
    torchrun = run_torchrun(zeusrun, case, places("torchrun"))
    assert submit(zeusrun, case, places("submit"), instrument=instrument) == torchrun


@pytest.mark.long
@pytest.mark.torchrun
@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("case", DDP, ids=lambda case: case.name)
def test_a_submit_of_ddp_leaves_what_torchrun_leaves_if_it_does_not_abort(
    case, nproc, zeusrun, places
):
    """Plain Python aborts in about half of all runs (SIGABRT) after the script has ended."""
    for name in "abcdefghijkl":
        torchrun = run_torchrun(zeusrun, case, places(name), nproc)
        if torchrun.code != -signal.SIGABRT:
            break
    ours = submit(zeusrun, case, places("submit"), launch={"nproc_per_node": nproc})
    assert (ours.code, ours.left) == (torchrun.code, torchrun.left)
    # If a rank fails, torchrun ends the others in the middle of their work.
    whole = f"{nproc - 1}." if "fails" in case.words else ""
    assert [f for f in ours.files if f.startswith(whole)]
    for path in (path for path in torchrun.files if path.startswith(whole)):
        assert ours.files[path] == torchrun.files[path], path


@pytest.mark.parametrize("instrument", [True, False], ids=["hooked", "bare"])
def test_a_process_that_detaches_itself_is_ended_with_its_run(instrument, zeusrun, places):
    case = replace(named(DETACHED), left=0)  # a process that was killed may end a moment later
    seen = submit(zeusrun, case, places("submit"), instrument=instrument)
    assert (seen.code, seen.left, list(seen.files)) == (0, 0, ["daemon.txt", "forks_daemon.py"])


@pytest.mark.long
@pytest.mark.torchrun
def test_torchrun_leaves_a_process_that_detaches_itself(zeusrun, places):
    seen = run_torchrun(zeusrun, named(DETACHED), places("torchrun"))
    assert (seen.code, seen.left) == (0, 1)


def test_the_output_of_a_rank_is_in_its_log(zeusrun):
    (zeusrun.folder / "prints.py").write_text("import sys; print('a line', sys.stdout.isatty())\n")
    told = zeusrun("submit", zeusrun.job("prints.py", attempts=1))
    assert "[rank0] a line False" in told.stdout + told.stderr
    assert (zeusrun.run_dir() / "logs" / "rank0.log").read_text() == "a line False\n"


PRINTS_TOO_MUCH = """
import resource, zeusrun
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
for number in range(3000):
    print(f"{number:0100}")
zeusrun.current().report(epoch=1, accuracy=1.0)
"""


def test_what_does_not_fit_into_the_log_is_dropped(zeusrun):
    (zeusrun.folder / "prints.py").write_text(PRINTS_TOO_MUCH)
    code, _, told = zeusrun.submit(zeusrun.job(str(zeusrun.folder / "prints.py")))
    assert code == 0, told
    log = (zeusrun.run_dir() / "logs" / "rank0.log").read_bytes()
    assert log.startswith(f"{0:0100}\n{1:0100}\n".encode())
    assert len(log) == 1 << 16


def test_a_script_that_opens_its_output_empties_the_log(zeusrun):
    (zeusrun.folder / "opens.py").write_text(
        "print('one')\nfor mode in 'wa':\n    print(mode, file=open('/dev/stdout', mode))\n"
    )
    zeusrun("submit", zeusrun.job("opens.py", attempts=1))
    assert (zeusrun.run_dir() / "logs" / "rank0.log").read_text() == "w\na\n"


def test_a_rank_that_ends_badly_after_its_script_is_no_failure(zeusrun):
    (zeusrun.folder / "ends.py").write_text(
        "import atexit, os, zeusrun\n"
        "zeusrun.current().report(epoch=1, accuracy=1.0)\n"
        "atexit.register(os._exit, 6)\n"
    )
    code, result, _ = zeusrun.submit(zeusrun.job(str(zeusrun.folder / "ends.py")))
    assert (code, result["trials"][0]["status"]) == (0, "REACHED")
    assert "the training itself is complete" in " ".join(result["trials"][0]["warnings"])


def test_a_rank_reads_no_input(zeusrun):
    (zeusrun.folder / "reads.py").write_text("import sys; print(repr(sys.stdin.read()))\n")
    child = subprocess.run(
        zeusrun.argv("submit", zeusrun.job("reads.py", attempts=1)),
        cwd=zeusrun.folder,
        env=zeusrun.environment,
        input="typed\n",
        capture_output=True,
        text=True,
        check=False,
    )
    log = zeusrun.run_dir() / "logs" / "rank0.log"
    assert log.read_text() == "''\n", child.stderr


def test_a_script_gets_its_absolute_path(zeusrun):
    path = zeusrun.folder / "names.py"
    path.write_text("import sys; print(sys.argv[0], __file__)\n")
    zeusrun("submit", zeusrun.job("names.py", attempts=1))
    assert (zeusrun.run_dir() / "logs" / "rank0.log").read_text() == f"{path} {path}\n"


@pytest.mark.long
def test_torchrun_hands_on_input_and_the_path_as_it_is_given(tmp_path):
    (tmp_path / "given.py").write_text(
        "import sys; print(sys.argv[0], __file__, repr(sys.stdin.read()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "given.py"],
        cwd=tmp_path,
        input="typed\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"given.py {tmp_path / 'given.py'} 'typed\\n'\n"


WRITES = """
class Writer:
    def __init__(self, path):
        self.path = path

    def __del__(self):
        with open(self.path, "w") as file:
            file.write("taken down")
"""
HOLDS = """
import sys
sys.path.insert(0, "site-packages")
import library, own, torch.distributed
torch.distributed.init_process_group("gloo")
"""


@pytest.mark.long
@pytest.mark.torchrun
def test_beside_gloo_installed_packages_are_not_taken_down(zeusrun):
    (zeusrun.folder / "site-packages").mkdir()
    for path in ("site-packages/library.py", "own.py"):
        name = path.rpartition("/")[2].removesuffix(".py")
        (zeusrun.folder / path).write_text(f"{WRITES}\nheld = Writer('{name}.txt')\n")
    (zeusrun.folder / "holds.py").write_text(HOLDS)
    _, result, told = zeusrun.submit(
        zeusrun.job("holds.py", attempts=1, workdir=str(zeusrun.folder))
    )
    assert result is not None, told
    assert sorted(path.name for path in zeusrun.folder.glob("*.txt")) == ["own.txt"]
