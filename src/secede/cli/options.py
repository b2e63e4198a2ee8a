"""Options that several commands share."""

from __future__ import annotations

from datetime import datetime
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

# Of an erasure, on a simulated federation as on a live one

_WHY = typer.Option(help="Why: consent-withdrawn, objection, unlawful, contract-ended or other.")
Trigger = Annotated[str, _WHY]
LiveTrigger = Annotated[str | None, _WHY]  # not for one that goes on, or has signed
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; ask and write nothing.")]
Instead = Annotated[
    list[str] | None,
    typer.Option("--method", help="On its rung, instead of the usual one; may be repeated."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="METHOD.KEY=VALUE, a setting of a method; may be repeated."),
]
PostTraining = Annotated[
    int | None, typer.Option("--rounds", min=0, help="Most rounds of post-training on a rung.")
]
LeastRounds = Annotated[
    int | None,
    typer.Option(min=0, help="Least rounds; 1. With 0 the leaver's state may be served."),
]
Mean = Annotated[
    str, typer.Option(help="Of the updates: mean, trimmed or median; see docs/threats.md.")
]
Distrust = Annotated[
    bool, typer.Option("--distrust", help="Take nothing from the leaver: no local step.")
]
Gone = Annotated[bool, typer.Option("--gone", help="The leaver is gone: it is not asked at all.")]
AnswerSeconds = Annotated[
    float | None, typer.Option(min=0.001, help="That the leaver has to answer; an hour.")
]
WaitHours = Annotated[
    float, typer.Option(min=0, help="To go on asking a silent leaver before the next rung.")
]
Nearest = Annotated[
    float | None,
    typer.Option(min=0, help="Least way from known states, in units; see docs/threats.md."),
]
Quorum = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Share of the retained clients' samples that must answer."),
]
RetainedSeconds = Annotated[
    float | None, typer.Option(min=0.001, help="That a retained client has to answer; an hour.")
]
MeasureAtLeaver = Annotated[
    bool,
    typer.Option(
        "--measure-at-leaver",
        help="Send the leaver the new model, and ask how many of its samples that gets right.",
    ),
]
NoFading = Annotated[
    bool,
    typer.Option(
        "--no-fading",
        help="Keep weights that the others' training does not use: the leaver is trusted.",
    ),
]
BackupsUntil = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], help="When backups of what is destroyed end."),
]
