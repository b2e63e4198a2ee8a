"""Experiments: a TOML file or preset becomes a checked config, a resumable run and its records."""
