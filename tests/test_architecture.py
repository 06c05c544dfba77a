"""The rooms of DESIGN, and who alone may do what: read from the source, then from real processes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories import REACHED, begin, build_trial
from tests.layers import BOTH_WAYS, LAYERS, below, draw, package_of
from tests.lazily import IMPORTED
from tests.source import (
    MODULES,
    PACKAGE,
    calls,
    dotted,
    imported_modules,
    imports,
    nodes,
    parse,
    read,
    trees,
)
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.parts import PARTS
from zeusrun.run_on.registry import BACKENDS

PART_ROOMS = ("adapt", "elastic", "gradients", "loader", "sync")
OWNERS = {
    "pynvml": "gpu/nvml.py",
    "tinydb": "history/tinydb/",
    "subprocess": ("launcher/processes/", "elastic/processes.py"),
    "pydantic": ("jobfile/", "server/", "run_on/", *(f"{part}/section.py" for part in PART_ROOMS)),
    "fastapi": "server/",
    "starlette": "server/",
    "uvicorn": "server/",
    "cronsim": "schedule/due.py",
    "torch": ("worker/", *(f"{part}/rank/" for part in PART_ROOMS), "launcher/processes/agent.py"),
    "typer": ("cli.py", "commands/", "run_on/", "elastic/verb.py"),
    "matplotlib": "view/report/",
    "mlflow": "export/mlflow.py",
    "sqlalchemy": "history/sql/",
}


def where(found):
    """Return the modules of which ``found(tree)`` is true."""
    return [name for name, tree in trees() if found(tree)]


def test_every_module_is_in_a_layer():
    packages = {package_of(name) for name in MODULES} - {"__init__"}
    assert packages == {name for row in LAYERS for name in row}


def upward_imports(name):
    """Yield what a module imports from another row than those below its own."""
    for module in imports(parse(name)):
        first, *rest = module.split(".")
        if first == "":
            yield f"{name}: write the import of {module} in full"
        if first != "zeusrun" or not rest or name == "__init__.py":
            continue
        own, other = package_of(name), package_of("/".join(rest))
        if other not in {"__version__", "current", "watch", own, *below(own)}:
            yield f"{name} imports {module}"


def test_imports_run_downwards_only():
    assert [each for name in MODULES for each in upward_imports(name)] == []


def both_ways(edges):
    """Return the pairs that import each other, of ``(importing, imported)`` pairs."""
    return {(one, other) for one, other in edges if one < other and (other, one) in edges}


def test_no_two_folders_of_a_package_import_each_other_but_those_that_are_listed():
    """Also empties the list: a pair that no longer does must be taken out of it."""

    def folder(name):
        return "/".join(name.split("/")[:-1][:2])

    edges = {
        (folder(name), folder(other))
        for name in MODULES
        for other in imported_modules(name)
        if package_of(name) == package_of(other) and folder(name) != folder(other)
    }
    assert both_ways(edges) == BOTH_WAYS
    one, other = min(edge for edge in edges if edge[::-1] not in edges)
    assert both_ways({*edges, (other, one)}) > BOTH_WAYS


def test_the_picture_of_the_docs_is_drawn_from_the_layers():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"```text\n{draw()}\n```" in page


def test_the_files_that_the_docs_name_exist():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", page))
    known = {Path(name).name for name in MODULES}
    places = (PACKAGE, PACKAGE.parent)
    missing = [each for each in named if not any((place / each).exists() for place in places)]
    assert [each for each in missing if "/" in each or each not in known] == []


def test_no_module_imports_itself_by_way_of_others():
    above = {name: imported_modules(name) for name in MODULES}
    while above:  # take away modules that import no other, until none is left
        free = {name for name, found in above.items() if not found}
        assert free, f"these modules import each other: {sorted(above)}"
        above = {name: found - free for name, found in above.items() if name not in free}


def named_in(tree):
    """Return the identifiers of a module, and its texts of one word."""
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from [node.value] if " " not in node.value else []
        elif isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr
    yield from imports(tree)


def test_the_table_alone_names_a_backend():
    for backend in BACKENDS:
        found = {
            name
            for name, tree in trees()
            if not name.startswith(f"run_on/{backend}/")
            and any(backend in each for each in named_in(tree))
        }
        assert found == {"run_on/registry.py"}


def test_a_part_is_imported_by_way_of_the_table_alone():
    rooms = tuple(f"zeusrun.{part}." for part in PART_ROOMS)
    outside = [
        (name, module)
        for name, tree in trees()
        if not name.startswith(tuple(f"{part}/" for part in PART_ROOMS))
        for module in imports(tree)
        if f"{module}.".startswith(rooms)
    ]
    assert outside == []
    assert {part.package for part in PARTS.values()} == {f"zeusrun.{part}" for part in PART_ROOMS}


def test_a_library_has_one_owner():
    users = {module: [] for module in OWNERS}
    for name, tree in trees():
        for module in {found.split(".")[0] for found in imports(tree)} & OWNERS.keys():
            users[module].append(name)
    assert {module for module, names in users.items() if not names} == set(), "nobody imports it"
    others = {
        (module, name)
        for module, names in users.items()
        for name in names
        if not name.startswith(OWNERS[module])
    }
    assert others == set()


def test_only_cli_and_view_print():
    printing = where(lambda tree: {"print", "typer.echo"} & calls(tree))
    others = {package_of(name) for name in printing if name != "launcher/processes/agent.py"}
    verbs = {"elastic/verb", "run_on/hosts", "run_on/kubernetes"}
    assert others <= {"cli", "commands", "view", "worker", *verbs}


def test_the_worker_prints_to_its_own_stderr_only():
    for name, tree in trees():
        if package_of(name) != "worker":
            continue
        for node in nodes(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
                files = [ast.unparse(word.value) for word in node.keywords if word.arg == "file"]
                assert files == ["sys.stderr"], f"{name}:{node.lineno}"


def test_only_cli_exits_zeusrun_and_only_the_worker_ends_a_rank():
    exits = {"sys.exit", "exit", "quit", "os._exit", "SystemExit", "typer.Exit"}
    exiting = where(
        lambda tree: (
            exits & calls(tree)
            or any(
                isinstance(node, ast.Raise) and node.exc and ast.unparse(node.exc) in exits
                for node in nodes(tree)
            )
        )
    )
    assert exiting == [
        "cli.py",
        "commands/connect.py",
        "commands/follow.py",
        "commands/job.py",
        "commands/scale.py",
        "commands/submit.py",
        "commands/tick.py",
        "commands/upkeep.py",
        "elastic/agent.py",
        "elastic/nodes/agent.py",
        "elastic/rank/member.py",
        "launcher/processes/agent.py",
        "worker/ending.py",
        "worker/environment.py",
        "worker/process/rank.py",
        "worker/process/script.py",
    ]


SHELLS = {"os.system", "os.popen", "pty.spawn", "asyncio.create_subprocess_shell"}


def uses_a_shell(tree):
    for node in nodes(tree):
        if isinstance(node, ast.keyword) and node.arg == "shell":
            return True
    return bool({"commands", "popen2"} & set(imports(tree)) or SHELLS & calls(tree))


def test_nothing_goes_through_a_shell():
    assert where(uses_a_shell) == []
    for harmful in ("subprocess.run('ls', shell=True)", "os.system('ls')", "os.popen('ls')"):
        assert uses_a_shell(ast.parse(harmful))


def test_nothing_that_is_read_can_make_objects():
    unsafe = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    # Ranks send each other the states of optimizers so, as torch's broadcast_object_list does.
    assert where(lambda tree: unsafe & set(imports(tree))) == ["elastic/rank/state.py"]
    loads = {"yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "eval"}
    assert where(lambda tree: loads & calls(tree)) == []


def test_nothing_is_validated_with_assert():
    assert where(lambda tree: any(isinstance(n, ast.Assert) for n in nodes(tree))) == []


ENVIRONMENT = {"os.environ", "environ"}
WRITERS = {"pop", "update", "setdefault", "clear", "popitem", "__setitem__"}


def writes_environment(tree):
    for node in nodes(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if ast.unparse(node.value) in ENVIRONMENT:
                return True
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            owner, _, method = name.rpartition(".")
            if name in {"os.putenv", "os.unsetenv"} or (owner in ENVIRONMENT and method in WRITERS):
                return True
    return False


def test_the_environment_of_a_process_is_edited_at_its_beginning_alone():
    # These processes begin then: those of torchrun, and of a rank.
    assert where(writes_environment) == ["worker/ending.py"]


def test_no_interval_is_measured_with_the_time_of_day():
    assert where(lambda tree: "time.time" in calls(tree)) == []
    assert where(lambda tree: "time.time" in set(imports(tree))) == []


def test_policies_read_no_clock_no_file_and_no_global_generator():
    outside = {"time", "datetime", "os", "pathlib", "random", "io", "tempfile"}
    for name, tree in trees():
        if package_of(name) == "bandit":
            assert not outside & {module.split(".")[0] for module in imports(tree)}, name
            drawn = [
                call for call in calls(tree) if call.startswith(("np.random.", "numpy.random."))
            ]
            assert drawn == [], name


def test_a_choice_reads_no_file_no_device_and_no_store():
    outside = {"time", "datetime", "os", "random", "io", "socket", "subprocess", "tempfile"}
    own = {
        "bandit",
        "choice",
        "errors",
        "reasons",
        "trial",
    }  # at run time; ``jobfile`` only splits a batch
    for name, tree in trees():
        if package_of(name) == "choice":
            for node in (each for each in tree.body if not isinstance(each, ast.If)):  # for types
                found = set(imports(ast.Module([node], [])))
                assert not outside & {module.split(".")[0] for module in found}, name
                used = {module for module in found if module.startswith("zeusrun.")}
                packages = {module.split(".")[1] for module in used}
                assert packages <= own or used <= ACCUMULATION, name
            assert "open" not in calls(tree), name


ACCUMULATION = {
    "zeusrun.jobfile.sections",
    "zeusrun.jobfile.sections.split_batch",
}


def test_policies_need_numpy_alone():
    for name, tree in trees():
        if package_of(name) == "bandit":
            first = {module.split(".")[0] for module in imports(tree)} - {"zeusrun"}
            assert first - set(sys.stdlib_module_names) <= {"numpy"}, name


MESSAGES = {"reason", "why", "warning", "verdict", "sentence", "remark", "refusal"}
"""The last word of what variables and attributes with sentences are called, plurals apart."""
READERS = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "count"),
    *("split", "rsplit", "splitlines", "partition", "rpartition", "replace", "lower", "casefold"),
}
PATTERNS = {"search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn"}


def name_of(node):
    """Return the name of a variable, an attribute or a field; of what a method is called on."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return name_of(node.func.value)
    if isinstance(node, ast.Subscript):
        key = node.slice
        text = isinstance(key, ast.Constant) and isinstance(key.value, str)
        return key.value if text else name_of(node.value)
    return getattr(node, "attr", None) or getattr(node, "id", None) or ""


