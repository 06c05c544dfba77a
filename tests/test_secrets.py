"""Secrets of a job: which they are, and that nothing that is shown or recorded holds one."""

from __future__ import annotations

import json

import pytest

from tests.factories import CHILDREN
from zeusrun.errors import JobFileError
from zeusrun.jobfile.secrets import is_secret_name
from zeusrun.jobfile.spec import load_spec, spec_json_schema
from zeusrun.launcher.redact import copy_job, mask_job, mask_outcome, mask_run, restore_secrets
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.trial import Outcome, TrialStatus

TOKEN, URL = "hf_Zm9vYmFyYmF6", "postgres://me:s3cr3t@db/runs"
MINIMAL = """
name: digits
script: train.py
objective: {metric: acc, target: 0.9}
batch_size: {candidates: [64]}
"""


@pytest.fixture
def job_file(tmp_path):
    def write(text):
        (tmp_path / "train.py").touch()
        path = tmp_path / "job.yaml"
        path.write_text(MINIMAL + text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "hf_token",
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "PGPASSWORD",
        "DB_PASS",
        "MYSQL_PWD",
        "KEY_PASSPHRASE",
        "AZURE_CREDENTIALS",
        "OPENAI_APIKEY",
        "PASSWD",
        "SECRETS",
        "githubToken",
    ],
)
def test_these_names_are_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "MAX_TOKENS",
        "KEYBOARD",
        "MONKEY",
        "PWD",
        "BYPASS_CACHE",
        "SECRETARY",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "COMPASS",
    ],
)
def test_these_are_not(name):
    assert not is_secret_name(name)


def test_a_marker_says_what_a_name_does_not(job_file):
    spec = load_spec(
        job_file(f'env: {{DB_URL: {{secret: "{URL}"}}, EOS_TOKEN: {{plain: "<eos>"}}, A: b}}\n')
    )
    assert dict(spec.env) == {"DB_URL": URL, "EOS_TOKEN": "<eos>", "A": "b"}
    assert spec.secrets == {"DB_URL"}


def test_a_number_may_be_secret(job_file):
    spec = load_spec(job_file("env: {PIN: {secret: 010}}\n"))
    assert (spec.env["PIN"], spec.secrets) == ("010", {"PIN"})


@pytest.mark.parametrize(
    "value",
    [
        "{secret: [a]}",
        "{secret: null}",
        "{}",
        "{secret: a, plain: b}",
        "{public: a}",
        "{secret: {}}",
    ],
)
def test_a_marker_of_another_form_is_an_error_with_its_line(job_file, value):
    with pytest.raises(JobFileError, match=r"job.yaml:6: 'env.URL") as caught:
        load_spec(job_file(f"env: {{URL: {value}}}\n"))
    assert len(str(caught.value).splitlines()) == 1


def test_secrets_is_no_key_of_a_job_file(job_file):
    with pytest.raises(JobFileError, match="unknown key 'secrets'"):
        load_spec(job_file("secrets: [A]\n"))


@pytest.mark.parametrize("text", [f"{TOKEN}$x", f"{TOKEN}\\0", f"${{{TOKEN}}}"])
def test_no_error_quotes_a_secret(job_file, text):
    path = job_file(f'env: {{HF_TOKEN: "{text}"}}\n')
    with pytest.raises(JobFileError, match=r"'env\.HF_TOKEN' cannot be used") as caught:
        load_spec(path)
    assert TOKEN not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "override", [f"env.HF_TOKEN={TOKEN}$", f"env={{HF_TOKEN: {TOKEN}$}}", f"env.A.B={TOKEN}'"]
)
def test_no_error_quotes_an_override_of_env(job_file, override):
    with pytest.raises(JobFileError) as caught:
        load_spec(job_file("env: {HF_TOKEN: x}\n"), [override])
    assert TOKEN not in str(caught.value)


def test_the_repr_of_a_job_shows_no_environment(job_file):
    assert TOKEN not in repr(load_spec(job_file(f"env: {{HF_TOKEN: {TOKEN}}}\n")))


def test_the_schema_knows_the_markers():
    _, secret, plain = spec_json_schema()["properties"]["env"]["additionalProperties"]["anyOf"]
    assert set(secret["properties"]) == {"secret"}
    assert set(plain["properties"]) == {"plain"}
    assert secret["additionalProperties"] is plain["additionalProperties"] is False


@pytest.fixture
def masked(job_file, tmp_path):
    """Return a job and its masked copy, as a run directory has it."""

    def load(text):
        spec = load_spec(job_file(text))
        path = tmp_path / "copy.yaml"
        path.write_text(spec.to_yaml(), encoding="utf-8")
        return spec, load_spec(path)

    return load


SECRETIVE = (
    f'args: [--url, "{URL}"]\n'
    f'env: {{HF_TOKEN: {TOKEN}, DB_URL: {{secret: "{URL}"}}, PAD_TOKEN: {{plain: "<pad>"}}}}\n'
)


