"""What is remembered of a job: every trial, once, for good."""
