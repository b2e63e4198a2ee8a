"""A small Flower app: handwritten digits, learned by sites with unequal shares of them."""