def test_a_copy_holds_masks_and_is_still_the_job(masked):
    spec, copy = masked(SECRETIVE)
    assert TOKEN not in spec.to_yaml()
    assert URL not in spec.to_yaml()
    assert dict(copy.env) == {"HF_TOKEN": "***", "DB_URL": "***", "PAD_TOKEN": "<pad>"}
    assert copy.args == ("--url", "***")
    assert copy.secrets == spec.secrets == {"HF_TOKEN", "DB_URL"}
    assert copy.to_yaml() == spec.to_yaml()


def test_masked_values_are_taken_from_the_environment(masked):
    spec, copy = masked(f"env: {{HF_TOKEN: {TOKEN}, PASSWORD: a$$b, A: c}}\n")
    again = restore_secrets(copy, {"HF_TOKEN": TOKEN, "PASSWORD": "a$b", "A": "other"})
    assert dict(again.env) == dict(spec.env)


def test_masked_values_that_are_nowhere_are_an_error_that_names_them(masked):
    _, copy = masked(f"env: {{HF_TOKEN: {TOKEN}, PASSWORD: abcdef}}\n")
    with pytest.raises(JobFileError, match=r"copy\.yaml.* in place of PASSWORD; set it in the en"):
        restore_secrets(copy, {"HF_TOKEN": TOKEN})


def test_an_argument_that_held_a_secret_cannot_be_restored(masked):
    _, copy = masked(SECRETIVE)
    with pytest.raises(JobFileError, match="in place of a secret in an argument or another"):
        restore_secrets(copy, {"HF_TOKEN": TOKEN, "DB_URL": URL})


def test_a_job_that_was_never_masked_needs_no_environment(masked):
    spec, _ = masked(SECRETIVE)
    assert restore_secrets(spec, {}) is spec


def test_the_mask_of_a_job_knows_what_the_script_gets(job_file):
    spec = load_spec(job_file("env: {HF_TOKEN: '${trial}$$abc'}\n"))
    mask = mask_job(spec, {"trial": "digits-1-1"})
    assert mask.text("got digits-1-1$abc") == "got ***"


def test_the_mask_of_a_run_hides_what_stands_around_a_placeholder(job_file, tmp_path):
    spec = load_spec(job_file('env: {DB_URL: {secret: "postgres://me:s3cr$$t@db/${trial}"}}\n'))
    paths = RunPaths(tmp_path / "run")
    paths.run_dir.mkdir()
    paths.job_copy.write_bytes(copy_job(spec))
    text = mask_run(paths, {}).text("connected to postgres://me:s3cr$t@db/digits-1-1")
    assert text == "connected to ***digits-1-1"


@pytest.mark.parametrize("first", ["# copied from 5", "# copied from null", "# copied from [1]"])
def test_a_copy_that_a_script_has_changed_masks_what_it_can(tmp_path, first):
    paths = RunPaths(tmp_path)
    paths.job_copy.write_text(f"{first}\nenv: {{HF_TOKEN: '***'}}\n")
    assert mask_run(paths, {"HF_TOKEN": TOKEN}).text(f"a {TOKEN}") == "a ***"


def test_an_outcome_holds_no_secret_in_any_of_its_texts(job_file):
    spec = load_spec(job_file(f"env: {{HF_TOKEN: {TOKEN}}}\n"))
    outcome = Outcome(
        TrialStatus.FAILED,
        f"rank 0: KeyError: {TOKEN[:-2]}",  # cut off
        "now",
        warnings=(f"{TOKEN} outlived the training",),
    )
    found = mask_outcome(outcome, mask_job(spec, {}))
    assert found.reason == "rank 0: KeyError: ***"
    assert found.warnings == ("*** outlived the training",)


TELLS_ALL = CHILDREN / "tells_its_secrets.py"


@pytest.fixture
def secretive(zeusrun):
    def write(**changes):
        env = {"HF_TOKEN": TOKEN, "DB_URL": {"secret": URL}, **changes.pop("env", {})}
        return zeusrun.job(TELLS_ALL.name, env=env, **changes)

    return write


