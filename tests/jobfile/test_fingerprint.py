"""What changes the fingerprint of a training, and what does not."""

from __future__ import annotations

import os

import pytest
import yaml

from tests.factories import write_job
from zeusrun.jobfile.fingerprint import hash_script, take_fingerprint
from zeusrun.jobfile.spec import load_spec

SCRIPT = '''\
"""Trains."""
import torch
from helper import model

def train(rate, *, steps=10, **rest):
    """Take some steps."""
    for step in range(steps):  # each one
        model(rate)
    return f"{rate:.3f} after {steps}"

def main():
    print(train(0.1))

main()
'''
HELPER = "def model(rate):\n    return rate * 2\n"


@pytest.fixture
def parts(tmp_path):
    """Return the parts of the fingerprint after changes of the job file."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text(HELPER)

    def take(**changes):
        return take_fingerprint(load_spec(write_job(tmp_path, "train.py", **changes))).parts

    return take


def changed(before, after):
    return {part for part in before | after if before.get(part) != after.get(part)}


SAME = {
    "comment": ("# each one", "# another comment"),
    "docstring": ('"""Take some steps."""', '"""Take steps.\n\n    Many."""'),
    "no docstring": ('    """Take some steps."""\n', ""),
    "formatting": (
        "def train(rate, *, steps=10, **rest):",
        "def train(\n  rate,*,steps = 10,**rest\n):",
    ),
    "quotes": ('f"{rate:.3f} after {steps}"', "f'{rate:.3f}' ' after ' f'{steps}'"),
    "number written otherwise": ("0.1", "1e-1"),
}
OTHER = {
    "number": ("0.1", "0.2"),
    "name of a variable": ("step in", "number in"),
    "order of statements": (
        "import torch\nfrom helper import model",
        "from helper import model\nimport torch",
    ),
    "format": (":.3f", ":.4f"),
    "a keyword": ("steps=10, **rest", "steps=10"),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_the_code_does_not_do_leaves_the_hash_as_it_is(tmp_path, parts, change):
    before = parts()
    assert change[0] in SCRIPT
    (tmp_path / "train.py").write_text(SCRIPT.replace(*change))
    assert parts() == before


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_another_syntax_tree_has_another_hash(tmp_path, parts, change):
    before = parts()
    assert change[0] in SCRIPT
    (tmp_path / "train.py").write_text(SCRIPT.replace(*change))
    assert changed(before, parts()) == {"script"}


def test_functions_in_another_order_have_another_hash(tmp_path, parts):
    before = parts()
    head, train, main = SCRIPT.partition("def train")[0], *SCRIPT.split("def ")[1:]
    (tmp_path / "train.py").write_text(f"{head}def {main}def {train}")
    assert changed(before, parts()) == {"script"}


# What the syntax trees of different versions contain otherwise: f-strings, type parameters, ...
TREE = """\
x = f"{a:}{b!r:>{w}}" "t" f"{c=}" f"" u"\u00e9\U0001fae8"
n = 0xffffffffffffffffffff, 1e400, 1j, ..., b"\\xff", -0.0
match a:
    case {"k": 1, **r}: ...
    case [1, *_] | None: pass
