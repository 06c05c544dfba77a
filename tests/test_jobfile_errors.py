"""Bad job files: one error, its place, its reason, what to do; never another exception."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zeusrun.errors import ExitCode, JobFileError
from zeusrun.jobfile.spec import JobSpec, load_spec
from zeusrun.jobfile.yaml_reader import MAX_BYTES

SAMPLE = (Path(__file__).parent.parent / "jobs" / "digits.yaml").read_text(encoding="utf-8")

GOOD = """\
name: digits
script: train.py
args: [--lr, "${learning_rate}"]
env: {THREADS: 1}
learning_rate: {base: 0.05}
objective:
  metric: acc
  target: 0.9
batch_size:
  default: 64
  candidates: [32, 64]
launch:
  nproc_per_node: 2
"""


@pytest.fixture
def fail(tmp_path, monkeypatch):
    """Load a bad job file as ``job.yaml`` and return the lines of the error."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()

    def load(content, overrides=()):
        data = content if isinstance(content, bytes) else content.encode()
        Path("job.yaml").write_bytes(data)
        with pytest.raises(JobFileError) as caught:
            load_spec(Path("job.yaml"), overrides)
        assert caught.value.exit_code is ExitCode.BAD_INPUT
        return str(caught.value).splitlines()

    return load


def test_the_good_file_of_these_tests_is_good(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(GOOD)
    assert load_spec(tmp_path / "job.yaml").name == "digits"


@pytest.mark.parametrize("program", ["folder", "train.pyz", "train.zip"])
def test_a_folder_or_zip_file_with_a_main_is_a_script(tmp_path, program):
    main = tmp_path / "folder" / "__main__.py"
    main.parent.mkdir()
    main.touch()
    if program != "folder":
        with zipfile.ZipFile(tmp_path / program, "w") as archive:
            archive.write(main, "__main__.py")
    (tmp_path / "job.yaml").write_text(GOOD.replace("train.py", program))
    assert load_spec(tmp_path / "job.yaml").script_path({}) == tmp_path / program


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # unknown keys
        (
            "  default: 64",
            "  batch_sizes: 64",
            "10: unknown key 'batch_sizes' under 'batch_size'; did you mean 'candidates'?",
        ),
        (
            "  metric",
            "  target_metric: x\n  metric",
            "7: unknown key 'target_metric' under 'objective'; did you mean 'target'?",
        ),
        (
            "launch:",
            "target: 1\nlaunch:",
            "12: unknown key 'target'; 'target' belongs under 'objective'",
        ),
        (
            "launch:",
            "launch:\n  script: x",
            "13: unknown key 'script' under 'launch'; 'script' belongs at the top level",
        ),
        (
            "launch:",
            "max_epoch: 3\nlaunch:",
            "12: unknown key 'max_epoch'; did you mean 'objective.max_epochs'?",
        ),
        (
            "launch:",
            "epochs: 3\nlaunch:",
            "12: unknown key 'epochs'; did you mean 'objective.max_epochs'?",
        ),
        (
            "nproc_per_node",
            "nproc-per-node",
            "13: unknown key 'nproc-per-node' under 'launch'; did you mean 'nproc_per_node'?",
        ),
        (
            "launch:",
            "watch: {noise_scale: {intervall: 3}}\nlaunch:",
            "12: unknown key 'intervall' under 'watch.noise_scale'; did you mean 'interval'?",
        ),
        (
            "launch:",
            "adapt: {policy: noise-scale}\nlaunch:",
            "12: unknown key 'policy' under 'adapt'; 'policy' belongs under 'adapt.batch_size'",
        ),
        (
            "launch:",
            "adapt: {batchsize: {policy: noise-scale}}\nlaunch:",
            "12: unknown key 'batchsize' under 'adapt'; did you mean 'batch_size'?",
        ),
        (
            "nproc_per_node",
            "zzz",
            "13: unknown key 'zzz' under 'launch'; known: nproc_per_node, gpus, distributed, nnodes, max_restarts, grace_period_s",
        ),
        ("name:", "source: x\nname:", "1: unknown key 'source'; "),
        # missing keys
        ("name: digits\n", "", "1: the key 'name' is missing at the top level of job.yaml"),
        ("  target: 0.9\n", "", "6: the key 'target' is missing under 'objective'"),
        ("{base: 0.05}", "{}", "5: the key 'base' is missing under 'learning_rate'"),
        (
            "script: train.py\n",
            "",
            "1: 'module' or 'script' is missing; say what to run: script: train.py",
        ),
        (
            "script:",
            "module: train\nscript:",
            "2: 'module' cannot be used together with 'script'; keep one of them",
        ),
        # wrong types
        ("target: 0.9", "target: high", "8: 'objective.target' must be a number, not 'high'"),
        (
            "target: 0.9",
            'target: "0.9"',
            "8: 'objective.target' must be a number, not '0.9'; remove the quotes",
        ),
        ("target: 0.9", "target: true", "8: 'objective.target' must be a number, not true"),
        ("target: 0.9", "target:", "8: 'objective.target' must be a number, not empty (null)"),
        ("target: 0.9", "target: .nan", "8: 'objective.target' must be a finite number, not nan"),
        ("target: 0.9", "target: -.inf", "8: 'objective.target' must be a finite number, not -inf"),
        ("target: 0.9", "target: 1e999", "8: 'objective.target' must be a finite number, not inf"),
        ("metric: acc", "metric: [acc]", "7: 'objective.metric' must be text, not a list"),
        (
            "metric: acc",
            "metric: ''",
            "7: 'objective.metric' must be something, such as a name, not ''",
        ),
        (
            "name: digits",
            "name: 2024",
            "1: 'name' must be text, not 2024; put it in quotes: \"2024\"",
        ),
        (
            "learning_rate: {base: 0.05}",
            "learning_rate: 0.1",
            "5: 'learning_rate' must be a section of 'key: value' lines, not 0.1",
        ),
        (
            "launch:\n  nproc_per_node: 2",
            "launch:",
            "12: 'launch' must be a section of 'key: value' lines, not empty (null)",
        ),
        ("launch:", "instrument: no\nlaunch:", "12: 'instrument' must be true or false, not 'no'"),
        ("launch:", "workdir: 3\nlaunch:", "12: 'workdir' must be a path, not 3"),
        # values out of bounds
        (
            "nproc_per_node: 2",
            "nproc_per_node: 2\n  distributed: false",
            "14: 'launch.distributed' cannot be false unless nproc_per_node is 1; remove one of them",
        ),
        (
            "target: 0.9",
            "target: 0.9\n  eta_knob: 1.5",
            "9: 'objective.eta_knob' must be less than or equal to 1, not 1.5",
        ),
        (
            "target: 0.9",
            "target: 0.9\n  eta_knob: -1",
            "9: 'objective.eta_knob' must be greater than or equal to 0, not -1",
        ),
        (
            "target: 0.9",
            "target: 0.9\n  max_epochs: 0",
            "9: 'objective.max_epochs' must be greater than or equal to 1, not 0",
        ),
        (
            "target: 0.9",
            "target: 0.9\n  mode: up",
            "9: 'objective.mode' must be 'max' or 'min', not 'up'",
        ),
        ("base: 0.05", "base: 0", "5: 'learning_rate.base' must be greater than 0, not 0"),
        (
            "launch:",
            "attempts: 0\nlaunch:",
            "12: 'attempts' must be greater than or equal to 1, not 0",
        ),
        (
            "launch:",
            "attempts: 99999999999999999999\nlaunch:",
            "12: the number 99999999999999999999... is far too large",
        ),
        ("launch:", "timeout_s: 0\nlaunch:", "12: 'timeout_s' must be greater than 0, not 0"),
        (
            "launch:",
            "early_stop: {cost_factor: 1}\nlaunch:",
            "12: 'early_stop.cost_factor' must be greater than 1, not 1",
        ),
        (
            "launch:",
            "policy: {seed: -1}\nlaunch:",
            "12: 'policy.seed' must be greater than or equal to 0, not -1",
        ),
        (
            "launch:",
            "policy: {window: 0}\nlaunch:",
            "12: 'policy.window' must be greater than or equal to 1, not 0",
        ),
        (
            "launch:",
            "policy: {control: 1}\nlaunch:",
            "12: 'policy.control' must be greater than or equal to 2, not 1",
        ),
        (
            "launch:",
            "policy: {control: 2.5}\nlaunch:",
            "12: 'policy.control' must be a whole number, not 2.5",
        ),
        (
            "launch:",
            "policy: {controll: 10}\nlaunch:",
            "12: unknown key 'controll' under 'policy'; did you mean 'control'?",
        ),
        (
            "launch:",
            "policy: {name: best}\nlaunch:",
            (
                "12: 'policy.name' must be 'auto', 'zeus', 'fixed' or 'grid', not 'best', "
                "and no plugin has that name"
            ),
        ),
        (
            "launch:",
            "policy: {name: zues}\nlaunch:",
            (
                "12: 'policy.name' must be 'auto', 'zeus', 'fixed' or 'grid', not 'zues'; "
                "did you mean 'zeus'?"
            ),
        ),
        (
            "launch:",
            "metrics: {source: cvs}\nlaunch:",
            (
                "12: 'metrics.source' must be 'auto', 'sidecar', 'stdout', 'csv' or 'jsonl', "
                "not 'cvs'; did you mean 'csv'?"
            ),
        ),
        (
            "launch:",
            "metrics: {source: csv}\nlaunch:",
            "12: 'metrics.path' is missing: source csv needs it, for example path: logs/**/metrics.csv",
        ),
        (
            "launch:",
            "metrics: {source: csv, path: log, pattern: nanogpt}\nlaunch:",
            "12: 'metrics.pattern' only goes with source: stdout, not csv",
        ),
        (
            "launch:",
            "metrics: {path: log.csv}\nlaunch:",
            "12: 'metrics.path' only goes with source: csv, jsonl, not auto",
        ),
        (
            "launch:",
            "metrics: {source: csv, path: '${run_dri}/log.csv'}\nlaunch:",
            "12: 'metrics.path' uses the unknown placeholder '${run_dri}'; did you mean '${run_dir}'?",
        ),
        (
            "launch:",
            "metrics: {source: stdout, pattern: torchvison}\nlaunch:",
            "12: 'metrics.pattern' has no named group in 'torchvison'; did you mean 'torchvision'?",
        ),
        (
            "launch:",
            r"metrics: {source: stdout, pattern: 'val acc: \S+'}" + "\nlaunch:",
            (
                r"12: 'metrics.pattern' has no named group in 'val acc: \S+'; give the number a "
                r"name, such as 'val_acc=(?P<val_acc>\S+)'"
            ),
        ),
        (
            "launch:",
            "metrics: {source: stdout, pattern: ['(?P<acc>.*', nanogpt]}\nlaunch:",
            (
                "12: 'metrics.pattern' is not a regular expression: missing ), unterminated subpattern "
                "at position 0 in '(?P<acc>.*'"
            ),
        ),
        (
            "launch:",
            "metrics: {source: stdout, pattern: nanogpt}\nlaunch:",
            (
                "12: 'metrics' has no group 'acc' in its pattern, which has train_loss, "
                "val_loss, loss; name the group of objective.metric so, or name it in metrics.name"
            ),
        ),
        (
            "launch:",
            "launch:\n  grace_period_s: 0.5",
            "13: 'launch.grace_period_s' must be greater than or equal to 1, not 0.5",
        ),
        (
            "launch:",
            "stall: {action: restart}\nlaunch:",
            "12: 'stall' has action: restart, but torchrun may not restart the processes; set launch.max_restarts to 1 or more",
        ),
        (
            "launch:",
            "stall: {action: restart}\ninstrument: false\nlaunch:\n  max_restarts: 1",
            "12: 'stall' has action: restart, but no step is seen with instrument: false",
        ),
        (
            "batch_size:",
            "instrument: false\nbatch_size:\n  apply: dataloader",
            "10: 'batch_size' has apply: dataloader, but no hook runs with instrument: false",
        ),
        (
            "{base: 0.05}",
            "{base: 0.05, apply: optimizer}\ninstrument: false",
            "6: 'instrument' is false, so no hook runs for learning_rate.apply: optimizer",
        ),
        (
            "launch:",
            "stall: {after_s: 0}\nlaunch:",
            "12: 'stall.after_s' must be greater than 0, not 0",
        ),
        (
            "launch:",
            "launch:\n  nnodes: 2",
            (
                "12: 'launch' has nnodes: 2, but no machines are named; "
                "add run_on: slurm, or {hosts: [a, b]}"
            ),
        ),
        (
            "nproc_per_node: 2",
            "nproc_per_node: 0",
            "13: 'launch.nproc_per_node' must be a whole number from 1, or gpu, cpu or auto",
        ),
        (
            "nproc_per_node: 2",
            "nproc_per_node: true",
            "13: 'launch.nproc_per_node' must be a whole number from 1, or gpu, cpu or auto",
        ),
        (
            "launch:",
            "power_limit: {mode: fixed}\nlaunch:",
            "12: 'power_limit.watts' is missing: mode fixed needs it, for example watts: 200",
        ),
        (
            "launch:",
            "power_limit: {watts: 200}\nlaunch:",
            "12: 'power_limit.watts' only goes with mode: fixed, not optimize",
        ),
        (
            "launch:",
            "power_limit: {mode: observe, objective: energy}\nlaunch:",
            "12: 'power_limit.objective' only goes with mode: optimize, not observe",
        ),
        (
            "launch:",
            "power_limit: {objective: energy, factor: 1.1}\nlaunch:",
            "12: 'power_limit.factor' only goes with objective: max_slowdown, not energy",
        ),
        # batch sizes
        (
            "default: 64",
            "default: 48",
            "10: 'batch_size.default' must be one of the candidates (32, 64), not 48",
        ),
        (
            "  default: 64\n  candidates: [32, 64]",
            "  candidates: [8, 16]",
            "9: 'batch_size.default' is 64 because the file gives none; give one of the candidates (8, 16)",
        ),
        (
            "default: 64\n  candidates: [32, 64]",
            "default: 64\n  candidates: [8, 16]",
            "10: 'batch_size.default' must be one of the candidates (8, 16), not 64",
        ),
        (
            "[32, 64]",
            "[]",
            "11: 'batch_size.candidates' must be a list of at least one, not an empty list",
        ),
        (
            "[32, 64]",
            "[64, 0]",
            "11: 'batch_size.candidates[1]' must be greater than or equal to 1, not 0",
        ),
        (
            "[32, 64]",
            "[64, -2]",
            "11: 'batch_size.candidates[1]' must be greater than or equal to 1, not -2",
        ),
        (
            "[32, 64]",
            "[64, true]",
            "11: 'batch_size.candidates[1]' must be a whole number, not true",
        ),
        (
            "[32, 64]",
            "[64, 32.0]",
            "11: 'batch_size.candidates[1]' must be a whole number, not 32.0",
        ),
        (
            "[32, 64]",
            "['32', 64]",
            "11: 'batch_size.candidates[0]' must be a whole number, not '32'; remove the quotes",
        ),
        (
            "[32, 64]",
            "[64, 32, 64]",
            "11: 'batch_size.candidates' must name each batch size once; given more than once: 64",
        ),
        ("[32, 64]", "64", "11: 'batch_size.candidates' must be a list, such as [a, b], not 64"),
        (
            "nproc_per_node: 2",
            "nproc_per_node: 3",
            "9: 'batch_size' has candidates that 3 processes cannot share evenly: 32, 64; use multiples of 3, or another launch.nproc_per_node",
        ),
        # names
        (
            "name: digits",
            "name: ../digits",
            "1: 'name' must be 1 to 64 letters, digits, '.', '_' or '-' and start with a letter or digit (the name of a job is also the name of its directory), not '../digits'",
        ),
        ("name: digits", 'name: "a\\n"', "1: 'name' must be 1 to 64 letters"),
        ("name: digits", "name: " + "a" * 65, "1: 'name' must be 1 to 64 letters"),
        (
            "script: train.py",
            "module: a b",
            "2: 'module' must be a dotted name such as package.train, not 'a b'",
        ),
        (
            "{THREADS: 1}",
            "{ZEUSRUN_HOME: x}",
            "4: 'env.ZEUSRUN_HOME' must not begin with ZEUSRUN_: zeusrun sets those itself",
        ),
        (
            "{THREADS: 1}",
            "{1X: x}",
            "4: 'env.1X' is not a valid name for an environment variable: letters, digits and _ only",
        ),
        (
            "{THREADS: 1}",
            "{X: true}",
            "4: 'env.X' must be text, not true; put it in quotes: \"true\"",
        ),
        (
            "{THREADS: 1}",
            "{X: }",
            "4: 'env.X' must be text, not empty (null); for an empty text write \"\"",
        ),
        ("{THREADS: 1}", "{X: [1]}", "4: 'env.X' must be text, not a list"),
        ("{THREADS: 1}", '{X: "a\\0b"}', "4: 'env.X' contains a NUL character"),
        (
            "script: train.py",
            'script: "t\\ud83d.py"',
            "2: half a surrogate pair is not text",
        ),
        ("{THREADS: 1}", '{X: "\\ud800"}', "4: half a surrogate pair is not text"),
        (
            "launch:",
            "notify: {url: 'https://me:secret@host/hook'}\nlaunch:",
            "12: 'notify.url' must not hold a user name or password, which every copy",
        ),
        # placeholders and paths
        (
            "${learning_rate}",
            "${learningrate}",
            "3: 'args[1]' uses the unknown placeholder '${learningrate}'; did you mean '${learning_rate}'?",
        ),
        (
            "${learning_rate}",
            "${HOME}",
            "3: 'args[1]' uses the unknown placeholder '${HOME}'; known: job, trial,",
        ),
        (
            "${learning_rate}",
            "$HOME",
            "3: 'args[1]' has a stray '$' in '$HOME'; write '$$HOME' for a plain '$HOME'",
        ),
        (
            "${learning_rate}",
            "$trial",
            "3: 'args[1]' has a stray '$' in '$trial'; write '${trial}' for the placeholder, '$$trial' for a plain '$trial'",
        ),
        (
            "${learning_rate}",
            "5$",
            "3: 'args[1]' has a stray '$' in '5$'; write '$$' for a plain '$'",
        ),
        (
            "learning_rate: {base: 0.05}\n",
            "",
            "3: 'args[1]' uses '${learning_rate}', but the job has no learning_rate; add for example learning_rate: {base: 0.05, scale: linear}",
        ),
        ("script: train.py", "script: tarin.py", "2: 'script' names a file that is missing: "),
        (
            "script: train.py",
            "script: .",
            "2: 'script' names a file, but it is a directory without a __main__.py: ",
        ),
        ("script: train.py", "script: train.yaml", "2: 'script' must be a Python script, not "),
        ("script: train.py", "script: " + "x" * 300, "2: 'script' names a file that is missing: "),
        (
            "launch:",
            "notify: {command: [hooks/tell.sh, x]}\nlaunch:",
            "12: 'notify' has a command that is missing: ",
        ),
        (
            "launch:",
            "workdir: nowhere\nlaunch:",
            "12: 'workdir' names a directory that is missing: ",
        ),
        # YAML
        (
            "launch:",
            "name: b\nlaunch:",
            "12: the key 'name' is given twice; it is already on line 1",
        ),
        (
            "  target: 0.9",
            "\ttarget: 0.9",
            "8: not usable YAML: a tab cannot indent YAML; use spaces",
        ),
        (
            "name: digits",
            "name: a: b",
            "1: not usable YAML: a second ':' on one line, or an indentation that is off",
        ),
        (
            '"${learning_rate}"',
            "${learning_rate}",
            "3: not usable YAML: quote a placeholder inside [ ] or { }",
        ),
        (
            "name: digits",
            "name: &n digits\nmodule: *n",
            "2: not usable YAML: aliases ('*name') are not supported here",
        ),
        (
            "name: digits",
            "name: !!python/object:os.system x",
            "1: the tag 'tag:yaml.org,2002:python/object:os.system' is not supported; leave it out",
        ),
        (
            "name: digits",
            "name: digits\n  module: a",
            "2: not usable YAML: a second ':' on one line, or an indentation that is off",
        ),
        (
            "launch:",
            " keep: {}\nlaunch:",
            "12: not usable YAML: the line is indented by more or by less than",
        ),
        ("name: digits", "? [a]\n: b", "1: a list or section cannot be a key"),
        (
            "launch:",
            "---\nlaunch:",
            "12: not usable YAML: a job file holds one job: remove the '---' that starts a second one",
        ),
        ("[32, 64]", "[" * 5000, "not usable YAML: nested too deeply"),
        ('"${learning_rate}"', '"\\UFFFFFFFF"', "not usable YAML: "),
    ],
)
def test_a_bad_file_is_told_with_line_reason_and_help(fail, old, new, expected):
    assert GOOD.count(old) == 1
    lines = fail(GOOD.replace(old, new))
    assert any(line.removeprefix("job.yaml:").strip().startswith(expected) for line in lines), lines


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "job.yaml is empty; a job needs at least a name, a script, an objective and batch"),
        ("# only a comment\n", "job.yaml is empty; "),
        ("~\n", "job.yaml is empty; "),
        ("- name: digits\n", "job.yaml:1: the file holds a list; it must be made of 'key:"),
        ("digits\n", "job.yaml:1: the file holds a single value; "),
        (b"name: digits\nscript: \xff\xfe\n", "job.yaml:2: this line is not UTF-8 text; is it"),
        (b"name: digits\n\x7fELF\x00", "job.yaml:2: the character U+007F is not allowed in a job"),
        ("name: {\n", "job.yaml:2: not usable YAML: "),
        ("#" * (MAX_BYTES + 1), "job.yaml is larger than 64 KiB; is it a job file?"),
    ],
)
def test_what_is_no_job_file_at_all_is_one_error(fail, content, expected):
    (line,) = fail(content)
    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "objective.eta_knbo=1",
            "unknown key 'eta_knbo' under 'objective'; did you mean 'eta_knob'?",
        ),
        ("objective.eta_knob=2", "'objective.eta_knob' must be less than or equal to 1, not 2"),
        (
            "batch_size.default=48",
            "'batch_size.default' must be one of the candidates (32, 64), not 48",
        ),
        (
            "early_stop.cost_factr=3",
            "unknown key 'cost_factr' under 'early_stop'; did you mean 'cost_factor'?",
        ),
        ("objective.eta_knob", "write it as key=value, such as objective.eta_knob=0.8"),
        ("=3", "write it as key=value, such as objective.eta_knob=0.8"),
        ("objective..x=3", "write it as key=value, such as objective.eta_knob=0.8"),
        ("name.x=3", "'name' has no keys of its own; set it as a whole"),
        ("metrics=[--lr", "not usable YAML: "),
        ("name.0=3", "'name' has no keys of its own; set it as a whole"),
        ("policy={seed: 1, seed: 2}", "the key 'seed' is given twice"),
        ("script=nowhere.py", "'script' names a file that is missing: "),
    ],
)
def test_a_bad_override_is_told_by_what_was_typed(fail, override, expected):
    lines = fail(GOOD, [override])
    assert [line for line in lines if line.startswith(f"--set {override}: {expected}")], lines


