NAME = "the user's worker"
