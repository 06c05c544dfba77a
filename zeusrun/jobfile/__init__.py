"""Reading a job file: YAML with positions, rules beyond types, errors as sentences."""
