"""The scripts of this suite, how each is started, and what may differ from torchrun."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts")

STARTS = "torch starts"
TEARS_DOWN = "torch tears down"


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
        nproc: Ranks.
        left: Processes that live on after a rank that ends by itself.
        racy_order: The order of the lines, and how often each comes, is chance.
        aborts: The tear-down of plain Python aborts by chance; zeusrun must end well.
        torch: Repeated in the long tier with torch imported by the first line of the script.
    """

    name: str
    words: tuple[str, ...]
    files: tuple[str, ...] = ()
    make: Callable[[Path], object] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 10)
    nproc: int = 1
    left: int = 0
    racy_order: bool = False
    aborts: bool = False
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
    return [script(name, argument, **values) for argument in arguments]


def source(name: str, text: bytes, **values) -> Case:
    """Return a case of a script of these bytes."""
    return Case(
        f"source-{name}", ("made.py",), make=lambda at: (at / "made.py").write_bytes(text), **values
    )


def module(name: str, *arguments: str, **values) -> Case:
    label = "-".join(["module", name, *arguments[:1]])
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
        archive.writestr("other.py", "")


def compiled(at: Path) -> None:
    import py_compile

    (at / "made.py").write_text("import sys\nprint(__name__, __file__, __cached__, sys.argv)\n1 / 0\n")
    py_compile.compile(str(at / "made.py"), str(at / "made.pyc"), doraise=True)
    (at / "made.py").unlink()


def linked(at: Path) -> None:
    (at / "deep").mkdir()
    (at / "deep" / "real.py").write_text("import sys\nprint(__file__, sys.argv[0], sys.path[0])\n")
    (at / "link.py").symlink_to("deep/real.py")


_ODD = ("", "a b", "$HOME", "$$", "${local_rank}", "*", "ä", "--", "-m", "--plain", "'\"", "a\nb", "\\")
_SHADOWS = (
    *("random", "queue", "json", "calendar", "statistics", "logging", "signal", "types", "events"),
    *("context", "failure", "worker", "hooks", "sidecar", "files", "runpy", "ctypes", "uuid"),
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
    *forms("signals_die", "SIGTERM", "SIGINT", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGHUP"),
    *forms("signals_die", "segfault", "abort"),
    *forms("signals_die", "raise", "subclass", "in_except", torch=True),
    script("signals_handled"),
    *forms("faulthandler_dumps", "dump", "later", "segfault"),
    script("stacks"),
    *forms("forks", "ends", "exits", "exits_at_once", "fails", "killed", torch=True),
    script("forks", "interrupted"),
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
    *(Case(f"folder-{how}", ("folder", how), files=("folder",)) for how in ("runs", "fail", "spawn")),
    *(Case(f"zipapp-{how}", ("app.pyz", how), make=zip_folder) for how in ("runs", "fail", "spawn")),
    Case("folder-without-main", ("package/sub",), files=("package",)),
    Case("zip-without-main", ("empty.pyz",), make=empty_zip),
    Case("compiled", ("made.pyc", "a"), make=compiled),
    Case("linked", ("link.py",), make=linked),
    Case("linked-safe-path", ("link.py",), make=linked, env={"PYTHONSAFEPATH": "1"}),
    Case("missing", ("nowhere.py",), make=lambda at: None),
    *(
        Case(f"runs_others-{how}", ("runs_others.py", how), files=("runs_others.py", "other.py"))
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
    source("future", b"'doc'\nfrom __future__ import annotations\nx: y = 1\nprint(__annotations__)\n"),
    source("no_future", b"def f(x: int): ...\nprint(f.__annotations__, __doc__)\n"),
    source("return", b"return 1\n"),
    *forms(
        "exits",
        *("none", "zero", "three", "minus", "256", "2_40", "2_70", "true", "text", "empty", "object"),
        *("broken", "tuple", "float", "nested", "from_except", "at_once", "changed", "in_thread"),
        *("subclass", "quit", "exit", "executes", "closed"),
        torch=True,
    ),
    *forms(
        "exceptions",
        *("chained", "context", "recursion", "grammar", "limited", "without_trace", "suppressed"),
        *("of_eval", "stored", "unknown_import", "misspelt", "mute", "base", "library", "syntax"),
        "surrogate",
    ),
    *forms("exceptions", "group", "note", since=(3, 11)),
    *forms(
        "excepthooks",
        *("shows", "raises", "leaves", "interrupted", "deleted", "none", "unraisable", "ignored"),
        "not_for_exits",
        torch=True,
    ),
    *forms(
        "streams",
        *("tee", "closed", "closed_stderr", "detached", "none", "no_stderr", "deleted", "open_line"),
        *("order", "surrogates", "broken", "full", "buffered", "both_closed", "redirected"),
        torch=True,
    ),
    *(
        Case(f"warnings-{name}", ("warns.py",), ("warns.py", "neighbour.py"), env=env)
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
    script("async_tasks", torch=True),
    script("async_tasks", "interrupt"),
    *forms(
        "vandals",
        *("clears_globals", "replaces_main", "clears_modules", "patches", "patches_ends"),
        *("is_a_daemon", "has_no_descriptors", "has_no_files", "moves", "umask", "environ", "path"),
        *("argv", "blocks", "ignores", "traces", "collects", "new_group"),
    ),
    script("profiled"),
    script("c_library", torch=True),
    script("c_library", "3", torch=True),
    *(
        Case(f"tools-{how}", ("tools.py", how), ("tools.py", "neighbour.py"))
        for how in ("argparse", "doctest", "unittest", "pdb", "timeit", "reload")
    ),
)
