"""Documents that are written down and signed, as values: no files, no torch."""
