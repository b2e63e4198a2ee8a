"""Deployment of a Flower federation with TLS and node authentication: its files and processes.

Nothing here imports flwr: it writes files that Flower's programs read, and starts those programs.
"""
