"""Five hospitals learn to read digits together, and one of them leaves."""
