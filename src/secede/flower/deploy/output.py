"""What of a run's output is shown: a traceback that ends in an error of ours is that error's line.

The error itself is kept, so that a command ends with its exit code. Tracebacks of other errors are
shown whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from secede import errors
from secede.errors import SecedeError

_BEGIN = re.compile(r"^(ERROR *: *)?(ServerApp raised an exception|Traceback \(most recent)")
_BETWEEN = re.compile(
    r"^(\s|$|Traceback \(|The above exception was|During handling of the above|ERROR *: *ServerApp)"
)
_OURS = re.compile(r"^secede(?:\.\w+)*\.(\w+): (.*)$")
_AFTER = re.compile(
    r"^(ERROR *: *)?(Exit Code: 201|An unhandled exception occurred in the ServerApp|"
    r"For more information, visit: <https://flower)"
)


class Output:
    """Passes lines on, and holds a traceback back until it is known whose it is."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._held = tell, list[str]()
        self.error: SecedeError | None = None  # that the app ended with

    def __call__(self, line: str) -> None:
        """Take a line."""
        if self._held and _BETWEEN.match(line):
            self._held.append(line)
        elif self._held and (found := _OURS.match(line)):
            self.error, self._held = _error(*found.groups()), []
        elif self._held:
            self._held.append(line)
            self.end()
        elif _BEGIN.match(line):
            self._held, self.error = [line], None
        elif self.error is None or not _AFTER.match(line):
            self._tell(line)

    def end(self) -> None:
        """Show what was held back."""
        for line in self._held:
            self._tell(line)
        self._held = []


def _error(name: str, text: str) -> SecedeError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, SecedeError):
        return kind(text)
    return SecedeError(text)
