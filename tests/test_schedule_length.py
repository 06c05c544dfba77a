"""A schedule that has the steps of the default batch size is told of while it runs."""

from __future__ import annotations


def test_a_schedule_of_a_fixed_number_of_steps_is_told_of_in_the_first_epoch(zeusrun):
    objective = {"metric": "accuracy", "target": 0.9, "max_epochs": 4}
    job = zeusrun.job("schedules.py", args=["${batch_size}"], objective=objective)
    said = (
        "CosineAnnealingLR is set for 80 steps, those of 4 epochs with the default batch size (32);"
        " with 64 they have 40, so the run ends after 50 % of the schedule"
    )
    _, result, _ = zeusrun.submit(job, "--batch-size", "64")
    (trial,) = result["trials"]
    assert [text.startswith(said) for text in trial["warnings"]] == [True]
    _, result, _ = zeusrun.submit(job, "--batch-size", "32")
    assert result["trials"][0]["warnings"] == []
