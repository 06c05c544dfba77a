"""Submits by a batch script, to schedulers whose nodes share a home with the submit."""
