"""The files of one run."""
