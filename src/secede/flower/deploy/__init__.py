"""A Flower federation put up with TLS and node authentication: its files and its processes.

Nothing here imports flwr: it writes files that Flower's programs read, and starts those programs.
"""
