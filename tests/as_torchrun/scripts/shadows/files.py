NAME = "the user's files"
