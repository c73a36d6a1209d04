"""The engine room: turns go in, replies come out; many at once, none the wiser of the others."""
