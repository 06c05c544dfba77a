"""The sections ``price`` and ``carbon``, and their CSV files."""

from __future__ import annotations

import os
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import ROOT, load_job
from zeusrun.errors import JobFileError
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.tariff_section import read_days, read_hours
from zeusrun.jobfile.tariffs import load_tariffs
from zeusrun.tariff import parse_time

EUR = {"currency": "EUR"}
FLAT = {**EUR, "per_kwh": 0.31}


def refusal(tmp_path, **changes):
    with pytest.raises(JobFileError) as error:
        load_tariffs(load_job(tmp_path, **changes))
    return str(error.value)


def csv_tariff(tmp_path, text, **section):
    (tmp_path / "prices.csv").write_text(text)
    return load_tariffs(load_job(tmp_path, price={**EUR, "csv": "prices.csv", **section}))


def test_a_job_says_what_its_energy_costs(tmp_path):
    found = load_tariffs(load_job(tmp_path, price=FLAT, carbon={"g_per_kwh": 380}, pue=1.2))
    assert (found.price.constant, found.currency, found.pue) == (0.31, "EUR", 1.2)
    assert found.carbon.constant == 380


def test_a_job_without_a_tariff_has_none(tmp_path):
    found = load_tariffs(load_job(tmp_path))
    assert (found.price, found.currency, found.carbon, found.pue) == (None, None, None, 1.0)


def test_a_weekly_table_has_a_rate_for_every_hour(tmp_path):
    table = [{"days": "mon-fri", "hours": "7-22", "per_kwh": 0.31}, {"per_kwh": 0.24}]
    section = {**EUR, "table": table, "tz": "Europe/Berlin"}
    price = load_tariffs(load_job(tmp_path, price=section)).price
    rates = [
        price.at(parse_time(time, None)).rate
        for time in ("2026-11-20T06:59+01:00", "2026-11-20T07:00+01:00", "2026-11-21T12:00+01:00")
    ]
    assert rates == [0.24, 0.31, 0.24]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"price": EUR}, "'price' takes exactly one of per_kwh, table, csv; it has none of them"),
        ({"price": {**FLAT, "csv": "p.csv"}}, "it has per_kwh and csv"),
        ({"price": {**FLAT, "table": [{"per_kwh": 1}]}}, "it has per_kwh and table"),
        ({"price": {"per_kwh": 1}}, "the key 'currency' is missing under 'price'"),
        ({"price": {**EUR, "per_kwh": "x"}}, "'price.per_kwh' must be a number, not 'x'"),
        ({"price": {**EUR, "per_kwh": 1e300}}, "must be less than or equal to"),
        ({"price": {**EUR, "per_kwh": float("nan")}}, "'price.per_kwh' must be a finite number"),
        ({"price": {"currency": "E R", "per_kwh": 1}}, "without spaces, not 'E R'"),
        ({"price": {**FLAT, "tz": "Europe/berlin"}}, "a time zone such as Europe/Berlin, not 'Eu"),
        ({"price": {**FLAT, "tz": "../localtime"}}, "'price.tz' must be a time zone"),
        ({"price": {**EUR, "table": [{"hours": "7-22", "per_kwh": 1}]}}, "a rate for mon 0-1"),
        (
            {"price": {**EUR, "table": [{"per_kwh": 1}, {"hours": "7-22", "per_kwh": 2}]}},
            "row 2 never counts",
        ),
        ({"price": {**EUR, "table": [{"hour": "7-22", "per_kwh": 1}]}}, "did you mean 'hours'?"),
        ({"price": {**EUR, "table": [{"hours": "7-22"}]}}, "'per_kwh' is missing under"),
        ({"carbon": {"g_per_kwh": -1}}, "'carbon.g_per_kwh' must be greater than or equal to 0"),
        ({"pue": 120}, "'pue' must be less than or equal to 10, not 120"),
        ({"pue": 0.9}, "'pue' must be greater than or equal to 1, not 0.9"),
    ],
)
def test_a_tariff_that_cannot_be_meant_is_one_problem_with_its_line(tmp_path, changes, said):
    text = refusal(tmp_path, **changes)
    assert said in text
    assert len(text.splitlines()) == 1
    assert f"{tmp_path}/job.yaml:" in text


