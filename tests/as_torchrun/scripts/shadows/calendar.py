NAME = "the user's calendar"
