"""zeusrun: a torchrun that learns."""
