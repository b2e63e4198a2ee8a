"""Scores of a model: accuracy, loss and membership attacks, with their intervals."""
