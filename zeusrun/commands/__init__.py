"""The verbs of the ``zeusrun`` command; ``cli.py`` has the table of them."""