def test_days_and_hours_wrap(tmp_path):
    assert read_days("fri-mon") == {4, 5, 6, 0}
    assert read_days("Sat, sun") == {5, 6}
    assert read_days("mon-sun") == read_days(None) == set(range(7))
    assert read_hours("22-6") == {22, 23, 0, 1, 2, 3, 4, 5}
    assert read_hours("7-9, 17-19") == {7, 8, 17, 18}
    assert read_hours("0-24") == read_hours(None) == set(range(24))


@pytest.mark.parametrize("text", ["", "7", "7,9-12", "7-7", "7:30-9", "-1-3", "7-25", "7-", "²-3"])
def test_hours_are_ranges_of_whole_hours(text):
    with pytest.raises(ValueError, match="must be whole hours"):
        read_hours(text)


@pytest.mark.parametrize("text", ["", "monday", "mon-", "1-5", "mon-fri-sun"])
def test_days_are_the_first_three_letters(text):
    with pytest.raises(ValueError, match="must be weekdays"):
        read_days(text)


@given(st.integers(0, 23), st.integers(1, 24))
def test_an_hour_belongs_to_a_range_or_to_its_complement(first, last):
    if first != last % 24:
        assert read_hours(f"{first}-{last}") | read_hours(f"{last}-{first}") == set(range(24))
        assert not read_hours(f"{first}-{last}") & read_hours(f"{last}-{first}")


@pytest.mark.parametrize("heading", ["", "time,price\n", "\ufeffDatetime (UTC),EUR/kWh\n", "\n"])
def test_a_csv_file_may_have_a_heading_blank_lines_and_more_columns(tmp_path, heading):
    rows = "2026-03-01T00:00Z, 0.31\n\n 2026-03-01 01:00:00+00:00 ,-0.05,DE\n"
    price = csv_tariff(tmp_path, heading + rows).price
    start = parse_time("2026-03-01T00:00Z", None)
    assert price.times == (start, start + 3600, start + 7200)
    assert price.rates == (0.31, -0.05)


def test_times_without_an_offset_may_show_an_hour_twice_in_autumn(tmp_path):
    hours = ["01:00", "01:30", "02:00", "02:30", "02:00", "02:30", "03:00"]
    text = "".join(f"2026-10-25T{hour},{number}\n" for number, hour in enumerate(hours))
    times = csv_tariff(tmp_path, text, tz="Europe/Berlin").price.times
    assert [round(t - times[0]) for t in times] == [1800 * n for n in range(8)]
    assert "prices.csv:5: each time must be later" in refusal(
        tmp_path, price={**EUR, "csv": "prices.csv", "tz": "UTC"}
    )


@pytest.mark.parametrize("hours", [["01:00", "02:00", "03:00"], ["02:15", "02:45", "03:00"]])
def test_a_csv_file_with_the_hour_that_spring_skips_is_told_of_the_clock(tmp_path, hours):
    text = "".join(f"2026-03-29T{hour},0.3\n" for hour in hours)
    berlin = {**EUR, "csv": "prices.csv", "tz": "Europe/Berlin"}
    (tmp_path / "prices.csv").write_text(text)
    said = refusal(tmp_path, price=berlin)
    assert "prices.csv:3: each time must be later than the one above" in said
    assert "where the clocks change, write times with an offset" in said
    (tmp_path / "prices.csv").write_text(text.replace("T03:00", "T04:00"))  # no two are the same
    assert len(load_tariffs(load_job(tmp_path, price=berlin)).price.rates) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no rates"),
        ("time,price\n", "has no rates"),
        ("time,price\nnoon,0.3\n", "prices.csv:2: expected a time and a rate"),
        ("2026-13-01,0.3\n", "prices.csv:1: expected a time and a rate"),
        ("2026-03-01T00:00Z\n", "prices.csv:1: expected a time and a rate"),
        ("2026-03-01T00:00Z;0,31\n", "not '2026-03-01T00:00Z;0,31'"),
        ("2026-03-01T00:00Z,nan\n", "the rate must be from -1e+09 to 1e+09, not nan"),
        ("2026-03-01T00:00Z,inf\n", "the rate must be from"),
        ("2026-03-01T01:00Z,1\n2026-03-01T01:00Z,2\n", "prices.csv:2: each time must be later"),
        ("2026-03-01T01:00Z,1\n2026-03-01T00:00Z,2\n", "prices.csv:2: each time must be later"),
        ("0001-01-01T00:00,1\n", "prices.csv:1: expected a time and a rate"),
        ("2026-01-01,1\n9999-12-31,1\n", "prices.csv:2: expected a time and a rate"),
        ("no table at all", "has no rates"),
        ("a" * 200_000, "cannot be read: field larger than field limit"),
    ],
)
def test_a_csv_file_that_is_no_tariff_says_what_is_wrong_and_where(tmp_path, text, said):
    with pytest.raises(JobFileError) as error:
        csv_tariff(tmp_path, text)
    assert said in str(error.value)
    assert "'price.csv':" in str(error.value)


