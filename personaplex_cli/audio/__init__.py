"""The audio room: PCM in and out, and Mimi between PCM and codes."""
