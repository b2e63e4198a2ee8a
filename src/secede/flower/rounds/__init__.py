"""Rounds of training and erasure on a live federation."""
