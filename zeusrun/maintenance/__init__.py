"""Looking after a machine and its runs: doctor, repair, retention, status."""
