"""The commands: each in the file of its name, options and body together."""
