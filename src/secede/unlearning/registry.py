"""The table of methods: what each is, where it runs and what it needs. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from secede.errors import ConfigError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What must be there for a method to run."""

    leaver_online: bool = False
    history: bool = False
    server_data: bool = False
    single_updates: bool = False  # so it does not work under secure aggregation

    def words(self) -> tuple[str, ...]:
        """Return what is needed, in words."""
        return tuple(word for key, word in _WORDS.items() if getattr(self, key))


_WORDS = {
    "leaver_online": "the leaver online",
    "history": "stored history",
    "server_data": "data at the server",
    "single_updates": "single updates",
}

# Where a config says whether it is there.
_KEYS = {
    **{need: f"situation.{need}" for need in _WORDS},
    "single_updates": "situation.secure_aggregation",
}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What there is to work with."""

    leaver_online: bool = True
    history: bool = False
    server_data: bool = False
    single_updates: bool = True  # False under secure aggregation

    def lacks(self, needs: Needs) -> dict[str, str]:
        """Return, in words, what is needed and not there, each with a config's key for it."""
        return {
            word: _KEYS[need]
            for need, word in _WORDS.items()
            if getattr(needs, need) and not getattr(self, need)
        }


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method: registry name, where it runs, one line about it, its paper and its needs."""

    name: str
    made_by: str  # "module:class" below secede.unlearning
    runs_at: Literal["leaver", "server", "everyone"]
    summary: str
    source: str
    needs: Needs = Needs()
    scenarios: tuple[str, ...] | None = None  # the only ones it is made for; None: all
    poor_in: tuple[str, ...] = ()  # scenarios in which others are to be tried first
    erases: bool = True  # False: there to compare with, no way to erase anybody


# In the order in which we would try them, where they work: see docs/comparison.md.
METHODS: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Entry(
                name="second-choice",
                made_by="second_choice:SecondChoice",
                runs_at="leaver",
                summary="distil the others' mean's answers without the leaver's labels",
                source="ours; descends from FedQUIT",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="virtual-teacher",
                made_by="virtual_teacher:VirtualTeacher",
                runs_at="leaver",
                summary="distil the model's own answers with the true class pressed down",
                source="Mora et al. 2024, FedQUIT",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="projected-ascent",
                made_by="projected_ascent:ProjectedAscent",
                runs_at="leaver",
                summary="climb the leaver's loss in a ball around the others' mean",
                source="Halimi et al. 2022, Algorithm 1",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="distillation",
                made_by="distillation:Distillation",
                runs_at="server",
                summary="subtract the leaver's updates, let the old model teach what is left",
                source="Wu et al. 2022",
                needs=Needs(history=True, server_data=True, single_updates=True),
                poor_in=("class", "exclusive"),  # the old model teaches what it knows of them
            ),
            Entry(
                name="federaser",
                made_by="federaser:FedEraser",
                runs_at="server",
                summary="replay the kept rounds, each update turned to where it leads now",
                source="Liu et al. 2021, FedEraser",
                needs=Needs(history=True, single_updates=True),
            ),
            Entry(
                name="weight-negation",
                made_by="weight_negation:WeightNegation",
                runs_at="server",
                summary="flip the first layer's sign and post-train",
                source="Khalil et al. 2025, NoT",
            ),
            Entry(
                name="rapid-retrain",
                made_by="rapid_retrain:RapidRetrain",
                runs_at="server",
                summary="train from scratch with steps scaled by the Fisher information",
                source="Liu et al. 2022, INFOCOM",
            ),
            Entry(
                name="retrain",
                made_by="retrain:Retrain",
                runs_at="server",
                summary="train from scratch without the leaver: exact and expensive",
                source="gold standard",
            ),
            Entry(
                name="negated-update",
                made_by="negated_update:NegatedUpdate",
                runs_at="everyone",
                summary="one round in which the leaver's update counts the other way",
                source="Mora et al. 2025, PUF",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="orthogonal-descent",
                made_by="orthogonal_descent:OrthogonalDescent",
                runs_at="everyone",
                summary="unlearn at right angles to the others' gradients, hold the way back",
                source="Pan et al. 2025, FedOSD",
                needs=Needs(leaver_online=True, single_updates=True),
            ),
            Entry(
                name="class-pruning",
                made_by="class_pruning:ClassPruning",
                runs_at="everyone",
                summary="cut the channels that tell the erased classes apart",
                source="Wang et al. 2022",
                needs=Needs(leaver_online=True),
                scenarios=("class", "exclusive"),
            ),
            Entry(
                name="gradient-ascent",
                made_by="gradient_ascent:GradientAscent",
                runs_at="leaver",
                summary="climb the leaver's loss without bounds (ablation: the ball left out)",
                source="Halimi et al. 2022, section 4.2",
                needs=Needs(leaver_online=True),
                erases=False,  # it destroys the model
            ),
            Entry(
                name="reference",
                made_by="reference:Reference",
                runs_at="leaver",
                summary="the others' mean (ablation: the ascent left out)",
                source="Halimi et al. 2022, w_ref",
                # With w and w_ref the server can work out the leaver's own state.
                needs=Needs(leaver_online=True, single_updates=True),
                erases=False,
            ),
            Entry(
                name="fine-tune",
                made_by="fine_tune:FineTune",
                runs_at="server",
                summary="post-train the global model without the leaver (forgets little)",
                source="baseline",
                erases=False,
            ),
        )
    }
)


def plain(name: str) -> str:
    """Return a method's name without its variant: `second-choice@free` is a `second-choice`."""
    return name.partition("@")[0]


