"""Files that belong to one user and that several processes share."""
