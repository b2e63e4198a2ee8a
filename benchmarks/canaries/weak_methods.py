"""Two baselines under names of their own: `secede erase` refuses the registered ones by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from secede.unlearning.methods.fine_tune import FineTune
from secede.unlearning.methods.reference import Reference
from secede.unlearning.registry import Needs


@dataclass(frozen=True)
class FineTuneAlone(FineTune):
    """Post-training from the global model, nothing else."""


@dataclass(frozen=True)
class ReferenceAlone(Reference):
    """Post-training from the others' mean, nothing else."""

    needs: ClassVar[Needs] = Needs(leaver_online=True, single_updates=True)
