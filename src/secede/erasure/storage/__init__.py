"""The home folder and its databases."""