def check_name(name: str) -> None:
    """Raise unless `name` is a method or looks like a user's own, `package.module:Class`.

    Either may be followed by `@variant`, for the same method with other settings in one run.
    """
    method, mark, variant = name.partition("@")
    if mark and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,31}", variant):
        raise ConfigError(
            f"method {name!r}: a variant's name after '@' is 1 to 32 of a to z, 0 to 9, '.', '-'"
        )
    if method in METHODS or ":" in method:
        return
    raise ConfigError(
        f"unknown method {name!r}; {did_you_mean(method, METHODS)}"
        f"expected one of {', '.join(METHODS)}, or your own as package.module:Class"
    )


def check_possible(
    entry: Entry, situation: Situation, scenario: str, *, comparing: bool = True
) -> None:
    """Raise if `entry` cannot work here, and name the methods that can.

    Those to compare with are named, too, unless there is nothing to be compared.
    """
    if lacking := situation.lacks(entry.needs):
        missing = f"needs {' and '.join(lacking)}, which this federation does not have"
        keys = ", ".join(lacking.values())
    elif entry.scenarios is not None and scenario not in entry.scenarios:
        missing = f"is made for the scenarios {' and '.join(entry.scenarios)}, not {scenario}"
        keys = "scenario.name"
    else:
        return
    would = [METHODS[name] for name in suitable(METHODS.values(), situation, scenario)]
    would.sort(key=lambda other: scenario in other.poor_in)
    erasing = [other.name for other in would if other.erases]
    others = [other.name for other in would if not other.erases]
    ending = ""
    if comparing:  # retraining is one to compare with
        missing += f" ({keys} in a config)"
        erasing.remove("retrain")
        ending = f"; to compare with: retrain, which is always run, {', '.join(others)}"
    raise ConfigError(
        f"method {entry.name!r} {missing}; these would work, in the order we would try them: "
        f"{', '.join(erasing)}{ending}"
    )


def suitable(entries: Iterable[Entry], situation: Situation, scenario: str) -> tuple[str, ...]:
    """Return the names of the methods that work in this situation."""
    return tuple(
        entry.name
        for entry in entries
        if not situation.lacks(entry.needs)
        and (entry.scenarios is None or scenario in entry.scenarios)
    )
