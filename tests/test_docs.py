"""What README and docs promise is run: their job files, their code, their commands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from typing import get_args

import pytest
import yaml

import zeusrun as package
from tests.factories import ROOT, load_job
from zeusrun.errors import ExitCode
from zeusrun.jobfile.metrics_section import READY, find_metrics
from zeusrun.jobfile.placeholders import PLACEHOLDERS
from zeusrun.jobfile.schema import spec_json_schema
from zeusrun.jobfile.spec import load_spec
from zeusrun.plugins import BUILT_IN, Group
from zeusrun.trial import TrialStatus

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}


def blocks(text, language):
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


@pytest.mark.parametrize("text", blocks(README, "yaml"), ids=["sample", "adopted"])
def test_the_job_files_of_the_readme_are_well_formed(tmp_path, text):
    (tmp_path / "jobs").mkdir()
    path = tmp_path / "jobs" / "job.yaml"
    path.write_text(text)
    script = path.parent / yaml.safe_load(text)["script"]
    script.parent.mkdir(parents=True, exist_ok=True)
    script.touch()
    assert load_spec(path).batch_size.candidates


def test_the_sample_of_the_readme_is_the_sample_that_ships(tmp_path):
    (sample, _) = blocks(README, "yaml")
    shipped = yaml.safe_load((ROOT / "jobs" / "digits.yaml").read_text())
    assert yaml.safe_load(sample).items() <= {**shipped, **yaml.safe_load(sample)}.items()
    for key in ("name", "script", "args", "launch", "objective", "batch_size", "learning_rate"):
        assert yaml.safe_load(sample)[key] == shipped[key]


def test_the_job_file_of_kubernetes_is_the_one_that_ships():
    shown, *_ = blocks(DOCS["kubernetes.md"], "yaml")
    shipped = (ROOT / "jobs" / "mnist_kubernetes.yaml").read_text()
    assert shipped.endswith(shown)
    assert yaml.safe_load(shown) == yaml.safe_load(shipped)


@pytest.mark.parametrize(
    "text", blocks(README, "python") + blocks(DOCS["training-script.md"], "python")
)
def test_the_python_of_the_docs_compiles(text):
    compile(text, "docs", "exec")


COMMAND_ROWS = re.compile(r"^\| `zeusrun ([a-z]+(?: add)?)[^|]*\|([^|]*)\|", re.MULTILINE)


def test_the_page_on_commands_has_every_command(zeusrun):
    listed = zeusrun("--help").stdout.split("Commands:")[1]
    named = {command for command, _ in COMMAND_ROWS.findall(DOCS["commands.md"])}
    assert named == set(re.findall(r"^  ([a-z]+)  ", listed, re.MULTILINE))


@pytest.mark.parametrize(
    ("command", "words"), COMMAND_ROWS.findall(README) + COMMAND_ROWS.findall(DOCS["commands.md"])
)
def test_every_option_of_a_command_in_the_docs_exists(zeusrun, command, words):
    done = zeusrun(*command.split(), "--help")
    assert done.returncode == 0
    for option in re.findall(r"`(--?[a-z-]+)", words):
        assert option in done.stdout


def test_the_readme_is_short_and_shows_the_commands_one_needs_first():
    assert len(README.splitlines()) <= 120
    commands = [command for command, _ in COMMAND_ROWS.findall(README)]
    assert commands == ["submit", "history", "explain", "status", "show", "schedule add"]


def test_the_demo_installs_what_the_first_page_of_the_readme_uses():
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert "`zeusrun report`" in README.partition("## A job file")[0]
    assert set(extras["report"]) <= set(extras["demo"])


def test_every_verb_and_option_of_the_page_on_schedules_exists(zeusrun):
    page = DOCS["schedules.md"]
    rows = re.findall(r"^\| (`.*`) \|(.*)\|$", page, re.MULTILINE)
    named = {verb for names, _ in rows for verb in re.findall(r"`([a-z-]+)", names)}
    listed = zeusrun("schedule", "--help").stdout.split("Commands:")[1]
    assert named == set(re.findall(r"^  ([a-z-]+)  ", listed, re.MULTILINE))
    helps = {verb: zeusrun("schedule", verb, "--help").stdout for verb in named}
    for names, words in rows:
        verbs = re.findall(r"`([a-z-]+)", names)
        for option in re.findall(r"(?<![\w-])--?[a-z-]+", names + words):
            assert any(option in helps[verb] for verb in verbs), option
    for option in re.findall(r"`(--[a-z-]+)", page):
        assert any(option in text for text in helps.values()), option


def test_the_exit_codes_of_the_docs_are_the_ones_in_use():
    page = DOCS["commands.md"]
    named = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert named == set(ExitCode) - {ExitCode.SIGNAL_BASE}


def test_the_error_that_the_readme_shows_is_the_one_that_comes(zeusrun):
    (zeusrun.folder / "train.py").touch()
    (zeusrun.folder / "nightly.yaml").write_text(
        "name: nightly\nscript: train.py\nobjective:\n  metric: accuracy\n  target: 0.9\n"
        "\nbatch_size:\n  default: 64\n  batch_sizes: [64, 128]\n"
    )
    shown = re.search(r"^zeusrun: nightly.yaml:9: .*$", README, re.MULTILINE).group()
    assert zeusrun("validate", "nightly.yaml").stderr.strip() == shown


def test_the_page_on_job_files_lists_every_key_its_default_and_every_placeholder():
    schema = spec_json_schema()
    defaults = {}
    for name, value in schema["properties"].items():
        section = re.search(r"#/\$defs/(\w+)", str(value))
        keys = dict(schema["$defs"][section[1]]["properties"]) if section else {"": value}
        if name == "run_on":
            for inner in ("Slurm", "Kubernetes"):
                rules = schema["$defs"][inner]["properties"]
                keys |= {f"{inner.lower()}.{key}": rule for key, rule in rules.items()}
        for key, rule in keys.items():
            default = f"`{json.dumps(rule['default'])}`" if "default" in rule else "—"
            defaults[f"{name}.{key}".rstrip(".")] = default
    page = DOCS["job-file.md"]
    table = page[page.index("| key |") : page.index("## Placeholders")].replace("\\|", "or")
    rows = re.findall(r"^\| `([\w.]+)` \|[^|]*\| ([^|]*) \|", table, re.MULTILINE)
    assert dict(rows) == defaults
    assert len(rows) == len(defaults)
    assert all(f"`{name}`" in page for name in PLACEHOLDERS)


def test_the_page_on_training_scripts_names_every_variable(zeusrun):
    job = zeusrun.job(learning_rate={"base": 0.1}, env={"HF_TOKEN": "a secret"})
    dry = zeusrun("submit", job, "--dry-run", "--json").stdout
    told = set(re.findall(r"ZEUSRUN_[A-Z_]+", dry)) - {"ZEUSRUN_HOME"}
    assert told == set(re.findall(r"ZEUSRUN_[A-Z_]+", DOCS["training-script.md"]))


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = {"README.md": README, "CONTRIBUTING.md": CONTRIBUTING}
PAGES |= {f"docs/{name}": text for name, text in DOCS.items()}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_somewhere(name):
    """Sections are named as GitHub and mkdocs name them."""
    for target, _, section in re.findall(r"\]\(([\w./-]*)(#([\w-]+))?\)", PAGES[name]):
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), target
        if section:
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert section in slugs


def test_contributors_have_at_most_900_words_to_read():
    assert len(CONTRIBUTING.split()) <= 900


def test_the_statuses_of_the_docs_are_the_ones_in_use():
    named = set(re.findall(r"^\| `([A-Z]+)` \|", DOCS["results.md"], re.MULTILINE))
    assert named == set(TrialStatus.__members__) - {"DISPATCHED"}


def test_the_package_ships_its_types():
    assert (ROOT / "zeusrun" / "py.typed").is_file()


def test_the_version_is_the_same_everywhere():
    declared = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared.group(1) == package.__version__


@pytest.mark.long  # 40 epochs
@pytest.mark.torchrun
def test_the_sample_job_reaches_its_target(zeusrun):
    code, result, _ = zeusrun.submit(ROOT / "jobs" / "digits.yaml")
    assert code == 0
    assert result["trials"][-1]["steps"] > 100


@pytest.mark.torchrun
@pytest.mark.long
def test_the_example_runs_without_zeusrun(zeusrun):
    page = (ROOT / "examples" / "digits" / "README.md").read_text()
    (line,) = re.findall(r"^    torchrun (.*)$", page, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *shlex.split(line)],
        cwd=ROOT,
        env=zeusrun.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # The plain script may abort while the interpreter shuts down (see docs/training-script.md).
    assert "epoch 40: val_accuracy 0.9" in done.stdout


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("policies.md", "64 is the default, and nothing has reached the target yet"),
        ("python-api.md", "digits 0.98 (16, 32, 64, 128, 256, 512)"),
    ],
)
def test_the_python_of_a_page_runs(zeusrun, name, first):
    """All its blocks in one session, as a reader would type them in a clone."""
    program = "\n".join(blocks(DOCS[name], "python"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=zeusrun.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == first


def test_the_page_on_the_python_api_names_every_group_of_plugins():
    named = set(re.findall(r"^\| `(zeusrun\.\w+)`", DOCS["python-api.md"], re.MULTILINE))
    assert named == set(get_args(Group))


def test_a_history_moves_to_another_machine_as_the_page_on_upkeep_says(zeusrun):
    """Each machine is a home directory of its own."""
    assert len(DOCS["upkeep.md"].split()) <= 600
    pack, unpack = blocks(DOCS["upkeep.md"], "sh")[:2]
    old, new = zeusrun.folder / "old", zeusrun.folder / "new"
    kept = {name: text for name, text in zeusrun.environment.items() if not name.startswith("XDG_")}
    folder = ".local/state/zeusrun"

    def run(user, command):
        argv = [
            "bash",
            "-c",
            command.replace("zeusrun history", f"{sys.executable} -m zeusrun history"),
        ]
        env = {**kept, "HOME": str(user), "ZEUSRUN_HOME": str(user / folder)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout

    job = zeusrun.job(name="digits")
    zeusrun.submit(job, "--quiet")
    (old / ".local" / "state").mkdir(parents=True)
    new.mkdir()
    zeusrun.home.rename(old / folder)
    run(old, pack)
    (old / "digits.tgz").rename(new / "digits.tgz")
    assert "REACHED" in run(new, unpack)
    done = zeusrun("submit", job, "--json", "--quiet", ZEUSRUN_HOME=str(new / folder))
    (trial,) = json.loads(done.stdout.splitlines()[-1])["trials"]
    assert (trial["trial"], done.returncode) == ("digits-2-1", 0)


@pytest.mark.parametrize("text", blocks(DOCS["metrics.md"], "yaml"))
def test_the_sections_of_the_page_on_metrics_are_well_formed(tmp_path, text):
    section = yaml.safe_load(text)["metrics"]
    pattern = section.get("pattern", [])
    names = find_metrics((pattern,) if isinstance(pattern, str) else tuple(pattern))
    spec = load_job(tmp_path, metrics=section, objective={"metric": names[0] if names else "any"})
    assert f"| `{spec.metrics.source}` |" in DOCS["metrics.md"]


def test_the_page_on_metrics_lists_every_source_and_every_ready_pattern():
    page = DOCS["metrics.md"]
    assert set(BUILT_IN["zeusrun.metric_sources"]) == set(
        re.findall(r"^\| `(\w+)` \|", page.split("## Order")[0], re.MULTILINE)
    )
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (.*) \|$", page.split("### Ready patterns")[1], re.MULTILINE
    )
    assert {name: set(re.findall(r"`(\w+)`", names)) for name, names in rows} == {
        name: set(find_metrics((name,))) for name in READY
    }
