"""The one route from a job file to a recorded trial."""
