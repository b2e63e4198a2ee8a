"""What is written down and signed, as values: no files, no torch."""
