NAME = "the user's dataclasses"
