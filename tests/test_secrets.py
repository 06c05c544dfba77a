"""Secrets of a job: which they are, and that nothing that is shown or recorded holds one."""

from __future__ import annotations

import json
import locale
import os
import secrets
import stat

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.factories import CHILDREN
from zeusrun.errors import JobFileError
from zeusrun.jobfile.placeholders import expand_placeholders
from zeusrun.jobfile.schema import spec_json_schema
from zeusrun.jobfile.secrets import find_secrets, is_secret_name, mask_words
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.events import BoundChanged, Noted, Printed, Warned
from zeusrun.launcher.redact import (
    copy_job,
    mask_events,
    mask_job,
    mask_outcome,
    mask_run,
    restore_secrets,
)
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.redaction import Mask
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
        "api-key",
        "wandb-token",
        "auth",
        "MODAL_TOKEN_SECRET",
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
        "tokenizer",
        "max-tokens",
        "num-tokens",
        "token-dim",
        "pad-token",
        "eos_token_id",
        "num-key-value-heads",
        "image-key",
        "use-auth-token",
        "SSH_AUTH_SOCK",
        "HF_TOKEN_PATH",
        "author",
    ],
)
def test_these_are_not(name):
    assert not is_secret_name(name)


GITHUB = f"ghp_{'Ab1' * 12}"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key=abc", "x"], ["--api-key=***", "x"]),
        (["--wandb-token", "abc", "x"], ["--wandb-token", "***", "x"]),
        (["--login.password", "a b", "x"], ["--login.password", "***", "x"]),
        (["+wandb.api_key=abc"], ["+wandb.api_key=***"]),
        (["--api-key", "Zm9v=="], ["--api-key", "***"]),
        (["--key=key"], ["--***=***"]),
        (["--db", "postgres://me:p@ss@host/x"], ["--db", "postgres://me:***@host/x"]),
        (["--hook=https://host/x?a=b&token=abc"], ["--hook=https://host/x?a=b&token=***"]),
        ([GITHUB, f"--x={GITHUB}"], ["***", "--x=***"]),
        ([f"sk-proj-{GITHUB}"], ["***"]),
        (["AKIAIOSFODNN7EXAMPLE"], ["***"]),
        (["--header", "Authorization: Bearer abc"], ["--header", "Authorization: Bearer ***"]),
        (["--exec", "run --token abc -v"], ["--exec", "run --token *** -v"]),
        (["--token", "hunter22", "--name", "by-hunter22"], ["--token", "***", "--name", "by-***"]),
        (["HF_TOKEN=abc", "python"], ["HF_TOKEN=***", "python"]),
        (["--dsn", "https://0123456789abcdef@host/1"], ["--dsn", "https://***@host/1"]),
        (["--config", '{"api_key": "abc", "lr": 1}'], ["--config", '{"api_key": "***", "lr": 1}']),
        (["--db", "Server=h;Password=abc;User=u"], ["--db", "Server=h;Password=***;User=u"]),
    ],
)
def test_these_arguments_are_secret(words, shown):
    assert mask_words(words) == shown


@pytest.mark.parametrize(
    "words",
    [
        ["--tokenizer", "bert-base", "--max-tokens", "500", "--num-tokens=5"],
        ["--token", "--verbose"],
        ["--use-auth-token", "data"],
        ["--auth=true", "--password", "None"],
        ["--token=${trial}", "wandb.api_key=$${oc.env:WANDB_API_KEY}"],
        ["--url", "http://host:8080/a@b", "s3://bucket/a:b", "git+ssh://git@host/x"],
        ["--url", "https://somebody@host/x", "--text", '{"max_tokens": 5, "key": "id"}'],
        ["--model", "sk-learn-gradient-boosting-classifier", "hf_model", "0123456789abcdef" * 3],
        ["--text", "the key is under the mat"],
        ["-5", "--", "--=x", ""],
    ],
)
def test_these_arguments_are_not(words):
    assert find_secrets(words) == {}


def test_a_marker_says_what_a_name_does_not(job_file):
    spec = load_spec(
        job_file(f'env: {{DB_URL: {{secret: "{URL}"}}, EOS_TOKEN: {{plain: "<eos>"}}, A: b}}\n')
    )
    assert dict(spec.env) == {"DB_URL": URL, "EOS_TOKEN": "<eos>", "A": "b"}
    assert spec.secrets.keys() == {("env", "DB_URL")}


