"""Attacks on an erasure, measured: the programs that print the tables of docs/threats.md."""
