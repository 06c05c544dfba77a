"""Packages that add to zeusrun by entry points, installed as pip leaves them."""

from __future__ import annotations

import json
import sys
import textwrap

import numpy as np
import pytest

from tests.bandit.scripts import problem
from tests.commands.test_simulate import LEARNED
from tests.factories import FAKE_TORCHRUN, write_job
from zeusrun.bandit.registry import create_policy
from zeusrun.errors import JobFileError, UsageError
from zeusrun.jobfile.metrics_section import Metrics
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.processes.descendants import processes_of_run
from zeusrun.metrics.base import open_sources
from zeusrun.metrics.rows import SourceContext
from zeusrun.plugins import create_plugin, plugin_names
from zeusrun.sidecar.events import SIDECAR_NAME

LARGEST = """
from zeusrun.bandit.problem import ArmBelief
from zeusrun.trial import Decision, Stage


class Largest:
    name = "largest"

    def choose(self, problem, runs, rng):
        return Decision(problem.candidates[-1], Stage.EXPLORE, "the largest")

    def next_lever(self, problem, decision, profile):
        return None

    def review(self, problem, decision, running):
        return None

    def explain(self, problem, runs, rng):
        return [
            ArmBelief(global_batch_size=arm, trials=0, reached=0, chance=0.0, verdict="")
            for arm in problem.candidates
        ]
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a module ``largest_policy`` that declares entry points."""
    site = tmp_path / "site-packages"

    def add(entry_points, module=LARGEST):
        metadata = site / "zeusrun_largest-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: zeusrun-largest\nVersion: 1.0\n"
        )
        (metadata / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        (site / "largest_policy.py").write_text(module)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, "largest_policy", raising=False)
        return site

    return add


POLICY = """
    [zeusrun.policies]
    largest = largest_policy:Largest
    auto = largest_policy:Largest
"""


