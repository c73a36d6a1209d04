"""The model room: one frame's mathematics, and the checkpoint it comes from."""