def everything_written(folder):
    """Return the content of all files below a folder, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def told(zeusrun, secretive):
    """Run a script that tells its secrets in every way Python has, and fails with them."""
    secretive(attempts=1)
    first = zeusrun("submit", "job.yaml", "--json")
    return first, everything_written(zeusrun.home)


WRITTEN_BY_RANKS = ("/logs/", "/error.json", "/metrics.jsonl")


def records_with(secret, files):
    """Return the files that hold a secret, apart from those that the ranks write themselves."""
    held = {name for name, content in files.items() if secret.encode() in content}
    return {name for name in held if not any(part in name for part in WRITTEN_BY_RANKS)}


def test_no_record_and_nothing_that_is_printed_holds_a_secret(zeusrun, told):
    done, files = told
    assert done.returncode == 3, done.stderr
    shown = zeusrun("show", "job").stdout + zeusrun("show", "job", "--json").stdout
    shown += zeusrun("history", "--json").stdout
    printed = zeusrun("logs", "job").stdout
    for secret in (TOKEN, URL):
        assert secret not in done.stdout + done.stderr + shown + printed
        assert records_with(secret, files) == set()
    (trial,) = json.loads(done.stdout.splitlines()[-1])["trials"]
    assert trial["reason"].endswith("ValueError: no access with ***")
    assert "ValueError: no access with ***" in shown
    for line in ("printed ***", "written ***", "logged ***", "warned ***", "to stderr ***"):
        assert line in printed
    assert "got the real ones" in printed
    assert zeusrun("logs", "job", "--json").stdout.count("***") == printed.count("***")


def test_logs_of_a_trial_are_masked_by_what_job_file_and_environment_hold_now(zeusrun, told):
    (zeusrun.folder / "job.yaml").unlink()
    assert TOKEN in zeusrun("logs", "job").stdout  # the value is nowhere any more
    by_variables = zeusrun("logs", "job", HF_TOKEN=TOKEN, DB_URL=URL).stdout
    assert "printed ***" in by_variables
    assert URL not in by_variables


def test_raw_logs_are_what_the_ranks_printed(zeusrun, told):
    assert f"printed {TOKEN}" in zeusrun("logs", "job", "--raw").stdout


def test_what_a_child_process_prints_is_masked_where_it_is_shown(zeusrun, secretive):
    done = zeusrun("submit", secretive(args=["by hand"], attempts=1))
    assert "[rank0] by hand ***" in done.stdout
    assert "exited with code 1: by hand ***" in done.stdout
    assert TOKEN not in done.stdout + done.stderr + zeusrun("show", "job").stdout


def test_what_torchrun_prints_of_a_recorded_error_is_masked_where_it_is_shown(zeusrun, secretive):
    zeusrun("submit", secretive(args=["for torchrun"], attempts=1, instrument=False))
    shown = zeusrun("show", "job").stdout
    assert TOKEN not in shown
    assert records_with(TOKEN, everything_written(zeusrun.home)) == set()


def test_a_reason_that_quotes_what_the_script_gave_holds_no_secret(secretive, zeusrun):
    code, result, seen = zeusrun.submit(secretive(args=["as a metric"]))
    assert code == 3, seen
    assert "it reported ***." in result["trials"][0]["reason"]
    assert "it has ***." in seen
    assert TOKEN not in seen + zeusrun("history", "--json").stdout


def test_a_dry_run_shows_names_and_no_values(zeusrun, secretive):
    job = secretive(args=["--url", URL])
    for arguments in ((), ("--json",)):
        done = zeusrun("submit", job, "--dry-run", *arguments)
        assert TOKEN not in done.stdout
        assert URL not in done.stdout
    plan = json.loads(done.stdout)
    assert plan["env"]["HF_TOKEN"] == plan["env"]["DB_URL"] == plan["argv"][-1] == "***"
    assert plan["env"]["ZEUSRUN_SECRETS"] == "DB_URL,HF_TOKEN"


def test_the_copy_in_the_run_directory_explains_and_runs_again_with_its_secrets(zeusrun, told):
    copy = zeusrun.run_dir() / "job.yaml"
    assert zeusrun("explain", "job").returncode == 0
    refused = zeusrun("submit", copy)
    assert refused.returncode == 2
    assert "in place of DB_URL, HF_TOKEN; set them in the environment" in refused.stderr
    again = zeusrun("submit", copy, HF_TOKEN=TOKEN, DB_URL=URL)
    assert "got the real ones" in again.stdout
    assert TOKEN not in again.stdout + again.stderr


@pytest.mark.parametrize(
    "text",
    [
        'env:\n  API_TOKEN "tok-abcdef123456"\n',
        "env: HF_TOKEN=tok-abcdef123456\n",
        'env: {"HF_TOKEN=tok-abcdef123456": x}\n',
        "env: {'API_TOKEN \"tok-abcdef123456\"': }\n",
        "env: [HF_TOKEN=tok-abcdef123456]\n",
    ],
)
def test_a_slip_of_the_pen_in_env_does_not_quote_the_secret(job_file, text):
    with pytest.raises(JobFileError, match="env") as refused:
        load_spec(job_file(text))
    assert "abcdef" not in str(refused.value)


def test_a_secret_that_stands_in_another_variable_is_masked_in_the_copy(job_file):
    env = "env: {HF_TOKEN: hf_abcdef123, EXTRA: --token hf_abcdef123}\n"
    assert "hf_abcdef123" not in load_spec(job_file(env)).to_yaml()