def test_a_number_may_be_secret(job_file):
    spec = load_spec(job_file("env: {PIN: {secret: 010}}\n"))
    assert (spec.env["PIN"], {*spec.secrets}) == ("010", {("env", "PIN")})


@pytest.mark.parametrize(
    "value",
    [
        "{secret: [a]}",
        "{secret: null}",
        "{}",
        "{secret: a, plain: b}",
        "{public: a}",
        "{secret: {}}",
        "{secret_file: [a]}",
    ],
)
def test_a_marker_of_another_form_is_an_error_with_its_line(job_file, value):
    for text, key in ((f"env: {{URL: {value}}}", r"env\.URL"), (f"args: [{value}]", r"args\[0\]")):
        with pytest.raises(JobFileError, match=rf"job.yaml:6: '{key}") as caught:
            load_spec(job_file(f"{text}\n"))
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
    "args",
    [
        f"[--api-key, {TOKEN}$x]",
        f"[--api-key={TOKEN}$x]",
        f'["--api-key {TOKEN}$x"]',
        f'["postgres://me:{TOKEN}@$x"]',
        f'[{{secret: "{TOKEN}\\0"}}]',
        f"[{{secret: {TOKEN}, plain: x}}]",
        f"[--api-key: {TOKEN}]",
        f"{{--api-key: {TOKEN}}}",
        f"--api-key {TOKEN}",
        f"[--api-key, [{TOKEN}]]",
        f"[{{secret_file: {TOKEN}}}]",
        f"[{{secret_file: 'https://me:{TOKEN}@host/'}}]",
    ],
)
def test_no_error_quotes_a_secret_argument(job_file, args):
    path = job_file(f"args: {args}\n")
    for overrides in ([], [f"args={args}"]):
        with pytest.raises(JobFileError, match="args") as caught:
            load_spec(path, overrides)
        assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        *(f"env.HF_TOKEN={TOKEN}$", f"env={{HF_TOKEN: {TOKEN}$}}", f"env.A.B={TOKEN}'"),
        *(f"env.{TOKEN}", f"args: {TOKEN}", f"args[0]={TOKEN}", f"arg=[--key, {TOKEN}]"),
        *(f"envs.HF_TOKEN={TOKEN}", f"HF_TOKEN={TOKEN}", f"env.HF_TOKEN=!{TOKEN}"),
    ],
)
def test_no_error_quotes_an_override_of_env(job_file, override):
    with pytest.raises(JobFileError) as caught:
        load_spec(job_file("env: {HF_TOKEN: x}\n"), [override])
    assert TOKEN not in str(caught.value)


def test_the_repr_of_a_job_shows_no_environment(job_file):
    text = f"env: {{HF_TOKEN: {TOKEN}}}\nargs: [--api-key, {TOKEN}]\n"
    assert TOKEN not in repr(load_spec(job_file(text)))


def test_the_schema_knows_the_markers():
    keys = spec_json_schema()["properties"]
    for items in (keys["args"]["items"], keys["env"]["additionalProperties"]):
        _, marked = items["anyOf"]
        assert [*marked["properties"]] == ["secret", "secret_file", "plain"]
        assert (marked["minProperties"], marked["maxProperties"]) == (1, 1)
        assert not marked["additionalProperties"]


SECRET_FILE = "args: [--api-key, {secret_file: key}]\nenv: {KEY: {secret_file: ./key}}\n"


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
@example("a\r")
def test_what_a_file_contains_reaches_the_script_as_it_is(tmp_path_factory, text):
    assume(text != "\r")  # of the end of a line alone, nothing is left
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").touch()
    (folder / "job.yaml").write_text(MINIMAL + SECRET_FILE, encoding="utf-8")
    (folder / "key").write_text(f"{text}\n", encoding="utf-8", newline="\n")
    spec = load_spec(folder / "job.yaml")
    texts = (spec.args[1], spec.env["KEY"])
    assert [expand_placeholders(each, {}) for each in texts] == [text.removesuffix("\r")] * 2