def test_a_policy_of_a_plugin_chooses_for_a_submit(zeusrun, install):
    site = install(POLICY)
    job = zeusrun.job(policy={"name": "largest"}, batch_size={"candidates": [32, 64, 256]})
    done = zeusrun("submit", job, "--dry-run", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert "batch size 256" in done.stdout
    assert "the largest" in done.stdout


@pytest.fixture
def simulate(zeusrun, record):
    """Replay a job with six runs under another policy."""

    def run(policy, site):
        for number, (size, outcome) in enumerate(LEARNED, 1):
            record(number, outcome, world_size=1, max_epochs=5, global_batch_size=size)
        few = ("--seeds", "1", "--recurrences", "2", "--set", f"policy.name={policy}")
        return zeusrun("simulate", zeusrun.job(), *few, PYTHONPATH=str(site))

    return run


def test_a_policy_of_a_plugin_can_be_simulated(simulate, install):
    done = simulate("largest", install(POLICY))
    assert done.returncode == 0, done.stderr
    assert "policy.name=largest" in done.stdout


def test_a_plugin_cannot_replace_a_policy_of_zeusrun(install):
    install(POLICY)
    assert type(create_policy("auto")).__module__ == "zeusrun.bandit.auto.policy"


def test_the_job_file_takes_the_name_without_importing_the_plugin(tmp_path, install):
    install(POLICY, module="raise RuntimeError('imported')")
    spec = load_spec(write_job(tmp_path, policy={"name": "largest"}))
    assert spec.policy.name == "largest"


def test_a_plugin_that_cannot_be_imported_ends_with_2_and_one_sentence(zeusrun, install):
    site = install(POLICY, module="import no_such_module")
    job = zeusrun.job(policy={"name": "largest"})
    done = zeusrun("submit", job, "--dry-run", PYTHONPATH=str(site))
    assert done.returncode == 2
    checked = zeusrun("validate", job, PYTHONPATH=str(site))
    assert (checked.returncode, checked.stdout, checked.stderr) == (2, "", done.stderr)
    assert done.stderr == (
        "zeusrun: the plugin 'largest' (largest_policy:Largest, of the package zeusrun-largest) failed: "
        "ModuleNotFoundError: No module named 'no_such_module'; repair or uninstall "
        "that package\n"
    )


def test_a_plugin_that_makes_no_policy_is_named(install):
    install("[zeusrun.policies]\nlargest = largest_policy:TEXT\n", module="TEXT = lambda: 'none'")
    with pytest.raises(
        UsageError, match=r"'largest' .* failed: TypeError: it returned 'none', which"
    ):
        create_policy("largest")


BAD = """
from largest_policy import Largest
from zeusrun.trial import Decision, Stage


class Raises(Largest):
    def choose(self, problem, runs, rng):
        return {}["oops"]

    next_lever = review = explain = choose


class Late(Largest):
    def review(self, problem, decision, running):
        return {}["oops"]


class Odd(Largest):
    def choose(self, problem, runs, rng):
        return Decision(77, Stage.EXPLORE, "odd")

    def explain(self, problem, runs, rng):
        return ["a belief"]


class Bare(Largest):
    def choose(self, problem, runs, rng):
        return 64


def broken():
    raise ValueError("no model")
"""
BAD_POLICIES = """
    [zeusrun.policies]
    raises = bad_policies:Raises
    late = bad_policies:Late
    odd = bad_policies:Odd
    bare = bad_policies:Bare
    broken = bad_policies:broken
"""
OOPS = (
    "zeusrun: the policy 'raises' (bad_policies:Raises, of the package zeusrun-largest) failed in {}: KeyError: 'oops'; "
    "repair or uninstall that package\n"
)


@pytest.fixture
def bad_policies(install, monkeypatch):
    site = install(BAD_POLICIES)
    (site / "bad_policies.py").write_text(BAD)
    monkeypatch.delitem(sys.modules, "bad_policies", raising=False)
    return site


@pytest.mark.parametrize(
    ("method", "verb"),
    [("choose", ["submit", "JOB", "--dry-run"]), ("explain", ["explain", "JOB"])],
)
def test_an_error_in_a_plugins_policy_ends_with_2_and_names_it(zeusrun, bad_policies, method, verb):
    job = str(zeusrun.job(policy={"name": "raises"}))
    words = [job if word == "JOB" else word for word in verb]
    done = zeusrun(*words, PYTHONPATH=str(bad_policies))
    assert (done.returncode, done.stderr) == (2, OOPS.format(method))


def test_an_error_in_a_simulated_plugin_ends_with_2_and_names_it(simulate, bad_policies):
    done = simulate("raises", bad_policies)
    assert (done.returncode, done.stderr) == (2, OOPS.format("choose"))


def test_an_error_of_a_plugin_during_a_run_ends_the_run_and_names_it(zeusrun, bad_policies):
    job = zeusrun.job(policy={"name": "late"}, args=["--epoch-s", "0.6", "--gain", "0.2"])
    done = zeusrun("submit", job, PYTHONPATH=str(bad_policies))
    assert done.returncode == 2
    assert (
        "the policy 'late' (bad_policies:Late, of the package zeusrun-largest) failed in review"
        in done.stderr
    )
    (trial,) = json.loads(zeusrun("history", "--json").stdout)
    assert (trial["status"], trial["finished_at"] is not None) == ("FAILED", True)


@pytest.mark.usefixtures("bad_policies")
@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("raises", "next_lever", "failed in next_lever: KeyError: 'oops'; repair"),
        ("raises", "review", "failed in review: KeyError: 'oops'; repair"),
        ("odd", "choose", "it returned batch size 77; the candidates are 16, 32, 64, 128, 256"),
        ("odd", "explain", "it returned something other than a list of ArmBelief"),
        ("bare", "choose", "it returned 64, which is no Decision"),
    ],
)
def test_every_method_of_a_plugins_policy_is_checked(name, method, expected):
    with pytest.raises(UsageError, match=expected):
        getattr(create_policy(name), method)(problem(), [], np.random.default_rng(0))


@pytest.mark.usefixtures("bad_policies")
def test_a_plugin_that_fails_to_make_its_policy_is_named():
    with pytest.raises(UsageError, match=r"'broken' .* failed: ValueError: no model; repair"):
        create_policy("broken")


