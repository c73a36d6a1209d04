"""The plan of the house: what the weights fix, as one frozen tree, and how to read it."""
