"""Experiments: from a TOML file or preset to a resumable run and its records."""
