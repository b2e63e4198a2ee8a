"""A client's script: FOLDER."""

from __future__ import annotations

import sys

import nvflare.client as flare
import torch

from harness.nvflare.small import erasing, serve

if __name__ == "__main__":
    torch.set_num_threads(1)
    flare.init()
    serve(erasing(sys.argv[1]), flare.get_site_name())