def test_a_section_that_only_an_override_opened_is_told_as_that_override(fail):
    (line,) = fail(GOOD.replace("learning_rate: {base: 0.05}\n", ""), ["learning_rate.scale=sqrt"])
    assert line == "--set learning_rate.scale=sqrt: the key 'base' is missing under 'learning_rate'"


def test_control_characters_of_a_job_do_not_reach_the_terminal(fail):
    text = GOOD.replace("THREADS", '"\\e[2J"').replace("train.py", '"\\e[2J"')
    lines = fail(text, ["objective.x\x1b[2J=1", "policy.\udc80=1"])
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


def test_all_errors_are_told_at_once_in_the_order_of_the_file(fail):
    text = GOOD.replace("name: digits", "nome: digits").replace("0.9", "x").replace("[32", "[33")
    numbers = [line.split(":")[1] for line in fail(text.replace("train.py", "tarin.py"))]
    assert numbers == ["1", "2", "8", "9"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("candidates:", "batch_sizes:", "unknown key 'batch_sizes' under 'batch_size'; did you"),
        (
            "default: 64\n  candidates: [32, 64]",
            "defualt: 8\n  candidates: [8]",
            "unknown key 'def",
        ),
        ("script:", "scirpt:", "unknown key 'scirpt'; did you mean 'script'?"),
        ("script:", "modul:", "unknown key 'modul'; did you mean 'module'?"),
        ("objective:", "objektive:", "unknown key 'objektive'; did you mean 'objective'?"),
    ],
)
def test_a_misspelt_key_is_not_also_a_missing_one(fail, old, new, expected):
    (line,) = fail(GOOD.replace(old, new))
    assert line.partition(": ")[2].startswith(expected)


