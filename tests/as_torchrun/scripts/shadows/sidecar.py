NAME = "the user's sidecar"
