"""Several hosts: the launcher of each node, the channel to it, and the head's side of both."""
