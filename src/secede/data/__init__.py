"""Data sets, partitions and samples.

Nothing is imported here, so that `secede.data.catalog` can be listed without importing torch.
"""
