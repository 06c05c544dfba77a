"""The report of jobs: facts, figures, a page, and snippets for model cards."""
