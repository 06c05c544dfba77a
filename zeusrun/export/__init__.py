"""What other programs read: MLflow and Prometheus."""
