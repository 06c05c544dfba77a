"""The scripts of this suite, how each is started, and what may differ from torchrun."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCRIPTS = Path(__file__).with_name("scripts")


@dataclass(frozen=True)
class Case:
    """One start of a script.

    Attributes:
        name: Of the test.
        words: The script and its arguments, or ``-m`` and a module; the script lies in the working
            directory.
        files: What to copy there, from ``scripts``; by default the script, or the module's folder.
        make: Writes into the working directory what a file of this repository cannot be.
        env: Variables to set.
        needs: Libraries; the case is skipped without one.
        since: The oldest Python.
        left: Processes that live on after a rank that ends by itself.
        racy_order: The order of the lines, and how often each comes, is chance.
        torch: Repeated in the long tier with torch imported by the first line of the script.
    """

    name: str
    words: tuple[str, ...]
    files: tuple[str, ...] = ()
    make: Callable[[Path], object] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 10)
    left: int = 0
    racy_order: bool = False
    torch: bool = False

    @property
    def copied(self) -> tuple[str, ...]:
        if self.files or self.make is not None:
            return self.files
        return (self.words[1].split(".")[0] if self.words[0] == "-m" else self.words[0],)

    @property
    def skipped(self) -> str | None:
        """Why it cannot run with this Python; a library is checked when it is needed."""
        return None if sys.version_info >= self.since else f"needs Python {self.since}"


def script(name: str, *arguments: str, **values) -> Case:
    name = "-".join([name, *arguments[:1]]) if "/" not in name else name
    return Case(name, (f"{name.split('-')[0]}.py", *arguments), **values)


def forms(name: str, *arguments: str, **values) -> list[Case]:
    """Return a case for each argument."""
    return [script(name, word, **values) for word in arguments]


def source(name: str, text: bytes, **values) -> Case:
    """Return a case of a script of these bytes."""
    return Case(
        f"source-{name}", ("made.py",), make=lambda at: (at / "made.py").write_bytes(text), **values
    )


def module(name: str, *arguments: str, **values) -> Case:
    label = "-".join(filter(None, ["module", name, *arguments[:1]]))
    return Case(label, ("-m", name, *arguments), **values)


def zip_folder(at: Path) -> None:
    """Make a zipapp of ``folder``, with a first line for a shell."""
    with (at / "app.pyz").open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w") as archive:
            for path in sorted((SCRIPTS / "folder").iterdir()):
                if path.is_file():
                    archive.write(path, path.name)


def empty_zip(at: Path) -> None:
    with zipfile.ZipFile(at / "empty.pyz", "w") as archive:
        archive.writestr(zipfile.ZipInfo("other.py"), "")  # without the time: it is made twice


def compiled(at: Path) -> None:
    import py_compile

    (at / "made.py").write_text(
        "import sys\nprint(__name__, __file__, __cached__, sys.argv)\n1 / 0\n"
    )
    py_compile.compile(str(at / "made.py"), str(at / "made.pyc"), doraise=True)
    (at / "made.py").unlink()


def linked(at: Path) -> None:
    (at / "deep").mkdir()
    (at / "deep" / "real.py").write_text("import sys\nprint(__file__, sys.argv[0], sys.path[0])\n")
    (at / "link.py").symlink_to("deep/real.py")


_ODD = (
    "",
    "a b",
    "$HOME",
    "$$",
    "${local_rank}",
    "*",
    "ä",
    "--",
    "-m",
    "--plain",
    "'\"",
    "a\nb",
    "\\",
)
_SHADOWS = (
    *("random", "queue", "json", "calendar", "statistics", "logging", "signal", "types", "events"),
    *("context", "failure", "worker", "hooks", "sidecar", "files", "ctypes", "uuid"),
    "dataclasses",
)
_SHADOW_FILES = tuple(f"shadows/{name}.py" for name in ("train", *_SHADOWS))

CASES = (
    script("files_text", torch=True),
    script("files_compressed", torch=True),
    script("files_archives", torch=True),
    script("files_temporary", torch=True),
    script("files_databases", torch=True),
    script("files_numpy", needs=("numpy",), torch=True),
    script("files_h5", needs=("h5py",), torch=True),
    script("logging_at_exit", torch=True),
    script("threads_go_on", torch=True),
    script("threads_daemon", racy_order=True, torch=True),
    *forms("threads_fail", "default", "hook", "exit"),
    script("atexit_hooks", torch=True),
    script("atexit_hooks", "unregister"),
    script("atexit_after_failure", torch=True),
    script("weakrefs", torch=True),
    script("del_globals", torch=True),
    script("del_globals", "3", torch=True),
    *forms("del_locals", "exit", "fail", torch=True),
    script("signals_default"),
    *forms(
        "signals_die",
        *("SIGTERM", "SIGINT", "segfault"),
        "SIGUSR1",
        "SIGALRM",
        "SIGUSR2",
        "SIGKILL",
        "SIGHUP",
        "abort",
    ),
    *forms("signals_die", "raise", "subclass", "in_except", torch=True),
    script("signals_handled"),
    *forms("faulthandler_dumps", "dump", "segfault", "later"),
    script("stacks"),
    *forms(
        "forks",
        "ends",
        "interrupted",
        "fails",
        "exits",
        "exits_at_once",
        "killed",
        torch=True,
    ),
    script("forks_daemon", left=1),
    script("subprocesses"),
    script("mp_fork", torch=True),
    *forms("mp_spawn", "spawn", "forkserver"),
    script("mp_leaks", torch=True),
    script("process_pool", torch=True),
    script("pickles", torch=True),
    script("fresh_main"),
    script("fresh_process"),
    script("fresh_extras"),
    Case("argv", ("argv.py", *_ODD)),
    module("package.train"),
    module("package.train", "fail"),
    module("package.train", "spawn"),
    module("package"),
    module("spaces.train"),
    module("argv", *_ODD, files=("argv.py",)),
    module("nothing_of_this_name", make=lambda at: None),
    module("package.nothing", files=("package",)),
    module("package.sub", files=("package",)),
    module("bad_package.train"),
    module("broken.train"),
    module("pickles", files=("pickles.py",)),
    module("exits", "three", files=("exits.py",)),
    module("signals_die", "raise", files=("signals_die.py",)),
    module("made", make=lambda at: (at / "made.py").write_bytes(b"print('before'\n")),
    Case("shadows", ("shadows/train.py", *_SHADOWS), files=_SHADOW_FILES),
    *(
        Case(f"folder-{how}", ("folder", how), files=("folder",))
        for how in ("runs", "fail", "spawn")
    ),
    *(
        Case(f"zipapp-{how}", ("app.pyz", how), make=zip_folder)
        for how in ("runs", "fail", "spawn")
    ),
    Case("folder-without-main", ("package/sub",), files=("package",)),
    Case("zip-without-main", ("empty.pyz",), make=empty_zip),
    Case("compiled", ("made.pyc", "a"), make=compiled),
    Case("linked", ("link.py",), make=linked),
    Case("linked-safe-path", ("link.py",), make=linked, env={"PYTHONSAFEPATH": "1"}),
    Case("missing", ("nowhere.py",), make=lambda at: None),
    *(
        Case(
            f"runs_others-{how}",
            ("runs_others.py", how),
            files=("runs_others.py", "other.py"),
        )
        for how in ("path", "module", "exec", "import")
    ),
    source("bom", "\ufeffprint('ä')\n1 / 0\n".encode()),
    source("latin_1", "# -*- coding: latin-1 -*-\nprint('ä')\nä = 1 / 0\n".encode("latin-1")),
    source("not_utf_8", b"print('\xe4')\n"),
    source("unknown_coding", b"# coding: klingon\nprint(1)\n"),
    source("crlf", b"print('''a\r\nb''')\r\n1 / 0\r\n"),
    source("syntax", b"print('before'\n"),
    source("tabs", b"if 1:\n\tx = 1\n        y = 2\n"),
    source("indentation", b"x = 1\n  y = 2\n"),
    source("no_end_of_line", b"print(1)\n1 / 0"),
    source("nul", b"print(1)\nx = '\0'\n"),
    source("empty", b""),
    source("shebang", b"#!/bin/sh\nprint(__doc__)\n"),
    source(
        "future", b"'doc'\nfrom __future__ import annotations\nx: y = 1\nprint(__annotations__)\n"
    ),
    source("no_future", b"def f(x: int): ...\nprint(f.__annotations__, __doc__)\n"),
    source("return", b"return 1\n"),
    *forms(
        "exits",
        *("2_70", "broken", "float", "at_once", "executes"),
        *("none", "zero", "three", "minus", "256", "2_40", "true", "text", "empty", "object"),
        *("tuple", "nested", "changed", "from_except", "in_thread", "subclass", "quit", "exit"),
        "closed",
        torch=True,
    ),
    *forms(
        "exceptions",
        *("recursion", "mute", "base"),
        *("chained", "context", "without_trace", "unknown_import", "grammar", "limited"),
        *("suppressed", "of_eval", "stored", "misspelt", "library", "syntax", "surrogate"),
    ),
    *forms("exceptions", "group", "note", since=(3, 11)),
    *forms(
        "excepthooks",
        *("shows", "raises", "leaves", "unraisable"),
        "interrupted",
        "deleted",
        "none",
        "ignored",
        "not_for_exits",
        torch=True,
    ),
    *forms(
        "streams",
        *("tee", "closed", "order", "broken", "full", "buffered"),
        *("closed_stderr", "none", "detached", "no_stderr", "deleted", "open_line"),
        *("surrogates", "both_closed", "redirected"),
        torch=True,
    ),
    *(
        Case(
            f"warnings-{name}",
            ("warns.py",),
            ("warns.py", "neighbour.py"),
            env=env,
        )
        for name, env in {
            "usual": {},
            "errors": {"PYTHONWARNINGS": "error"},
            "developer": {"PYTHONDEVMODE": "1"},
            "traced": {"PYTHONTRACEMALLOC": "5", "PYTHONWARNINGS": "always"},
        }.items()
    ),
    *(
        Case(
            f"interpreter-{name}",
            ("interpreter.py", name),
            ("interpreter.py", "neighbour.py"),
            env={"PYTHONHASHSEED": "0", **env},
        )
        for name, env in {
            "optimized": {"PYTHONOPTIMIZE": "2"},
            "safe_path": {"PYTHONSAFEPATH": "1"},
            "ascii": {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
            "latin_1": {"PYTHONIOENCODING": "latin-1:backslashreplace"},
            "paths": {"PYTHONPATH": "/nowhere:elsewhere:"},
            "breakpoint": {},
            "no_breakpoint": {"PYTHONBREAKPOINT": "0"},
            "no_cache": {"PYTHONDONTWRITEBYTECODE": "1"},
            "faults": {"PYTHONFAULTHANDLER": "1", "PYTHONTRACEMALLOC": "3"},
        }.items()
    ),
    script("async_tasks", torch=True, racy_order=True),
    script("async_tasks", "interrupt", racy_order=True),
    *forms(
        "vandals",
        *("clears_modules", "patches", "patches_ends", "has_no_descriptors", "environ"),
        *("clears_globals", "replaces_main", "is_a_daemon", "has_no_files", "moves", "umask"),
        *("path", "argv", "blocks", "ignores", "collects", "new_group"),
    ),
    script("profiled"),
    script("c_library", torch=True),
    script("c_library", "3", torch=True),
    *(
        Case(f"tools-{how}", ("tools.py", how), ("tools.py", "neighbour.py"))
        for how in ("argparse", "doctest", "unittest", "pdb", "timeit", "reload")
    ),
)


SHORT = frozenset(
    """
    files_text files_compressed files_archives files_temporary files_databases files_numpy files_h5
    logging_at_exit threads_go_on threads_daemon atexit_hooks
    atexit_after_failure del_globals del_locals-exit c_library mp_leaks async_tasks
    signals_default signals_die-SIGTERM signals_die-SIGINT signals_die-segfault signals_die-raise
    faulthandler_dumps-dump stacks profiled forks-ends forks-interrupted forks_daemon subprocesses
    mp_fork mp_spawn-spawn pickles module-pickles fresh_main fresh_process fresh_extras
    module-argv module-package module-package.train module-package.train-spawn
    module-nothing_of_this_name shadows
    folder-runs folder-fail zipapp-runs zip-without-main missing
    source-not_utf_8 source-nul
    exits-2_70 exits-broken exits-at_once
    exceptions-recursion excepthooks-shows excepthooks-raises
    streams-tee streams-closed
    interpreter-safe_path
    vandals-patches vandals-has_no_descriptors
    """.split()  # noqa: SIM905 - one name a line would take a page
)
"""The cases of the short tier, which stand for the others.

