"""What devices draw: the device and meter protocols, and the thread that samples them."""
