"""How much of the device's matmul speed a round uses.

The peak is measured beside the rounds: the fastest product of two large square matrices. The
work of a round is counted by torch, forward and backward, convolutions and products only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import command
from benchmarks.command import Setting
from benchmarks.federation import TRAINING, Rounds, paper_cnn, random_images, simulators, split
from benchmarks.table import milliseconds, significant, table
from benchmarks.timing import interleaved
from secede.federation.training import forward, product_precision

REPEATED = 4  # products in a row, so that starting them is not what is measured


def main(argv: Sequence[str] | None = None) -> None:
    """Time products and rounds in turns."""
    parser = command.parser("matmul_share", __doc__, "--device cuda --precision bf16 --clients 10")
    parser.add_argument("--clients", type=command.positive, default=10, metavar="N")
    parser.add_argument("--sizes", type=command.positives, metavar="N,M", help="of the matrices")
    setting, options = command.settle(parser, argv)
    sizes = options.sizes or setting.pick(
        quick=(1024,), cpu=(1024, 2048), cuda=(4096, 8192, 12288, 16384)
    )
    clients = split(random_images(setting.images), options.clients)
    engines, refused = simulators(setting, clients)
    matmuls = {f"product of {n} x {n} matrices": matmul(n, setting) for n in sizes}
    contenders: dict[str, Callable[[], object]] = {**matmuls}
    contenders |= {name: Rounds(engine) for name, engine in engines.items()}
    command.say(f"timing {len(contenders)} contenders")
    timings = interleaved(contenders, setting.repeats, device=setting.device)
    work = options.clients * epoch_flops(len(clients[0]), setting)
    flops = {name: 2 * n**3 * REPEATED for name, n in zip(matmuls, sizes, strict=True)}
    flops |= dict.fromkeys(engines, work)
    speeds = {name: flops[name] / timing.median for name, timing in timings.items()}
    best = max(speeds[name] for name in matmuls)
    rows = [
        [
            name,
            significant(flops[name] / 1e9),
            milliseconds(timing),
            significant(speeds[name] / 1e12),
            f"{100 * speeds[name] / best:.1f} %",
        ]
        for name, timing in timings.items()
    ]
    rows += [[name, why] for name, why in refused.items()]
    columns = (f"{options.clients} clients", "GFLOP", "ms", "TFLOP/s", "of the peak")
    command.publish(setting, [table(columns, rows)], timings)


def matmul(size: int, setting: Setting) -> Callable[[], None]:
    """Return what multiplies random matrices a few times, in the setting's precision."""
    dtype = torch.bfloat16 if setting.precision == "bf16" else torch.float32
    draw = torch.Generator(setting.device).manual_seed(0)
    left, right = (
        torch.randn(size, size, generator=draw, device=setting.device).to(dtype) for _ in range(2)
    )
    into = torch.empty_like(left)

    def multiply() -> None:
        with product_precision(setting.precision):
            for _ in range(REPEATED):
                torch.mm(left, right, out=into)

    return multiply


def epoch_flops(samples: int, setting: Setting) -> int:
    """Return the floating-point operations of one client's epoch."""
    full, rest = divmod(samples, TRAINING.batch_size)
    return full * _step_flops(TRAINING.batch_size, setting) + (
        _step_flops(rest, setting) if rest else 0
    )


def _step_flops(batch: int, setting: Setting) -> int:
    images = random_images(batch).to(setting.device)
    model = paper_cnn().to(setting.device)
    with FlopCounterMode(display=False) as counter:
        outputs = forward(model, images.x, setting.precision)
        torch.nn.functional.cross_entropy(outputs, images.y).backward()
    return int(counter.get_total_flops())


if __name__ == "__main__":
    main()
