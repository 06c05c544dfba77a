NAME = "the user's logging"