async def f(*, a=1, b) -> None: return {**a, 1: lambda: 2}
class C(metaclass=M): x: int = 0
"""


def test_a_hash_is_the_same_under_every_version_of_python():
    """The value itself: Python 3.10 to 3.13 compute it, each from its own syntax tree."""
    files = {"__main__.py": TREE.encode()}
    assert hash_script(["__main__"], files.get) == ("adfc1c2840b3", 1)


def test_what_imported_modules_of_its_folder_contain_counts(tmp_path, parts):
    (tmp_path / "helper.py").write_text("from lib import deep\n")
    (tmp_path / "lib").mkdir()  # without __init__.py
    (tmp_path / "lib" / "deep.py").write_text("x = 1\n")
    (tmp_path / "unrelated.py").write_text("x = 1\n")
    before = parts()
    (tmp_path / "unrelated.py").write_text("x = 2\n")
    assert parts() == before
    (tmp_path / "lib" / "deep.py").write_text("x = 2\n")
    assert changed(before, parts()) == {"script"}


def test_installed_packages_do_not_count(tmp_path, parts, monkeypatch):
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "torch.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(site)
    before = parts()
    (site / "torch.py").write_text("x = 2\n")
    assert parts() == before


def test_a_script_within_a_package_counts_with_the_modules_of_the_package(tmp_path):
    package = tmp_path / "pkg" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "train.py").write_text("from pkg import data\n")
    (package.parent / "data.py").write_text("x = 1\n")
    spec = load_spec(write_job(tmp_path, "pkg/inner/train.py"))
    before = take_fingerprint(spec).parts
    (package.parent / "data.py").write_text("x = 2\n")
    assert changed(before, take_fingerprint(spec).parts) == {"script"}


@pytest.mark.parametrize("own", ["pkg/data.py", "pkg/__init__.py", "pkg/train.py"])
@pytest.mark.parametrize("path", [None, "src"])
def test_a_module_counts_with_its_package(tmp_path, own, path):
    root = tmp_path / (path or ".")
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "__init__.py").write_text("")
    (root / "pkg" / "train.py").write_text("from . import data\nfrom ... import beyond\n")
    (root / "pkg" / "data.py").write_text("")
    env = {} if path is None else {"PYTHONPATH": path}
    spec = load_spec(write_job(tmp_path, None, module="pkg.train", env=env))
    before = take_fingerprint(spec).parts
    (root / own).write_text("x = 2\n")
    assert changed(before, take_fingerprint(spec).parts) == {"script"}


def test_a_module_that_is_installed_has_no_part(tmp_path):
    spec = load_spec(write_job(tmp_path, None, module="torch.distributed.run"))
    assert take_fingerprint(spec).parts.keys() == {"args", "env", "learning"}


def test_a_folder_counts_as_the_script_that_it_contains(tmp_path):
    def take(text):
        (tmp_path / "app").mkdir(exist_ok=True)
        (tmp_path / "app" / "__main__.py").write_text("import own\n")
        (tmp_path / "app" / "own.py").write_text(text)
        return take_fingerprint(load_spec(write_job(tmp_path, "app"))).parts["script"]

    assert take("x = 1\n") == take("x = 1  # one\n") != take("x = 2\n")


def test_a_file_that_is_no_python_counts_by_its_bytes(tmp_path, parts):
    (tmp_path / "train.py").write_bytes(b"\xff\0 no Python")
    before = parts()
    (tmp_path / "train.py").write_bytes(b"\xff\0 no Python # at all")
    assert changed(before, parts()) == {"script"}


def test_a_script_that_cannot_be_read_has_no_part(tmp_path):
    (tmp_path / "train.py").touch()
    spec = load_spec(write_job(tmp_path, "train.py"))
    (tmp_path / "train.py").unlink()
    assert "script" not in take_fingerprint(spec).parts
    os.mkfifo(tmp_path / "train.py")  # reading it would block
    assert "script" not in take_fingerprint(spec).parts


def test_a_script_whose_name_is_known_only_in_a_run_has_no_part(tmp_path):
    spec = load_spec(write_job(tmp_path, "train_${batch_size}.py"))
    assert take_fingerprint(spec).parts.keys() == {"args", "env", "learning"}


def test_an_endless_package_is_read_up_to_a_limit():
    read = []

    def endless(name):
        read.append(name)
        number = int(name.strip("_abcdefghijklmnopqrstuvwxyz./") or 0)
        return f"import m{number + 1}\n".encode()

    assert hash_script(["__main__"], endless).modules == len(read) == 100


def test_a_tree_too_deep_for_python_counts_by_its_bytes(tmp_path, parts):
    (tmp_path / "train.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    assert parts()["script"]
    (tmp_path / "train.py").write_text("x = 0" + " + 1" * 900)
    assert parts()["script"]


def test_arguments_count_as_they_are_written(parts):
    before = parts(args=["--batch-size", "${batch_size}"])
    assert parts(args=["--batch-size", "${batch_size}"]) == before
    assert changed(before, parts(args=["--batch-size", "${local_batch_size}"])) == {"args"}
    assert changed(before, parts(args=["--day", "2026-11-24"])) == {"args"}


@pytest.mark.parametrize("section", ["args", "env"])
@pytest.mark.parametrize("kind", ["marked", "file", "named", "form"])
def test_the_value_of_a_secret_does_not_count_and_its_name_does(tmp_path, parts, section, kind):
    def secret(text):
        (tmp_path / "key").write_text(text)
        url = f"https://me:{text}@host"
        marked = {"marked": {"secret": text}, "file": {"secret_file": "key"}, "form": url}
        return marked.get(kind, text)

    def take(name, text):
        if section == "env":
            return parts(env={name: secret(text)})
        return parts(args=[f"--{name}", secret(text)])

    before = take("API_KEY", "sesame-1")
    assert take("API_KEY", "sesame-22") == before
    assert changed(before, take("OTHER_KEY", "sesame-1")) == {section}


def test_which_gpu_a_job_gets_does_not_count(parts):
    assert parts(env={"CUDA_VISIBLE_DEVICES": "0"}) == parts(env={"CUDA_VISIBLE_DEVICES": "1"})


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": {"base": 0.1}},
        {"batch_size": {"per_device_max": 8}},
        {"objective": {"metric": "loss"}},
        {"objective": {"mode": "min"}},
    ],
    ids=str,
)
def test_keys_that_change_how_it_learns_count(parts, changes):
    assert changed(parts(), parts(**changes)) == {"learning"}


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"target": 0.7, "max_epochs": 9, "eta_knob": 1.0}},
        {"batch_size": {"candidates": [32, 128]}},
        {"policy": {"name": "fixed"}},
        {"launch": {"nproc_per_node": 2}},
        {"attempts": 2, "timeout_s": 5, "schedule": {"cron": "@daily"}},
    ],
    ids=str,
)
def test_other_keys_do_not(parts, changes):
    assert parts(**changes) == parts()


def test_the_same_rates_by_another_default_are_the_same_rule(parts):
    before = parts(learning_rate={"base": 0.1})
    assert parts(learning_rate={"base": 0.2}, batch_size={"default": 64}) == before
    assert changed(before, parts(learning_rate={"base": 0.2})) == {"learning"}


def test_the_copy_of_a_job_file_has_the_fingerprint_of_the_original(tmp_path, parts):
    spec = load_spec(
        write_job(tmp_path, "train.py", args=["--day", "1"], learning_rate={"base": 1})
    )
    copy = tmp_path / "elsewhere" / "job.yaml"
    copy.parent.mkdir()
    copy.write_text(spec.to_yaml())
    assert yaml.safe_load(copy.read_text())["name"] == "job"
    assert take_fingerprint(load_spec(copy)) == take_fingerprint(spec)


def test_the_script_is_named_with_its_modules_if_it_has_any(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    spec = load_spec(write_job(tmp_path, "train.py"))
    assert take_fingerprint(spec).script == "train.py"
    (tmp_path / "torch.py").write_text("")
    assert take_fingerprint(spec).script == "train.py (or a module that it imports)"
