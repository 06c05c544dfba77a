"""How the ranks agree, if not by an all-reduce: what the job file says of it."""
