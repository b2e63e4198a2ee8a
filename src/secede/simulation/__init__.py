"""The simulated backend of an erasure: all clients live in one home folder."""
