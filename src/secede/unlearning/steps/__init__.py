"""What several unlearning methods share: descent, ascent, what is measured at the leaver."""
