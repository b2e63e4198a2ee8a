from __future__ import annotations

import pytest

from secede.errors import ConfigError, SecedeError, SilentError
from secede.flower.deploy.runs import RunOutput

BEGIN = (
    "ERROR :     ServerApp raised an exception",
    "Traceback (most recent call last):",
    '  File "server_app.py", line 22, in main',
    "    strategy.start(",
)
AFTER = (
    "ERROR :     Exit Code: 201",
    "An unhandled exception occurred in the ServerApp.",
    "For more information, visit: <https://flower.ai/docs/framework/1.41/en/ref-exit-codes/201>",
)


def shown(*lines: str) -> tuple[list[str], SecedeError | None]:
    told = list[str]()
    output = RunOutput(told.append)
    for line in lines:
        output(line)
    output.end()
    return told, output.error


def test_what_is_no_traceback_is_passed_on() -> None:
    assert shown("[ROUND 1/3]", "WARNING :   late", *AFTER) == (
        ["[ROUND 1/3]", "WARNING :   late", *AFTER],
        None,
    )


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("secede.errors.ConfigError: cut short: start it again", ConfigError),
        ("secede.errors.SilentError: too few", SilentError),
        ("secede.erasure.storage.locks.BusyError: in use by another", SecedeError),
        ("secede.errors.did_you_mean: no error", SecedeError),
    ],
)
def test_an_error_of_ours_is_one_line(line: str, kind: type[SecedeError]) -> None:
    told, error = shown("[ROUND 1/3]", *BEGIN, line, *AFTER)
    assert told == ["[ROUND 1/3]"]
    assert type(error) is kind
    assert str(error) == line.partition(": ")[2]


def test_an_error_that_came_of_another_is_one_line_too() -> None:
    first = (*BEGIN, "KeyError: 'x'", "")  # not shown: the one that follows tells it
    chained = "The above exception was the direct cause of the following exception:"
    told, error = shown(*BEGIN[1:], chained, "", *BEGIN[1:], "secede.errors.ConfigError: no x")
    assert (told, str(error)) == ([], "no x")
    assert shown(*first, chained)[0][: len(BEGIN)] == list(BEGIN)


def test_an_error_of_others_is_shown_whole() -> None:
    lines = (*BEGIN, "ValueError: of the user's own", *AFTER)
    assert shown(*lines) == (list(lines), None)
    assert shown(*BEGIN) == (list(BEGIN), None)  # it was cut off