RANDOM = st.text("abcXYZ0189!%&'\"\\\\:=/+$@ -é\n", min_size=6, max_size=30).filter(
    lambda text: len(text.strip()) >= 6 and text not in MINIMAL and text[0] not in "-\n"
)


@settings(max_examples=25)
@given(secret=RANDOM, marked=st.booleans(), others=st.lists(st.sampled_from(["{}", "x={}", "--y"])))
def test_no_copy_of_a_job_and_nothing_that_is_shown_of_it_holds_a_secret(
    tmp_path_factory, secret, marked, others
):
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").touch()
    written = secret.replace("$", "$$")
    texts = [json.dumps(other.format(written), ensure_ascii=False) for other in others]
    own = json.dumps(written, ensure_ascii=False)
    args = [*texts, "--api-key", f"{{secret: {own}}}" if marked else own, *texts]
    env = f"env: {{A: {own}, B: x}}\n"
    (folder / "job.yaml").write_text(f"{MINIMAL}args: [{', '.join(args)}]\n{env}", encoding="utf-8")
    spec = load_spec(folder / "job.yaml")
    assert spec.args[len(texts) + 1] == written
    (folder / "copy.yaml").write_text(spec.to_yaml(), encoding="utf-8")
    copy = load_spec(folder / "copy.yaml")
    for job in (copy, spec.masked(), copy.masked()):
        for text in (*job.args, *job.env.values()):
            assert written.strip() not in text
            assert secret.strip() not in text
    assert written.strip() not in repr(spec)
    assert copy.to_yaml() == spec.to_yaml()


def test_only_one_line_break_at_the_end_of_a_file_is_left_out(job_file, tmp_path):
    for content, text in ((b"abc", "abc"), (b"a\nb\r\n", "a\nb"), (b" abc \n\n", " abc \n")):
        (tmp_path / "key").write_bytes(content)
        assert load_spec(job_file(SECRET_FILE)).args[1] == text


