NAME = "the user's types"
