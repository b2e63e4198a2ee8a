"""Run records as values."""
