"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Seeds = Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, ... up to this many.")]
Rounds = Annotated[
    int | None, typer.Option(min=1, help="Rounds of training and retraining, not the preset's.")
]
Device = Annotated[str | None, typer.Option(help="auto (a GPU if there is one), cpu or cuda.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Use at most this many training and test images.")
]
Executor = Annotated[
    str | None, typer.Option(help="How clients are computed: auto, or see `secede executors`.")
]
Precision = Annotated[
    str | None,
    typer.Option(help="float32, tf32 (GPU) or bf16; results are published in float32."),
]
Lanes = Annotated[
    int | None,
    typer.Option(min=1, help="Seeds that run side by side; if absent, what the device bears."),
]
Out = Annotated[Path, typer.Option(help="Folder that holds the runs' records.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="A method to run instead of the preset's; may be given several times, the first is "
        "judged. `all`: every one that can work there. See `secede methods`.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Auditors = Annotated[
    list[Path] | None,
    typer.Option("--auditor", help="An auditor's NAME.pub besides KEYS/auditors; repeat it."),
]
