"""What the ranks measure of their gradients: what the job file says of it."""
