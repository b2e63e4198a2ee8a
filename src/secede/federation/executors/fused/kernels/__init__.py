"""Triton kernels that train many clients' copies of a small CNN at once."""
