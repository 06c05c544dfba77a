"""PBS as a backend: the proof that four files and a line of the table make one. Not shipped."""
