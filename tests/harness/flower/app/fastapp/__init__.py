"""An app for tests of real processes."""
