"""Side-by-side speed of the simulator; each module is one command."""
