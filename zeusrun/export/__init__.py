"""What other programs read: files of runs, MLflow, and Prometheus."""
