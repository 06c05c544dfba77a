NAME = "the user's failure"
