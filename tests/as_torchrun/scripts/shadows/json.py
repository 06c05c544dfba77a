NAME = "the user's json"
