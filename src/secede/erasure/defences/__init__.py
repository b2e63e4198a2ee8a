"""What stands between a client's bytes and the model."""