def test_a_file_of_a_secret_is_found_from_the_job_file_or_the_home_directory(
    job_file, tmp_path, monkeypatch
):
    home = tmp_path / "me"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (home / "key").write_text("of home")
    (tmp_path / "key").write_text("beside")
    (tmp_path / "link").symlink_to("key")  # as Kubernetes mounts secrets
    text = "args: [{secret_file: ~/key}, {secret_file: me/../key}, {secret_file: link}]\n"
    assert load_spec(job_file(text)).args == ("of home", "beside", "beside")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "which does not exist"),
        (lambda path: path.mkdir(), "which is not a regular file"),
        (os.mkfifo, "which is not a regular file"),
        (lambda path: path.write_bytes(b"\n"), "which is empty"),
        (lambda path: path.write_bytes(b"x" * (64 * 1024 + 1)), "which is larger than 64 KiB"),
        (lambda path: path.write_bytes(b"sekret\xff"), "which is not UTF-8 text"),
        (lambda path: path.write_bytes(b"sekret\0"), "which contains a NUL character"),
        (lambda path: path.symlink_to(path), "which cannot be read: Too many levels of symbolic"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_the_line_and_what_to_do(
    cli, job_file, tmp_path, make, why
):
    make(tmp_path / "key")
    job = job_file("args: [--api-key,\n  {secret_file: ./key}]\n")
    code, out, err = cli("validate", job)
    assert (code, out) == (2, "")
    assert f"{job}:7: 'args[1].secret_file' names {tmp_path}/key, {why}" in err
    assert f"; write it with  install -D -m 600 /dev/stdin {tmp_path}/key\n" in err
    assert err.count("\n") == 1
    assert "sekret" not in err


@pytest.mark.parametrize("readable", ["key", "job.yaml"])
def test_a_file_with_a_secret_that_others_can_read_is_a_warning(cli, job_file, tmp_path, readable):
    (tmp_path / "key").write_text("sekret")
    job = job_file("args: [{secret_file: key}, {secret: other secret}]\n")
    for name in ("key", "job.yaml"):
        (tmp_path / name).chmod(0o644 if name == readable else 0o600)
    code, _, err = cli("validate", job)
    path = tmp_path / readable
    told = f"other users can read {path}, which contains a secret; run  chmod 600 {path}\n"
    assert (code, err.count("other users"), told in err) == (0, 1, True)


def test_plain_arguments_are_not_secret_and_stay_so_in_a_copy(masked):
    spec, copy = masked('args: [--token, {plain: greedy}, "--key=x", --y, {secret: "--key=z"}]\n')
    assert spec.args == ("--token", "greedy", "--key=x", "--y", "--key=z")
    assert copy.args == ("--token", "greedy", "***", "--y", "***")
    assert {*copy.secrets} == {*spec.secrets} == {("args", 2), ("args", 4)}


def test_a_copy_reads_the_files_of_secrets_again_from_anywhere(masked, tmp_path):
    (tmp_path / "key").write_text("sekret1")
    spec, copy = masked(SECRET_FILE)
    assert "sekret" not in spec.to_yaml()
    assert (copy.args, dict(copy.env)) == (spec.args, dict(spec.env))
    assert restore_secrets(copy, {}) is copy
    (tmp_path / "key").write_text("sekret2")
    assert load_spec(copy.source).args[1] == "sekret2"


def test_a_job_as_it_is_shown_keeps_its_placeholders(job_file):
    spec = load_spec(job_file('args: [--key, batch_size, --bs, "${batch_size}"]\n'))
    assert spec.masked().args == ("--key", "***", "--bs", "${batch_size}")


def test_the_mask_of_a_job_knows_a_part_of_a_marked_argument(job_file):
    spec = load_spec(job_file('args: [{secret: "wandb.api_key=sekret"}]\n'))
    assert mask_job(spec, {}).text("the key is sekret") == "the key is ***"


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
    secret = {("env", "HF_TOKEN"), ("env", "DB_URL"), ("args", 1)}
    assert copy.secrets.keys() == spec.secrets.keys() == secret
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
    with pytest.raises(JobFileError, match=r"in place of args\[1\]; submit the original job file"):
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


@pytest.fixture
def ascii_locale():
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    yield
    locale.setlocale(locale.LC_CTYPE, before)


def test_the_mask_of_a_run_is_the_same_whatever_the_locale(job_file, tmp_path, ascii_locale):
    spec = load_spec(job_file(f"env: {{HF_TOKEN: {TOKEN}, TITLE: Café}}\n"))
    paths = RunPaths(tmp_path / "run")
    paths.run_dir.mkdir()
    paths.job_copy.write_bytes(copy_job(spec))
    assert mask_run(paths, {}).text(f"a {TOKEN} of a café") == "a *** of a café"


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


def test_no_event_holds_a_secret():
    said, mask = [], Mask((TOKEN,))
    shown = mask_events(said.append, mask)
    for event in (Noted(f"a {TOKEN}", needed=True), Warned(TOKEN), Printed(1, ("x", TOKEN))):
        shown(event)
    shown(BoundChanged(3.0))
    assert said == [
        *(Noted("a ***", needed=True), Warned("***"), Printed(1, ("x", "***")), BoundChanged(3.0)),
    ]
    assert mask_events(print, Mask()) is print


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
    assert records_with(TOKEN, everything_written(zeusrun.home)) == set()


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


@pytest.fixture
def with_arguments(zeusrun):
    """Return what writes a job with a random secret in a file, and one in its arguments."""

    def write(*more, **changes):
        random, known = (f"%{secrets.token_urlsafe(9)}'$\\" for _ in range(2))
        (zeusrun.folder / "key").write_text(f"{random}\n")
        (zeusrun.folder / "key").chmod(0o600)
        args = ["--api-key", {"secret_file": "key"}, {"secret": known.replace("$", "$$")}, *more]
        args.append(f"--password={known.replace('$', '$$')}")
        zeusrun.job("tells_its_arguments.py", args=args, attempts=1, **changes)
        (zeusrun.folder / "job.yaml").chmod(0o600)
        return random, known

    return write


def shown_of(zeusrun, commands):
    """Return what commands of one job print; they succeed."""
    done = {command: zeusrun(*command) for command in commands}
    assert {command: each.stderr for command, each in done.items() if each.returncode} == {}
    return "\n".join(each.stdout + each.stderr for each in done.values())


OF_A_RUN = [
    ("show", "job"),
    ("show", "job", "--json"),
    ("history", "--json"),
    ("logs", "job"),
    ("logs", "job", "--json"),
]


def check_hidden(zeusrun, found, shown):
    """Check that secrets are in no file of the home but those of the ranks, and are not shown."""
    log, files = zeusrun("logs", "job", "--raw").stdout, everything_written(zeusrun.home)
    for secret in found:
        assert f"word {secret} " in log
        assert records_with(secret, files) == set()
        for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], secret[:12]):
            assert form not in shown
    assert "word *** *** " in shown


