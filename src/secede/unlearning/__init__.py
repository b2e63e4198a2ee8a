"""Unlearning methods, one file each; `methods` is the table of their names and needs."""
