"""Where a job runs besides this machine: on named hosts, or by a scheduler."""
