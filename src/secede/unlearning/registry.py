"""The registry of methods: their names, where they run and what they need. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from secede.errors import ConfigError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a method needs to run."""

    leaver_online: bool = False
    history: bool = False
    server_data: bool = False
    single_updates: bool = False  # then it does not work under secure aggregation

    def words(self) -> tuple[str, ...]:
        """Return the needs in words."""
        return tuple(word for key, word in _WORDS.items() if getattr(self, key))


_WORDS = {
    "leaver_online": "the leaver online",
    "history": "stored history",
    "server_data": "data at the server",
    "single_updates": "single updates",
}

# The config keys that tell whether a federation has what a method needs.
_KEYS = {
    **{need: f"situation.{need}" for need in _WORDS},
    "single_updates": "situation.secure_aggregation",
}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a federation has for a method to use."""

    leaver_online: bool = True
    history: bool = False
    server_data: bool = False
    single_updates: bool = True  # False under secure aggregation

    def missing(self, needs: Needs) -> dict[str, str]:
        """Return the missing needs in words, each with its config key."""
        return {
            word: _KEYS[need]
            for need, word in _WORDS.items()
            if getattr(needs, need) and not getattr(self, need)
        }


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method of the registry: its name, where it runs, its summary, source and needs."""

    name: str
    class_path: str  # "module:class" below secede.unlearning.methods
    runs_at: Literal["leaver", "server", "everyone"]
    summary: str
    source: str
    needs: Needs = Needs()
    scenarios: tuple[str, ...] | None = None  # the only scenarios that it works in; None: all
    poor_in: tuple[str, ...] = ()  # scenarios in which other methods are better
    erases: bool = True  # False: a baseline or an ablation, not fit for an erasure


# In the order in which to try them, where they work: see docs/comparison.md.
METHODS: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Entry(
                name="second-choice",
                class_path="second_choice:SecondChoice",
                runs_at="leaver",
                summary="distil the others' mean without the labels that are the leaver's own",
                source="ours; descends from FedQUIT",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="virtual-teacher",
                class_path="virtual_teacher:VirtualTeacher",
                runs_at="leaver",
                summary="distil the model's own outputs with the true class lowered",
                source="Mora et al. 2024, FedQUIT",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="projected-ascent",
                class_path="projected_ascent:ProjectedAscent",
                runs_at="leaver",
                summary="ascend the leaver's loss in a ball around the others' mean",
                source="Halimi et al. 2022, Algorithm 1",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="distillation",
                class_path="distillation:Distillation",
                runs_at="server",
                summary="subtract the leaver's updates, then distil the old model at the server",
                source="Wu et al. 2022",
                needs=Needs(history=True, server_data=True, single_updates=True),
                poor_in=("class", "exclusive"),  # the old model teaches these classes again
            ),
            Entry(
                name="federaser",
                class_path="federaser:FedEraser",
                runs_at="server",
                summary="replay the recorded rounds without the leaver, with calibrated updates",
                source="Liu et al. 2021, FedEraser",
                needs=Needs(history=True, single_updates=True),
            ),
            Entry(
                name="weight-negation",
                class_path="weight_negation:WeightNegation",
                runs_at="server",
                summary="negate the first layer, then post-train",
                source="Khalil et al. 2025, NoT",
            ),
            Entry(
                name="rapid-retrain",
                class_path="rapid_retrain:RapidRetrain",
                runs_at="server",
                summary="retrain from scratch with steps scaled by the Fisher information",
                source="Liu et al. 2022, INFOCOM",
            ),
            Entry(
                name="retrain",
                class_path="retrain:Retrain",
                runs_at="server",
                summary="retrain from scratch without the leaver: exact and expensive",
                source="gold standard",
            ),
            Entry(
                name="negated-update",
                class_path="negated_update:NegatedUpdate",
                runs_at="everyone",
                summary="train one round with the leaver's update negated",
                source="Mora et al. 2025, PUF",
                needs=Needs(leaver_online=True),
            ),
            Entry(
                name="orthogonal-descent",
                class_path="orthogonal_descent:OrthogonalDescent",
                runs_at="everyone",
                summary="unlearn orthogonally to the others' gradients, then hold post-training",
                source="Pan et al. 2025, FedOSD",
                needs=Needs(leaver_online=True, single_updates=True),
            ),
            Entry(
                name="class-pruning",
                class_path="class_pruning:ClassPruning",
                runs_at="everyone",
                summary="zero the channels that discriminate the erased classes",
                source="Wang et al. 2022",
                needs=Needs(leaver_online=True),
                scenarios=("class", "exclusive"),
            ),
            Entry(
                name="gradient-ascent",
                class_path="gradient_ascent:GradientAscent",
                runs_at="leaver",
                summary="ascend the leaver's loss without a ball (ablation of projected-ascent)",
                source="Halimi et al. 2022, section 4.2",
                needs=Needs(leaver_online=True),
                erases=False,  # it destroys the model
            ),
            Entry(
                name="reference",
                class_path="reference:Reference",
                runs_at="leaver",
                summary="send the others' mean (ablation of projected-ascent without steps)",
                source="Halimi et al. 2022, w_ref",
                # From w and w_ref the server can compute the leaver's own state.
                needs=Needs(leaver_online=True, single_updates=True),
                erases=False,
            ),
            Entry(
                name="fine-tune",
                class_path="fine_tune:FineTune",
                runs_at="server",
                summary="post-train the global model without the leaver (forgets little)",
                source="baseline",
                erases=False,
            ),
        )
    }
)


def base_name(name: str) -> str:
    """Return a method's name without its variant: `second-choice` for `second-choice@free`."""
    return name.partition("@")[0]


def check_name(name: str) -> None:
    """Raise unless `name` is a method or looks like a user's own, `package.module:Class`.

    Either may end in `@variant`: the same method with other settings in one run.
    """
    method, mark, variant = name.partition("@")
    if mark and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,31}", variant):
        raise ConfigError(
            f"method {name!r}: expected 1 to 32 of a to z, 0 to 9, '.' and '-' after '@'"
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
    """Raise if the method cannot work here; the error names the methods that can.

    With `comparing` it names baselines and config keys, too.
    """
    if missing := situation.missing(entry.needs):
        problem = f"needs {' and '.join(missing)}, which this federation does not have"
        keys = ", ".join(missing.values())
    elif entry.scenarios is not None and scenario not in entry.scenarios:
        problem = f"works in the scenarios {' and '.join(entry.scenarios)} only, not in {scenario}"
        keys = "scenario.name"
    else:
        return
    possible = [METHODS[name] for name in suitable(METHODS.values(), situation, scenario)]
    possible.sort(key=lambda other: scenario in other.poor_in)
    erasing = [other.name for other in possible if other.erases]
    baselines = [other.name for other in possible if not other.erases]
    ending = ""
    if comparing:  # retraining is always run
        problem += f" ({keys} in a config)"
        erasing.remove("retrain")
        ending = f"; baselines: retrain, which is always run, {', '.join(baselines)}"
    raise ConfigError(
        f"method {entry.name!r} {problem}; methods that work here, best first: "
        f"{', '.join(erasing)}{ending}"
    )


def suitable(entries: Iterable[Entry], situation: Situation, scenario: str) -> tuple[str, ...]:
    """Return the names of the methods that work in this situation and scenario."""
    return tuple(
        entry.name
        for entry in entries
        if not situation.missing(entry.needs)
        and (entry.scenarios is None or scenario in entry.scenarios)
    )
