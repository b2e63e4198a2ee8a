"""Rounds under SecAgg+."""