def test_secret_arguments_reach_the_script_and_nothing_else_but_its_logs(zeusrun, with_arguments):
    found = with_arguments()
    done = zeusrun("submit", "job.yaml", "--json")
    assert done.returncode == 0, done.stderr
    shown = shown_of(
        zeusrun,
        [
            *OF_A_RUN,
            ("status", "--json"),
            ("show", "job", "--metrics"),
            ("explain", "job"),
            ("explain", "job.yaml"),
            ("validate", "job.yaml"),
            ("submit", "job.yaml", "--dry-run"),
            ("submit", "job.yaml", "--dry-run", "--json"),
            ("report", "job", "--format", "json"),
            ("report", "job.yaml"),
            ("export", "job", "--format", "prometheus"),
        ],
    )
    shown += zeusrun("simulate", "job.yaml", "--set", "objective.eta_knob=0.6").stderr
    shown += (zeusrun.folder / "report.html").read_text()
    check_hidden(zeusrun, found, done.stdout + done.stderr + shown)
    written = [zeusrun.run_dir() / "job.yaml", *zeusrun.run_dir().glob("logs/**/*.log")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}


@pytest.mark.parametrize("fault", ["raise", "fail"])
def test_a_script_that_fails_with_its_arguments_shows_no_secret(zeusrun, with_arguments, fault):
    found = with_arguments(fault)
    done = zeusrun("submit", "job.yaml", "--json")
    assert done.returncode == 3, done.stderr
    check_hidden(zeusrun, found, done.stdout + done.stderr + shown_of(zeusrun, OF_A_RUN))


def test_a_submit_like_a_past_run_reads_the_file_of_a_secret_again(zeusrun, with_arguments):
    with_arguments()
    job = zeusrun.job("tells_its_arguments.py", args=["--api-key", {"secret_file": "key"}])
    assert zeusrun("submit", job).returncode == 0
    (zeusrun.folder / "key").write_text("another one")
    (zeusrun.folder / "job.yaml").unlink()
    done = zeusrun("submit", "--like", "job-1-1", "--json")
    assert done.returncode == 0, done.stderr
    assert "another one" not in done.stdout + done.stderr
    assert "'--api-key', 'another one']" in zeusrun("logs", "job-2-1", "--raw").stdout
    (zeusrun.folder / "key").unlink()
    gone = zeusrun("submit", "--like", "job-1-1")
    assert gone.returncode == 2
    assert f"names {zeusrun.folder}/key, which does not exist" in gone.stderr


@pytest.mark.long  # three submits
def test_a_submit_like_a_past_run_of_a_job_with_a_secret_in_its_arguments_says_what_to_do(
    zeusrun, with_arguments
):
    with_arguments()
    assert zeusrun("submit", "job.yaml").returncode == 0
    done = zeusrun("submit", "--like", "job-1-1")
    assert done.returncode == 2
    assert "has *** in place of args[2], args[3]; submit the original job file." in done.stderr
    given = ("--set", f"args=[--api-key, {{secret_file: {zeusrun.folder}/key}}]")
    assert zeusrun("submit", "--like", "job-1-1", *given).returncode == 0


def test_a_schedule_without_a_variable_of_the_user_reads_the_file_of_a_secret(
    zeusrun, with_arguments
):
    random, _ = with_arguments()
    bare = {"PATH": str(zeusrun.folder / "nothing")}
    added = zeusrun("schedule", "add", "job.yaml", "@yearly", **bare)
    assert added.returncode == 0, added.stderr
    done = zeusrun("schedule", "run-now", "job", **bare)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"word {random} " in zeusrun("logs", "job", "--raw").stdout
    assert records_with(random, everything_written(zeusrun.home)) == set()
    assert random not in added.stdout + done.stdout + done.stderr
