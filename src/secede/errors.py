"""The errors that secede raises, each with the exit code of the command line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class SecedeError(Exception):
    """Base of all errors that the user can fix; the text is one line."""

    exit_code = 1


class ConfigError(SecedeError):
    """A setting, name or argument that cannot be used."""

    exit_code = 2


class DataError(SecedeError):
    """A data set that is missing, corrupt, mislabelled or cannot be downloaded."""

    exit_code = 3


class StateError(SecedeError):
    """Model parameters that are corrupt, not finite or do not fit together."""

    exit_code = 4


class RecordError(SecedeError):
    """A run folder that is damaged, in use by another process, or of another config."""

    exit_code = 5


class StorageError(SecedeError):
    """The disk refused a write: full, read-only or without permission."""

    exit_code = 6


class RequestError(SecedeError):
    """A request for erasure that is refused."""

    exit_code = 7


class TrustError(SecedeError):
    """A signature, ledger or receipt that does not verify."""

    exit_code = 8


class GuardError(SecedeError):
    """A state or update from a client that is refused."""

    exit_code = 9


class SilentError(SecedeError):
    """A client that does not reply, or not in time."""

    exit_code = 10


class RolledBackError(SecedeError):
    """An erasure that failed on every rung: the model from before stays in service."""

    exit_code = 11


class LossError(SecedeError):
    """A retrained model that lost accuracy: a person must accept that before it may serve."""

    exit_code = 12


class StoppedError(SecedeError):
    """The user stopped a run; its records let it go on."""

    exit_code = 130


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """Return a hint with the known name nearest to `found` and a space, or nothing.

    A name that differs in digits alone is another one, and no slip: site-9, site-1.
    """
    names = [name for name in known if not _differ_in_digits(found, name)]
    close = difflib.get_close_matches(found.lower().replace("_", "-"), names, n=1, cutoff=0.7)
    close = close or difflib.get_close_matches(found, names, n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}? " if close else ""


def _differ_in_digits(one: str, other: str) -> bool:
    first, second = re.split(r"\d+", one), re.split(r"\d+", other)
    return len(first) > 1 and first == second
