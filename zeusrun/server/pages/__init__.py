"""The web page of a server: jobs, runs and machines, as HTML that updates by itself."""
