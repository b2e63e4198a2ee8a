"""The states of an erasure, and what is done in each."""