@pytest.mark.usefixtures("bad_policies")
def test_a_misspelt_name_of_a_plugin_is_suggested(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'broken'"):
        create_policy("brokn")
    with pytest.raises(JobFileError, match="did you mean 'broken'"):
        load_spec(write_job(tmp_path, policy={"name": "brokn"}))


def test_names_are_looked_for_in_their_own_group(install):
    install("[zeusrun.histories]\nlargest = largest_policy:Largest\n")
    assert plugin_names("zeusrun.histories") == ["largest"]
    assert plugin_names("zeusrun.policies") == []
    assert create_plugin("zeusrun.policies", "largest", object) is None
    assert create_plugin("zeusrun.histories", "largest", object).name == "largest"


ELSEWHERE = """
from zeusrun.history.tinydb.store import TinyDBHistory


class Elsewhere(TinyDBHistory):
    def __init__(self, home):
        super().__init__(home / "elsewhere")


def devices(environment):
    from zeusrun.energy.cpu import cpu_device

    return [cpu_device(environment), cpu_device(environment)]


class Silent:
    warnings = ()

    def __init__(self, run_dir):
        self.run_dir = run_dir

    def read(self, *, final=False):
        return []
"""


def test_a_history_of_a_plugin_stores_the_trials(zeusrun, install):
    site = install("[zeusrun.histories]\nother = largest_policy:Elsewhere\n", module=ELSEWHERE)
    variables = {"PYTHONPATH": str(site), "ZEUSRUN_HISTORY": "other"}
    assert zeusrun("submit", zeusrun.job(), **variables).returncode == 0
    (trial,) = json.loads(zeusrun("history", "--json", **variables).stdout)
    assert trial["status"] == "REACHED"
    assert json.loads(zeusrun("history", "--json").stdout) == []


def test_an_unknown_history_ends_with_2(zeusrun):
    done = zeusrun("history", ZEUSRUN_HISTORY="other")
    assert done.returncode == 2
    assert "the history is 'other', but no installed plugin has that name" in done.stderr


def test_devices_of_a_plugin_give_the_number_of_ranks(zeusrun, install):
    site = install("[zeusrun.devices]\nxpu = largest_policy:devices\n", module=ELSEWHERE)
    job = zeusrun.job(launch={"nproc_per_node": "xpu"})
    done = zeusrun("submit", job, "--dry-run", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node=2" in done.stdout
    assert zeusrun("validate", job).returncode == 2  # without the plugin


def test_a_metric_source_of_a_plugin_is_read_beside_the_sidecar(zeusrun, install, tmp_path):
    site = install("[zeusrun.metric_sources]\nquiet = largest_policy:Silent\n", module=ELSEWHERE)
    job = zeusrun.job(metrics={"source": "quiet"})
    assert zeusrun("submit", job, PYTHONPATH=str(site)).returncode == 0
    sources = open_sources(
        SourceContext(tmp_path, tmp_path, Metrics.model_construct(source="quiet"))
    )
    assert list(sources) == [str(tmp_path / SIDECAR_NAME), "the metric source 'quiet'"]


BAD_SOURCE = """
from zeusrun.sidecar.events import Reported


class Source:
    warnings = ()

    def __init__(self, run_dir):
        pass

    def read(self, *, final=False):
        {}
"""


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return {}['oops']", "KeyError: 'oops'"),
        ("return ['a report']", "TypeError: it returned 'a report', which is not an event"),
        ("return [Reported(0.0, 'one', {})]", "ValueError: invalid literal for int()"),
    ],
)
def test_an_error_in_a_plugins_metric_source_ends_the_run_and_names_it(
    zeusrun, install, body, error
):
    module = BAD_SOURCE.format(body)
    site = install("[zeusrun.metric_sources]\nbad = largest_policy:Source\n", module=module)
    done = zeusrun("submit", zeusrun.job(metrics={"source": "bad"}), PYTHONPATH=str(site))
    message = f"the metric source 'bad' (largest_policy:Source, of the package zeusrun-largest) failed in read: {error}"
    assert (done.returncode, message in done.stderr) == (2, True)
    (trial,) = zeusrun.history()
    assert (trial["status"], message in trial["reason"]) == ("FAILED", True)
    assert processes_of_run(trial["run_dir"]) == set()


