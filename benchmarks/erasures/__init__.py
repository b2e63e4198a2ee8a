"""Compare erasures of one client with retraining; see `__main__.py` for the command."""
