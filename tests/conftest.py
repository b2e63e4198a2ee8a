"""Set up before any test module is imported."""

import os

import torch

if not torch.cuda.is_available():
    # Triton reads this when it is first imported, and others than our kernels import it.
    os.environ["TRITON_INTERPRET"] = "1"
