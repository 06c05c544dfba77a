"""Jobs of Kubernetes: their manifests, their API, and what a pod knows of its job."""
