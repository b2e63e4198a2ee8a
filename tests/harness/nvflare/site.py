"""A client's script: FOLDER."""

from __future__ import annotations

import sys

import nvflare.client as flare
import pytest
import torch

from harness.flower.unlimited import no_limits, unlimit
from harness.nvflare.small import erasing, serve
from secede.unlearning.client_tasks import LOCAL

if __name__ == "__main__":
    torch.set_num_threads(1)
    flare.init()
    unlimit(pytest.MonkeyPatch())
    serve(erasing(sys.argv[1], limits=no_limits(), methods=LOCAL), flare.get_site_name())
