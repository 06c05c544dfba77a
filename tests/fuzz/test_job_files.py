"""Bad job files and bad overrides: a job, or one error that names the place."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tests.fuzz.mutations import mutated, pieces, run_inputs
from zeusrun.errors import JobFileError
from zeusrun.jobfile.spec import load_spec


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").touch()
    return tmp_path


def load(folder, content, overrides=()):
    """Load a job file; what loads must load again from what it writes, as the same."""
    (folder / "job.yaml").write_bytes(content)
    try:
        spec = load_spec(folder / "job.yaml", overrides)
    except JobFileError as error:
        assert all(line.isprintable() for line in str(error).splitlines())
        return None
    (folder / "copy.yaml").write_text(spec.to_yaml(), encoding="utf-8")
    assert load_spec(folder / "copy.yaml").to_yaml() == spec.to_yaml()
    return spec


def test_the_corpus_holds_good_files_and_bad_ones(folder):
    loaded = [load(folder, piece) is not None for piece in pieces("job_files")]
    assert sum(loaded) == 2
    assert len(loaded) > 4


def test_any_job_file_is_a_job_or_an_error(folder):
    def job_files(content):
        load(folder, content)

    run_inputs(job_files, mutated("job_files"))


def test_any_override_is_taken_or_an_error(folder):
    (small,) = (piece for piece in pieces("job_files") if piece.startswith(b"name: digits\n"))

    def overrides(content, number):
        # As the command line hands them over: bytes that are no UTF-8 become surrogates.
        lines = content.decode("utf-8", "surrogateescape").splitlines() or [""]
        load(folder, small, [lines[number % len(lines)]])

    run_inputs(overrides, mutated("overrides"), st.integers(0, 20))


def test_no_tag_makes_an_object(folder):
    marker = folder / "made"
    for tag in ("!!python/object/apply:os.system", "!!python/object/new:os.system"):
        with pytest.raises(JobFileError, match="tag"):
            load_spec(write(folder, f"name: {tag} ['touch {marker}']\n"))
        with pytest.raises(JobFileError, match="tag"):
            load_spec(write(folder, f"name: {tag} touch\n"))
    assert not marker.exists()


def write(folder, text):
    path = folder / "tagged.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_alias_bomb_is_refused_at_its_first_alias(folder):
    with pytest.raises(JobFileError, match="aliases"):
        load_spec(write(folder, "a: &a [x]\nb: [*a, *a]\n"))
