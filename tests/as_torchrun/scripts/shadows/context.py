NAME = "the user's context"