@pytest.mark.long  # a submit
def test_a_plugins_metric_source_that_cannot_be_read_is_named_in_a_warning(zeusrun, install):
    module = BAD_SOURCE.format("raise OSError('the server is away')")
    site = install("[zeusrun.metric_sources]\nbad = largest_policy:Source\n", module=module)
    done = zeusrun("submit", zeusrun.job(metrics={"source": "bad"}), PYTHONPATH=str(site))
    assert done.returncode == 0
    (trial,) = zeusrun.history()
    named = "the metric source 'bad' cannot be read: the server is away; zeusrun tries again"
    assert trial["warnings"] == [named]


@pytest.mark.parametrize(
    ("part", "failure"),
    [("start", r"the plugin 'bad' .* failed"), ("warnings", "failed in warnings")],
)
def test_every_part_of_a_plugins_metric_source_is_checked(install, tmp_path, part, failure):
    module = """
class Source:
    def __init__(self, run_dir):
        if PART == "start":
            1 / 0

    def read(self, *, final=False):
        return []

    @property
    def warnings(self):
        return (1 / 0 for _ in range(1))
"""
    install("[zeusrun.metric_sources]\nbad = largest_policy:Source\n", f"PART = {part!r}\n{module}")
    with pytest.raises(UsageError, match=f"{failure}: ZeroDivisionError"):
        [
            source.warnings
            for source in open_sources(
                SourceContext(tmp_path, tmp_path, Metrics.model_construct(source="bad"))
            ).values()
        ]


def test_a_metric_source_that_is_gone_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"metrics.source 'gone': no installed plugin has"):
        open_sources(SourceContext(tmp_path, tmp_path, Metrics.model_construct(source="gone")))


@pytest.mark.parametrize(
    ("group", "changes"),
    [
        ("policies", {"policy": {"name": "quits"}}),
        ("metric_sources", {"metrics": {"source": "quits"}}),
        ("devices", {"launch": {"nproc_per_node": "quits"}}),
        ("histories", {}),
    ],
)
@pytest.mark.parametrize("end", ["sys.exit(9)", "raise GeneratorExit"])
def test_a_plugin_that_ends_the_process_at_its_import_is_named(
    zeusrun, install, group, changes, end
):
    site = install(f"[zeusrun.{group}]\nquits = largest_policy:it\n", f"import sys\n{end}")
    variables = {"ZEUSRUN_HISTORY": "quits"} if group == "histories" else {}
    variables["PYTHONPATH"] = f"{FAKE_TORCHRUN}:{site}"
    done = zeusrun("submit", zeusrun.job(**changes), **variables)
    assert done.returncode == 2
    named = "the plugin 'quits' (largest_policy:it, of the package zeusrun-largest) failed: "
    assert f"zeusrun: {named}" in done.stderr
    assert "bug" not in done.stderr


LATE = """
import sys

from zeusrun.energy.cpu import cpu_device
from zeusrun.history.tinydb.store import TinyDBHistory


class Forgetful(TinyDBHistory):
    def snapshot(self, *arguments):
        return {}["oops"]


class Quits:
    def __init__(self, *arguments):
        self.warnings = ()
        self.device = cpu_device({})

    def read(self, *, final=False):
        sys.exit(9)

    def __getattr__(self, name):
        if name == "read_power_w":
            sys.exit(9)
        return getattr(self.device, name)


def devices(environment):
    return [Quits()]
"""


@pytest.mark.parametrize(
    ("entry", "changes", "message"),
    [
        (
            "[zeusrun.histories]\nlate = largest_policy:Forgetful\n",
            {},
            "the plugin 'late' (largest_policy:Forgetful, of the package zeusrun-largest) failed: KeyError: 'oops'",
        ),
        (
            "[zeusrun.metric_sources]\nlate = largest_policy:Quits\n",
            {"metrics": {"source": "late"}},
            "the metric source 'late' (largest_policy:Quits, of the package zeusrun-largest) failed in read: SystemExit: 9",
        ),
        (
            "[zeusrun.devices]\nlate = largest_policy:devices\n",
            {"launch": {"nproc_per_node": "late"}},
            "the plugin 'late' (largest_policy:devices, of the package zeusrun-largest) failed: SystemExit: 9",
        ),
    ],
)
def test_a_plugin_that_fails_later_is_named_and_ends_zeusrun_with_2(
    zeusrun, install, entry, changes, message
):
    variables = {"ZEUSRUN_HISTORY": "late"} if "histories" in entry else {}
    variables["PYTHONPATH"] = f"{FAKE_TORCHRUN}:{install(entry, module=LATE)}"
    done = zeusrun("submit", zeusrun.job(**changes), **variables)
    assert done.returncode == 2, done.stderr
    assert f"zeusrun: {message}; repair or uninstall that package\n" in done.stderr
    assert "bug" not in done.stderr


