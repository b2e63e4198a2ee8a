"""Everything that can go wrong on purpose, each with the exit code the command line ends with."""


class SecedeError(Exception):
    """Base of all errors that are the user's to mend; its text is one clear line."""

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


class StoppedError(SecedeError):
    """The user stopped a run; its records let it go on."""

    exit_code = 130
