NAME = "the user's hooks"
