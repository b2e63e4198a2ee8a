"""`secede audit`: its options and what it prints, and its progress."""
