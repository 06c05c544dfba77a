NAME = "the user's queue"
