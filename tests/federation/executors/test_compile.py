"""The fused kernels compile for a Hopper GPU; no GPU is needed for that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = """
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int8: "*i8", torch.int64: "*i64"}
LARGEST = 232_448  # bytes of shared memory that a block may have


def compile_only(self, *args, grid, warmup, **constants):
    options = {k: constants.pop(k) for k in ("num_warps", "num_stages") if k in constants}
    values = dict(zip(self.arg_names, args)) | constants
    plain = {name for name in constants}
    signature = {
        name: "constexpr" if name in plain else TYPES[v.dtype] if torch.is_tensor(v) else "i32"
        for name, v in values.items()
    }
    source = ASTSource(
        self,
        {name: signature[name] for name in self.arg_names},
        {(self.arg_names.index(name),): value for name, value in constants.items()},
    )
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert built.metadata.shared <= LARGEST, (self.__name__, built.metadata.shared)
    print(f"{self.__module__.rpartition('.')[2]}.{self.__name__}")


JITFunction.run = compile_only

from secede import models
from secede.federation.executors.fused.network import parse
from secede.federation.executors.fused.stack import Stack

network = parse(models.build("paper-cnn", shape=(1, 28, 28), classes=10), 28, 28)
stack = Stack(
    network,
    torch.zeros(9, 32, 32, 1),
    torch.zeros(9, dtype=torch.int64),
    clients=2,
    batch=128,
    learning_rate=0.1,
    momentum=0.9,
    precision=sys.argv[1],
)
stack.step(torch.zeros(2, 128, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_every_kernel_compiles_for_a_hopper_gpu_and_fits_its_shared_memory(precision: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, precision],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(done.stdout.split()) == {
        "convolution.first_forward",
        "convolution.forward",
        "dense.bias_relu",
        "dense.loss_gradient",
        "dense.relu_gradient",
        "dense.update",
        "convolution.weight_gradient",
        "convolution.input_gradient",
        "convolution.update",
    }