def test_a_key_that_no_unknown_key_means_is_still_missing(fail):
    lines = fail(GOOD.replace("script: train.py", "xyz: 1").replace("name: digits", "nome: a"))
    assert [line.partition(": ")[2][:25] for line in lines] == [
        "'module' or 'script' is m",
        "unknown key 'nome'; did y",
        "unknown key 'xyz'; known:",
    ]


def test_past_eight_errors_the_rest_is_counted_and_overrides_come_first(fail):
    text = GOOD + "".join(f"key{number}: 1\n" for number in range(10))
    lines = fail(text, ["attempts=0"])
    assert lines[0].startswith("--set attempts=0: ")
    assert len(lines) == 9
    assert lines[-1] == "... and 3 more"


def test_a_job_file_without_its_suffix_is_found_by_name(tmp_path):
    (tmp_path / "train.yaml").touch()
    with pytest.raises(JobFileError, match=r"no such file; did you mean .*/train\.yaml\?"):
        load_spec(tmp_path / "train")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("absent.yaml", "there is no such file"),
        (".", "is a directory; name the job file in it"),
        ("x" * 300, "cannot be read: File name too long"),
        ("a\0b", "cannot be read: "),
    ],
)
def test_a_file_that_cannot_be_read_is_a_job_file_error(tmp_path, name, expected):
    with pytest.raises(JobFileError, match=expected):
        load_spec(tmp_path / name)


