"""What the simulator itself takes: a network of the paper's size whose training is next to nothing.

States of 1.66 M parameters are handed out, read back and averaged, but the forward pass uses ten
of them, on one small batch per client.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from benchmarks import command
from benchmarks.federation import CLASSES, LOOP, Rounds, paper_cnn, random_images, simulators, split
from benchmarks.table import milliseconds, quartiles, table, times
from benchmarks.timing import interleaved

BATCH = 16


class Idle(nn.Module):
    """The paper's network, of which only the last bias is used."""

    def __init__(self) -> None:
        super().__init__()
        self.network = paper_cnn()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return some pixels plus the bias."""
        bias = self.network.get_parameter("9.bias")
        return inputs.flatten(1)[:, :CLASSES] + bias


def main(argv: Sequence[str] | None = None) -> None:
    """Time a round of next to nothing."""
    parser = command.parser("overhead", __doc__, "--device cuda --executors graphs --repeats 50")
    parser.add_argument("--clients", type=command.positive, default=5, metavar="N")
    setting, options = command.settle(parser, argv)
    images = random_images(options.images or BATCH * options.clients)
    engines, refused = simulators(setting, split(images, options.clients), Idle)
    command.say(f"timing {options.clients} clients of {len(images) // options.clients} images")
    contenders = {name: Rounds(engine) for name, engine in engines.items()}
    timings = interleaved(contenders, setting.repeats, device=setting.device)
    rows = [
        [
            name,
            milliseconds(timing),
            quartiles(timing),
            times(timing.times_faster_than(timings[LOOP])),
        ]
        for name, timing in timings.items()
    ]
    rows += [[name, why] for name, why in refused.items()]
    columns = (f"{options.clients} clients", "ms a round", "quartiles", "against plain loop")
    command.publish(setting, [table(columns, rows)], timings)


if __name__ == "__main__":
    main()
