"""secede erases one client from a trained federated model.

The names below are the public interface; torch is imported when the first of them is used, so
that the command line can answer `--help` without it.
"""

from __future__ import annotations

import logging
from importlib import import_module, metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secede.data.mapstyle import as_samples as as_samples
    from secede.data.samples import Dataset as Dataset
    from secede.data.samples import Samples as Samples
    from secede.errors import SecedeError as SecedeError
    from secede.federation.engine import aggregate as aggregate
    from secede.federation.simulator import Simulator as Simulator
    from secede.federation.training import LocalTraining as LocalTraining
    from secede.state import digest as digest
    from secede.state import distance as distance
    from secede.state import load as load_state
    from secede.state import project as project
    from secede.state import reference as reference
    from secede.state import save as save_state
    from secede.unlearning.api import unlearn as unlearn
    from secede.unlearning.local_step import LocalReport as LocalReport
    from secede.unlearning.local_step import LocalResult as LocalResult
    from secede.unlearning.methods.projected_ascent import ProjectedAscent as ProjectedAscent
    from secede.unlearning.methods.second_choice import SecondChoice as SecondChoice
    from secede.unlearning.post_training_hold import without_return as without_return

_HOMES = {
    "Dataset": ("secede.data.samples", "Dataset"),
    "LocalReport": ("secede.unlearning.local_step", "LocalReport"),
    "LocalResult": ("secede.unlearning.local_step", "LocalResult"),
    "LocalTraining": ("secede.federation.training", "LocalTraining"),
    "ProjectedAscent": ("secede.unlearning.methods.projected_ascent", "ProjectedAscent"),
    "Samples": ("secede.data.samples", "Samples"),
    "SecedeError": ("secede.errors", "SecedeError"),
    "SecondChoice": ("secede.unlearning.methods.second_choice", "SecondChoice"),
    "Simulator": ("secede.federation.simulator", "Simulator"),
    "as_samples": ("secede.data.mapstyle", "as_samples"),
    "aggregate": ("secede.federation.engine", "aggregate"),
    "digest": ("secede.state", "digest"),
    "distance": ("secede.state", "distance"),
    "load_state": ("secede.state", "load"),
    "project": ("secede.state", "project"),
    "reference": ("secede.state", "reference"),
    "save_state": ("secede.state", "save"),
    "unlearn": ("secede.unlearning.api", "unlearn"),
    "without_return": ("secede.unlearning.post_training_hold", "without_return"),
}

__all__ = [
    "Dataset",
    "LocalReport",
    "LocalResult",
    "LocalTraining",
    "ProjectedAscent",
    "Samples",
    "SecedeError",
    "SecondChoice",
    "Simulator",
    "__version__",
    "aggregate",
    "as_samples",
    "digest",
    "distance",
    "load_state",
    "project",
    "reference",
    "save_state",
    "unlearn",
    "without_return",
]
__version__ = metadata.version("secede")
logging.getLogger("secede").addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'secede' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
