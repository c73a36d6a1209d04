"""The archive: sources become jobs, results become files. Nothing here knows torch."""
