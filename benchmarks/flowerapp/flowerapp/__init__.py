"""A Flower app that trains with and without secede, in turns, and erases once."""
