"""One running trial: what is observed, and when it is stopped."""
