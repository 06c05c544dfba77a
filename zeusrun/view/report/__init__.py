"""The report of jobs: facts, figures and a page."""
