NAME = "the user's uuid"
