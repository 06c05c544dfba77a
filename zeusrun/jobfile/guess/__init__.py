"""``zeusrun init``: from a command to the text of a job file. Reads no file and starts nothing."""
