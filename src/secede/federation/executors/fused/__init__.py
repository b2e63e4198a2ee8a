"""Triton kernels for networks of convolutions with pooling: all clients in one launch per layer."""
