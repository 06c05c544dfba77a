"""A batch size that changes within a run: what the job file says of it."""