def test_a_csv_file_of_carbon_has_no_negative_grams(tmp_path):
    (tmp_path / "grid.csv").write_text("2026-03-01T00:00Z,-1\n")
    assert "from 0 to 100000" in refusal(tmp_path, carbon={"csv": "grid.csv"})


def test_a_csv_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "utf16.csv").write_bytes("2026-03-01T00:00Z,1\n".encode("utf-16-le"))
    (tmp_path / "latin.csv").write_bytes(b"zeit,\xfc\n")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge.csv").open("wb") as file:
        file.truncate(1 << 30)
    for name, said in {
        "missing.csv": "there is no such file",
        ".": "is not a file",
        "pipe": "is not a file",
        "utf16.csv": "is not UTF-8 text; save it as CSV in UTF-8",
        "latin.csv": ":1: this line is not UTF-8 text; is it a CSV file?",
        "huge.csv": "is larger than 16,384 KiB",
        "nul\0.csv": "embedded null ",
    }.items():
        text = refusal(tmp_path, price={**EUR, "csv": name})
        assert said in text
        assert text.startswith(f"{tmp_path}/job.yaml: 'price.csv': ")
        assert str(tmp_path / name) in text or "nul" in name


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_csv_file_is_read_with_and_without_a_byte_order_mark(tmp_path, encoding):
    text = "zeit,größe\r\n2026-03-01T00:00Z,1\r\n"
    (tmp_path / "prices.csv").write_bytes(text.encode(encoding))
    job = load_job(tmp_path, price={**EUR, "csv": "prices.csv"})
    assert load_tariffs(job).price.rates == (1.0,)


def test_the_path_of_a_csv_file_may_begin_with_a_tilde_and_contain_a_dollar(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "$prices").write_text("2026-03-01T00:00Z,1\n")
    for name in ("~/$prices", "$prices", f"{tmp_path}/$prices"):
        assert load_tariffs(load_job(tmp_path, price={**EUR, "csv": name})).price.rates
    assert "~nobody-here/p.csv" in refusal(tmp_path, price={**EUR, "csv": "~nobody-here/p.csv"})


@pytest.mark.parametrize("name", ["$prices", "~/$prices"])
def test_the_copy_of_a_job_file_has_the_same_tariff_from_any_directory(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "$prices").write_text("2026-03-01T00:00Z,1\n")
    table = [{"hours": "7-22", "g_per_kwh": 300}, {"g_per_kwh": 400}]
    price = {**EUR, "csv": name, "tz": "Europe/Berlin"}
    spec = load_job(tmp_path, price=price, carbon={"table": table}, pue=1.1)
    copy = tmp_path / "elsewhere" / "job.yaml"
    copy.parent.mkdir()
    copy.write_text(spec.to_yaml())
    found = load_tariffs(spec)
    monkeypatch.setenv("HOME", "/nowhere")
    assert load_tariffs(load_spec(copy)) == found
    other = load_spec(copy, ["price.csv=null", "price.per_kwh=0.2"])
    assert load_tariffs(other).price.constant == 0.2
    assert load_tariffs(load_spec(copy, ["price=null"])).price is None


def test_the_tariffs_of_the_page_on_money_are_well_formed(tmp_path):
    page = (ROOT / "docs" / "money.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^```\n(time,.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "prices.csv").write_text(listed)
    (tmp_path / "grid.csv").write_text("2026-03-01T00:00Z,380\n")
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    found = [load_tariffs(load_job(tmp_path, **yaml.safe_load(block))) for block in blocks]
    assert [tariffs.currency for tariffs in found] == ["EUR"] * 3
