NAME = "the user's signal"