def is_message(node, *, plural=True):
    """Whether an expression is a sentence for people, or several."""
    if isinstance(node, (ast.Tuple, ast.BoolOp)):
        return any(map(is_message, getattr(node, "elts", None) or getattr(node, "values", ())))
    word = name_of(node).rpartition("_")[2]
    return (word.removesuffix("s") if plural else word) in MESSAGES


def is_fixed(node):
    """Whether an expression is a text or a collection that is written in the code."""
    written = (ast.JoinedStr, ast.Set, ast.Dict, ast.List, ast.Tuple)
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return text or isinstance(node, written) or name_of(node).isupper()


def compares_message(left, op, right):
    if isinstance(op, (ast.In, ast.NotIn)):  # what was shown already may be in a set
        written = (is_message(left) and is_fixed(right)) or (is_message(right) and is_fixed(left))
        return written or is_message(right, plural=False)
    return not isinstance(op, (ast.Is, ast.IsNot)) and (is_message(left) or is_message(right))


def reads_messages(node):
    """Whether an expression decides something by the text of a message."""
    if isinstance(node, ast.Compare):
        lefts = (node.left, *node.comparators)
        return any(map(compares_message, lefts, node.ops, node.comparators))
    if isinstance(node, ast.Match):
        return is_message(node.subject)
    if isinstance(node, ast.Subscript):
        return is_fixed(node.value) and is_message(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner, method = node.func.value, node.func.attr
        read = method in READERS and is_message(owner)
        by_pattern = method in PATTERNS and any(map(is_message, node.args))
        return read or by_pattern or (method == "get" and any(map(is_message, node.args)))
    return False


def aliases_of_messages(scope):
    """Yield the names that a function gives to messages."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and is_message(node.value):
            yield from map(name_of, node.targets)
        elif isinstance(node, (ast.For, ast.comprehension)) and is_message(node.iter):
            yield name_of(node.target)


def decisions_by_text(source):
    """Return what decides something by the text of a message, also under another name."""
    tree = ast.parse(source)
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef) and (aliases := {*aliases_of_messages(scope)} - {""}):
            for node in ast.walk(scope):
                if isinstance(node, ast.Name) and node.id in aliases:
                    node.id = f"{node.id}_reason"
    return [
        f"{node.lineno}: {ast.unparse(node)}" for node in ast.walk(tree) if reads_messages(node)
    ]


def test_nothing_is_decided_by_the_text_of_a_message():
    """Store and compare codes: a message that somebody improves must not change what happens."""
    words = re.compile("|".join(MESSAGES))
    found = {name: decisions_by_text(read(name)) for name in MODULES if words.search(read(name))}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "trial.reason == REPLACED_BY_NEWER",
        "(trial.status, trial.reason) != (LOST, EXPIRED)",
        "(stopped.reason or '').startswith('timed out')",
        "belief.verdict.removeprefix('next: ')",
        "failure.sentence in reason",
        "'stalled' in trial.warnings",
        "why in {'a', 'b'}",
        "_USAGE.search(failure.reason)",
        "re.match('stalled', record['reason'])",
        "_CODES[trial.reason]",
        "_CODES.get(last_warning)",
        "trial.reason.lower().split(';')",
        "def f(): [text for text in trial.warnings if text.startswith(STALLED)]",
        "def f(): text = trial.reason or ''; return text == 'lost'",
    ],
)
def test_a_decision_by_the_text_of_a_message_is_seen(line):
    assert decisions_by_text(line)


@pytest.mark.parametrize(
    "line",
    [
        "trial.reason is None",
        "trial.reason_code is ReasonCode.REPLACED",
        "warning not in self._shown",
        "problem not in self._warnings",
        "len(trial.warnings) == 2",
        "f'{trial.reason}; it goes on'",
    ],
)
def test_what_only_shows_a_message_is_fine(line):
    assert not decisions_by_text(line)


LARGE: dict[str, str] = {}
"""Modules of more than 400 lines, each with its reason."""


def test_a_module_of_more_than_400_lines_has_a_reason():
    lines = {name: len(read(name).splitlines()) for name in MODULES}
    assert {name for name, count in lines.items() if count > 400} == set(LARGE)


def test_there_is_no_room_for_odds_and_ends():
    odd = {"utils", "helpers", "common", "misc"}
    assert not odd & {part.removesuffix(".py") for name in MODULES for part in name.split("/")}


def test_every_module_says_what_it_is_for_and_has_modern_annotations():
    for name, tree in trees():
        assert ast.get_docstring(tree), name
        if any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree.body):
            assert "__future__.annotations" in set(imports(tree)), name


def imported(zeusrun, *arguments):
    """Run the command in a process of its own; return the modules that it has imported."""
    program = (
        "import sys\n"
        "from zeusrun.cli import main\n"
        "sys.argv[0] = 'zeusrun'\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    code = end.code or 0\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=zeusrun.folder,
        env=zeusrun.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def names_in(name):
    """Return what can be imported from a module: what it defines, assigns or imports itself."""
    for node in parse(name).body:
        for each in (node, *getattr(node, "targets", ()), getattr(node, "target", node)):
            yield getattr(each, "id", None) or getattr(each, "name", None)
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def test_what_benchmarks_import_exists():
    """They run by hand, long after a name has moved."""
    known = {dotted(name): {*names_in(name)} for name in MODULES}
    for name in MODULES:
        folder, _, module = dotted(name).rpartition(".")
        known[folder].add(module)
    missing = [
        f"{path.name}: {node.module}.{alias.name}"
        for path in sorted((PACKAGE.parent / "benchmarks").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zeusrun")
        for alias in node.names
        if alias.name not in known.get(node.module.removeprefix("zeusrun").lstrip("."), ())
    ]
    assert missing == []


def test_help_imports_neither_torch_nor_numpy_nor_pydantic(zeusrun):
    assert not {"torch", "numpy", "pydantic"} & imported(zeusrun, "--help")


def test_help_imports_no_verb(zeusrun):
    for arguments in (["--help"], ["schedule", "--help"]):
        seen = imported(zeusrun, *arguments)
        assert not {name for name in seen if name.startswith("zeusrun.commands")}


def test_history_imports_neither_torch_nor_numpy_nor_our_models(zeusrun):
    """pydantic itself may be there: typer reads arguments with it (0.29 does)."""
    history = TinyDBHistory(zeusrun.home / "history")
    begin(history, build_trial())
    history.finish("job-1-1", REACHED)
    for arguments in (["history"], ["history", "--json"], ["show", "job"]):
        assert not {"torch", "numpy", "zeusrun.jobfile.spec"} & imported(zeusrun, *arguments), (
            arguments
        )


def test_what_prints_json_imports_no_rich(zeusrun):
    for arguments in (["history", "--json"], ["status", "--json"], ["history", "--csv"]):
        assert "rich" not in imported(zeusrun, *arguments), arguments


def test_what_cron_runs_every_minute_imports_no_models_either(zeusrun):
    seen = imported(zeusrun, "schedule", "tick")
    assert not {"torch", "numpy", "psutil", "rich", "zeusrun.jobfile.spec"} & seen


def test_the_list_of_schedules_imports_no_models(zeusrun):
    assert "zeusrun.jobfile.spec" not in imported(zeusrun, "schedule", "list")


def test_python_m_zeusrun_is_the_command(zeusrun):
    done = zeusrun("--help")
    assert (done.returncode, done.stderr) == (0, "")
    verbs = ("submit", "history", "show", "logs", "explain", "simulate", "validate", "doctor")
    for verb in (*verbs, "schema", "repair"):
        assert verb in done.stdout


def test_importing_zeusrun_in_a_script_imports_next_to_nothing():
    program = "import sys, zeusrun; print([m for m in sys.modules if m.startswith('zeusrun.')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_collecting_the_tests_imports_no_large_library(pytestconfig):
    assert pytestconfig.stash[IMPORTED] == set()
