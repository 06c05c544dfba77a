"""The files of a submit that is queued in Slurm, and its batch script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.factories import load_job
from zeusrun.errors import JobFileError
from zeusrun.run_on.slurm.script import _quote, build_script, limit_s

SAFE = "-P " if sys.version_info >= (3, 11) else ""


def script_of(tmp_path, home="/home", python="python3", launch=None, elastic=None, **slurm):
    """Return the script of a job in Slurm."""
    more = {} if launch is None else {"launch": launch}
    more |= {} if elastic is None else {"elastic": elastic}
    spec = load_job(tmp_path, run_on={"slurm": {"python": python, **slurm}}, **more)
    return build_script(spec, Path(home, "slurm", "ID"), Path(home))


def test_a_job_without_keys_asks_for_one_node_and_no_limit(tmp_path):
    assert script_of(tmp_path) == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=job\n"
        "#SBATCH --nodes=1\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --signal=B:USR1@32\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --output=/home/slurm/ID/output.log\n"
        "#SBATCH --requeue\n"
        "export ZEUSRUN_HOME=/home\n"
        f"cd / && exec python3 {SAFE}-m zeusrun inside slurm ID\n"
    )


WHOLE = {
    "account": 'the "a" team',
    "partition": "gpu,long",
    "qos": "high#1",
    "constraint": "[a100|h100]&ib*2",
    "gres": "gpu:4",
    "cpus_per_task": 8,
    "time": "1h",
    "requeue": False,
    "extra": ["--exclude=n7", "--exclusive", '--comment=50 % of "it" \\ ü', "--mem=0"],
    "setup": "\n#SBATCH --nodes=9\nmodule load cuda \n\tcat <<'E'\n \u2028E\nE\n\n",
    "python": "apptainer exec 'my image.sif' python3",
}


def test_each_key_is_an_option_quoted_as_sbatch_reads_it(tmp_path):
    assert script_of(tmp_path, "/a home/100%/it's", launch={"nnodes": 2}, **WHOLE) == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=job\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --cpus-per-task=8\n"
        "#SBATCH --partition=gpu,long\n"
        '#SBATCH --account="the \\"a\\" team"\n'
        '#SBATCH --qos="high#1"\n'
        "#SBATCH --gres=gpu:4\n"
        '#SBATCH --constraint="[a100|h100]&ib*2"\n'
        "#SBATCH --time=60\n"
        "#SBATCH --signal=B:USR1@32\n"
        "#SBATCH --open-mode=append\n"
        '#SBATCH --output="/a home/100%%/it\'s/slurm/ID/output.log"\n'
        "#SBATCH --no-requeue\n"
        "#SBATCH --exclude=n7\n"
        "#SBATCH --exclusive\n"
        '#SBATCH --comment="50 % of \\"it\\" \\\\ ü"\n'
        "#SBATCH --mem=0\n"
        "export ZEUSRUN_HOME='/a home/100%/it'\"'\"'s'\n"
        "set -e\n"
        "\n"
        "#SBATCH --nodes=9\n"
        "module load cuda \n"
        "\tcat <<'E'\n"
        " \u2028E\n"
        "E\n"
        f"cd / && exec apptainer exec 'my image.sif' python3 {SAFE}-m zeusrun inside slurm ID\n"
    )


def test_a_node_that_dies_does_not_end_the_job_of_an_elastic_training(tmp_path):
    job = {"launch": {"nnodes": 2, "nproc_per_node": 1}, "elastic": {"max": 2}}
    assert "#SBATCH --no-kill\n" in script_of(tmp_path, **job)


def test_the_lines_of_setup_reach_the_shell_as_they_are(tmp_path):
    setup = "text=$(cat <<'E'\none \u2028 two\x0cthree\nE\n)\nprintf '%s' \"$text\"; exit\n"
    script = script_of(tmp_path, setup=setup)
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout == "one \u2028 two\x0cthree"


def test_its_own_python_may_be_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/my env/bin/python")
    last = f"cd / && exec '/my env/bin/python' {SAFE}-m zeusrun inside slurm ID\n"
    assert script_of(tmp_path, python=None).endswith("\n" + last)


@pytest.mark.parametrize(
    ("asked", "seconds", "script"),
    [
        # time, timeout_s, grace_period_s; what they make; minutes, and seconds of the signal
        ((None, None, 2), None, (None, 32)),
        (("90s", None, 2), 90, (2, 32)),
        (("60s", None, 2), 60, (1, 30)),  # half of its time
        ((None, 100, 2), 100 + 32 + 60 + 600, (14, 32)),
        (("1h", 100, 10.5), 3600, (60, 41)),
    ],
)
def test_the_limit_is_that_of_the_job_or_leaves_time_around_its_timeout(
    tmp_path, asked, seconds, script
):
    (time, timeout_s, grace_s), (minutes, signal_s) = asked, script
    launch = {"nproc_per_node": 1, "grace_period_s": grace_s}
    slurm = {"python": "python3", "time": time}
    spec = load_job(tmp_path, run_on={"slurm": slurm}, timeout_s=timeout_s, launch=launch)
    assert limit_s(spec) == seconds
    script = build_script(spec, tmp_path, tmp_path)
    assert re.findall("--time=(.*)", script) == ([] if minutes is None else [str(minutes)])
    assert re.findall("B:USR1@(.*)", script) == [str(signal_s)]


def test_the_script_of_a_job_of_another_place_is_a_mistake(tmp_path):
    with pytest.raises(JobFileError, match="does not name Slurm any more"):
        build_script(load_job(tmp_path), tmp_path, tmp_path)


@pytest.mark.parametrize("word", ["", "a", "gpu:4", "a,b", "[1-2]", "50%", "a=b@c+d/e.f-g", "ü"])
def test_a_word_that_sbatch_reads_as_it_is_needs_no_quotes(word):
    assert _quote(word) == word


@pytest.mark.long
class TestSbatch:
    """Scripts, as Slurm's own parser reads them."""

    @pytest.fixture
    def read(self, cluster):
        def read(script, columns="%k"):
            held = script.replace("\n", "\n#SBATCH --hold\n", 1)
            job_id = cluster.do("sbatch", "--parsable", input=held)
            command = ["squeue", "--noheader", f"--jobs={job_id}", f"--format={columns}"]
            shown = cluster.run(*command).stdout.removesuffix("\n")
            found = (shown, cluster.field(job_id, "StdOut"))
            cluster.do("scancel", job_id)
            return found

        return read

    @given(word=st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=30))
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_quoted_word_is_one_word(self, read, word):
        script = f"#!/bin/bash\n#SBATCH --comment={_quote(word)} --nodes=1\ntrue\n"
        assert read(script, "%k|%D")[0] == f"{word}|1"

    def test_a_script_with_every_key_is_read_as_it_was_meant(self, tmp_path, read, cluster):
        home = tmp_path / "a 100% home"
        changes = {"account": None, "qos": None, "partition": "main", "constraint": None}
        changes |= {"gres": "gpu:2", "cpus_per_task": 2, "time": "61s"}
        changes["extra"] = ["--mem=0", '--comment=50 % of "it" \\ ü #']
        script = script_of(tmp_path, home, launch={"nnodes": 2}, **{**WHOLE, **changes})
        columns, output = read(script, "%j|%D|%P|%l|%k")
        assert columns == 'job|2|main|2:00|50 % of "it" \\ ü #'
        assert output == str(home / "slurm" / "ID" / "output.log").replace("%", "%%")
        cluster.do("sbatch", "--test-only", input=script)

    def test_the_output_is_in_a_home_with_a_strange_name(self, tmp_path, cluster):
        home = tmp_path / "a 100% h#me"
        (home / "slurm" / "ID").mkdir(parents=True)
        script = script_of(tmp_path, home, python="printf 'it is %s\\n'")
        job_id = cluster.do("sbatch", "--parsable", input=script)
        cluster.wait_for(job_id, "COMPLETED")
        assert "it is inside" in (home / "slurm" / "ID" / "output.log").read_text()