_PIECES = st.sampled_from(
    [
        *(
            "null",
            "true",
            "-1",
            "0",
            "1e999",
            ".nan",
            "x",
            "[]",
            "{}",
            "[[",
            "}",
            "'",
            '"',
            "9" * 30,
        ),
        *(
            "&a",
            "*a",
            "!!int",
            "!x",
            "? ",
            "- ",
            ": ",
            "<<: ",
            "...",
            "---\n",
            "%YAML 1.1\n",
            "|",
            ">",
        ),
        *(
            "#",
            "$",
            "${",
            "${trial}",
            "\\",
            '"\\x',
            '"\\UFFFFFFFF"',
            '"\\ud800"',
            "\t",
            "\n",
            "",
            "é",
        ),
        *("\0", "\ufeff", "\x85"),
    ]
)


@st.composite
def _mutated(draw):
    """Yield a good job file after a few random deletions, insertions, swaps of values or lines."""
    text = draw(st.sampled_from([GOOD, SAMPLE]))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        kind = draw(st.sampled_from(["delete", "insert", "value", "line", "shuffle"]))
        if kind == "delete":
            text = text[:start] + text[start + draw(st.integers(1, 30)) :]
        elif kind == "insert":
            text = text[:start] + draw(_PIECES) + text[start:]
        else:
            lines = text.split("\n")
            index = draw(st.integers(0, len(lines) - 1))
            if kind == "value":
                lines[index] = lines[index].partition(":")[0] + ": " + draw(_PIECES)
            elif kind == "line":
                del lines[index]
            else:
                random.Random(start).shuffle(lines)
            text = "\n".join(lines)
    return text.encode()


@settings(
    max_examples=4 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=_mutated() | st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_stands_in_the_file_it_loads_or_is_a_job_file_error(tmp_path, content):
    (tmp_path / "train.py").touch()
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    try:
        spec = load_spec(path)
    except JobFileError as error:
        assert str(error).strip()
    else:
        assert isinstance(spec, JobSpec)
        assert spec.batch_size.default in spec.batch_size.candidates


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    key=st.sampled_from(["args", "env", "env.X", "batch_size", "batch_size.candidates", "name"])
    | st.text(max_size=12),
    value=_PIECES | st.text(max_size=20),
)
def test_whatever_is_typed_as_an_override_it_loads_or_is_a_job_file_error(tmp_path, key, value):
    (tmp_path / "train.py").touch()
    path = tmp_path / "job.yaml"
    path.write_text(GOOD)
    try:
        assert isinstance(load_spec(path, [f"{key}={value}"]), JobSpec)
    except JobFileError as error:
        assert str(error).strip()
