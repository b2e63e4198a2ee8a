"""Statistics, answers and verdicts from records."""
