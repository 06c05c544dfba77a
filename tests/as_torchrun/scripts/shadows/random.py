NAME = "the user's random"