DAMAGE = {
    "not_utf8": {"entry_points.txt": b"[pydantic]\nbroken = \xff\xfe:it\n"},
    "no_value": {"entry_points.txt": b"[pydantic]\nnothing\n"},
    "no_metadata": {"METADATA": None, "entry_points.txt": b"\xff"},
    "no_name": {"METADATA": b"Metadata-Version: 2.1\n", "entry_points.txt": b"\xff"},
    "bad_metadata": {"METADATA": b"\xff\xfe\0\1"},
    "bad_record": {"RECORD": b'\xff"\0,,'},
    "quits": {"entry_points.txt": b"[pydantic]\nplugin = quits:it\n"},
}
"""Packages that zeusrun does not need. What they lack here is as pip writes it."""

DAMAGED = ["not-utf8", "no-value", "no_metadata-1.0.dist-info", "no_name-1.0.dist-info"]


@pytest.fixture
def damaged(tmp_path):
    """Return a ``PYTHONPATH`` with damaged packages."""
    site = tmp_path / "damaged"
    for package, files in DAMAGE.items():
        folder = site / f"{package}-1.0.dist-info"
        folder.mkdir(parents=True)
        name = package.replace("_", "-").encode()
        usual = {
            "METADATA": b"Metadata-Version: 2.1\nName: %s\nVersion: 1.0\n" % name,
            "entry_points.txt": b"[some.group]\nname = module:it\n",
        }
        for file, content in (usual | files).items():
            if content is not None:
                (folder / file).write_bytes(content)
    (site / "quits.py").write_text("import sys\nsys.exit(9)\n")
    return f"{FAKE_TORCHRUN}:{site}"


@pytest.mark.parametrize("verb", [["--help"], ["validate", "JOB"], ["submit", "JOB", "--quiet"]])
def test_damaged_packages_that_nobody_asked_for_change_no_command(zeusrun, damaged, verb):
    job = str(zeusrun.job())
    done = zeusrun(*[job if word == "JOB" else word for word in verb], PYTHONPATH=damaged)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_search_for_a_plugin_finds_it_beside_damaged_packages(zeusrun, install, damaged):
    site = install(POLICY)
    job = zeusrun.job(policy={"name": "largest"})
    done = zeusrun("submit", job, "--dry-run", PYTHONPATH=f"{damaged}:{site}")
    assert (done.returncode, "the largest" in done.stdout, done.stderr) == (0, True, "")


def test_doctor_lists_damaged_packages(zeusrun, damaged):
    done = zeusrun("doctor", "--json", PYTHONPATH=damaged)
    found = [check["found"] for check in json.loads(done.stdout) if check["name"] == "package"]
    assert sorted(text.partition(":")[0] for text in found) == sorted(DAMAGED)


def test_the_tables_of_a_database_are_made_beside_damaged_packages(zeusrun, damaged, tmp_path):
    url = f"sqlite:///{tmp_path / 'history.db'}"
    done = zeusrun("db", "create", "--database-url", url, PYTHONPATH=damaged)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_entry_point_into_zeusrun_itself_takes_no_blame_for_how_zeusrun_ends(zeusrun, install):
    site = install("[zeusrun.policies]\nalias = zeusrun.bandit.baselines:Grid\n")
    job = zeusrun.job(policy={"name": "alias"})
    done = zeusrun("submit", job, PYTHONPATH=f"{FAKE_TORCHRUN}:{site}")
    assert "repair or uninstall" not in done.stderr
    assert done.returncode != 2, done.stderr
