"""Files of one user that several processes share."""
