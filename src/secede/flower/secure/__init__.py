"""Rounds under SecAgg+, which hides single updates: Flower's legacy workflow, and what we add.

The only place that imports Flower's legacy stack.
"""
