"""The files and signals that worker and launcher share."""
