"""What the verbs of the ``zeusrun`` command do: parse, call, show."""