Not ``torch_ends``: endings with torch are those of ``tests/worker/test_ending.py``.
"""

TORCH = (
    script("torch_ends", needs=("torch",)),
    script("torch_spawn", needs=("torch",)),
)
"""Each import of torch takes 2 s of CPU, so one script of the short tier has all of it."""

DDP = forms("ddp", "left", "destroyed", "fails", needs=("h5py",))


@dataclass(frozen=True)
class Allowed:
    """A difference from torchrun that is wanted or cannot be avoided: a row of the docs.

    Attributes:
        what: Differs; as in docs/training-script.md.
        why: As there.
        hides: Which lines of the output of which case are not compared, by a pattern.
        shown_by: The test that shows the difference, for one that no line of output shows.
    """

    what: str
    why: str
    hides: Mapping[str, str] = field(default_factory=dict)
    shown_by: str | None = None


_EXTRAS = "fresh_extras"

_WORKER = r" +File .*/zeusrun/worker/| +(main|end|error|_run_file|run|sys\.excepthook)\b"
ALLOWED = (
    Allowed(
        "The output of a rank goes to `logs/rank<k>.log`. In a terminal, `submit` repeats its lines, "
        "but `sys.stdout.isatty()` is false.",
        "`zeusrun logs`, `zeusrun show` and metrics from printed lines read these files.",
        shown_by="test_the_output_of_a_rank_is_in_its_log",
    ),
    Allowed(
        "A script that opens `/dev/stdout` or `/dev/stderr` for writing empties that file; to append "
        "to it (`a`) keeps it.",
        "Both are that file, as under `torchrun ... > FILE`.",
        shown_by="test_a_script_that_opens_its_output_empties_the_log",
    ),
    Allowed(
        "What a rank prints while that file cannot grow (a full disk, `RLIMIT_FSIZE`) is dropped; "
        "a line says so once there is space.",
        "A training that only prints should go on.",
        {"streams-broken": _WORKER + r"| +if \(written|[ ^~]+$"},  # a frame more in a traceback
        shown_by="test_what_does_not_fit_into_the_log_is_dropped",
    ),
    Allowed(
        "Standard input is empty, unless zeusrun starts a single rank and was itself started "
        "in a terminal. Then it is that terminal: `input()` and `breakpoint()` work, and the "
        "terminal's size, as scripts see it, lacks the 8 columns of `[rank0] `. `input()` ends the "
        "line of its question. In the background (`zeusrun submit JOB &`) the terminal has its "
        "size, but cannot be read.",
        "A submit may run unattended; a script that waits for input would hang for ever.",
        shown_by="test_a_rank_reads_no_input",
    ),
    Allowed(
        "A script gets its absolute path as `sys.argv[0]`.",
        "`script` is relative to the job file, and the working directory may be another one.",
        shown_by="test_a_script_gets_its_absolute_path",
    ),
    Allowed(
        "The environment also has `ZEUSRUN_*` and `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`, and with "
        "`launch.max_restarts` also `TORCH_DISABLE_SHARE_RDZV_TCP_STORE`.",
        "They tell the script what was chosen, and torchrun how long a rank may save; restarted "
        "ranks find each other.",
        {_EXTRAS: "variables"},
    ),
    Allowed(
        "A rank is killed if its torchrun dies.",
        "Otherwise it would train for ever, on GPUs that look free.",
        {_EXTRAS: "parent death signal"},
    ),
    Allowed(
        "When a run has ended, zeusrun kills every process that the script has left, even a "
        "detached one, but not a [daemon](#daemons) with an empty `ZEUSRUN_RUN_DIR`.",
        "It could hold a GPU, and its energy would count for the next run.",
        shown_by="test_a_process_that_detaches_itself_is_ended_with_its_run",
    ),
    Allowed(
        "Signal 57 writes the stacks of all threads to `logs/rank<k>.stack`. Signal 58 raises "
        "`SystemExit` in the script.",
        "zeusrun shows where a rank hangs, and ends a script so that its files are closed.",
        {"signals_default": "SigCgt|58 "},
    ),
    Allowed(
        "Up to two more file descriptors are open.",
        "Signal 57 needs one; the step clock needs the other one.",
        {_EXTRAS: "descriptors"},
    ),
    Allowed(
        "`sys.modules` contains the worker and what it imports, and `sys.meta_path` one finder "
        "more; so do interpreters that `multiprocessing` starts.",
        "The finder installs the hooks when the script imports torch or another library.",
        {_EXTRAS: "modules|finders"},
    ),
    Allowed(
        "The command line that `ps` shows begins with the worker.",
        "The kernel records it when the process starts.",
        {_EXTRAS: "command line"},
    ),
    Allowed(
        "The stack of a script begins with frames of the worker (`traceback.print_stack()`, "
        "`faulthandler`, profilers, a large `stacklevel`). Tracebacks of exceptions begin with the "
        "script; some pass through a frame of a hook.",
        "The worker calls the script: it must see how the script ends.",
        {
            "stacks": rf"{_WORKER}|\d+|\[|.*(: UserWarning: | above$)",
            "faulthandler_dumps-dump": _WORKER,
            "faulthandler_dumps-later": _WORKER,
            "faulthandler_dumps-segfault": _WORKER,
            "atexit_after_failure": rf"{_WORKER}|<module> \d+",
            "excepthooks-shows": _WORKER,
            "exceptions-recursion": r"  \[Previous line repeated",
            "profiled": r"\[",
            "streams-closed_stderr": "object refcount",  # of an exception that cannot be shown
            "warnings-traced": r"  File |    ",
        },
    ),
    Allowed(
        "Standard output and standard error are flushed twice at the end.",
        "The interpreter flushes them for the script and for the worker.",
        {"streams-tee": "flushed"},
    ),
    Allowed(
        "If the worker cannot write its files, it prints a line that begins with `zeusrun:`.",
        "The user must know why metrics are missing.",
        {"vandals-has_no_descriptors": "zeusrun:"},
    ),
    Allowed(
        "A rank that aborts, or exits with another code, after the last line of its script is no "
        "failure: the run has a warning.",
        "The training is complete.",
        shown_by="test_a_rank_that_ends_badly_after_its_script_is_no_failure",
    ),
    Allowed(
        "After a training over gloo, the modules of installed packages are not cleared, and daemon "
        "threads end by a `SystemExit`.",
        "With DDP, torch can abort there, and a finished training would have failed.",
        shown_by="test_beside_gloo_installed_packages_are_not_taken_down",
    ),
)
"""The table of docs/training-script.md; a test compares both."""
