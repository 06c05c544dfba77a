"""Does nothing: what is left is the cost of launching."""
