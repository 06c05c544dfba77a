NAME = "the user's runpy"
