NAME = "the user's statistics"
