NAME = "the user's events"
