"""What the server of a Flower federation keeps."""
