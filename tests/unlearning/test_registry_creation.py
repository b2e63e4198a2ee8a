"""Methods by name, with settings that are checked, and a user's own.

Tests `strict.py` too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness import servers
from harness.paths import ROOT
from secede.errors import ConfigError
from secede.unlearning.method import LocalStepMethod, checked_start, settings_of
from secede.unlearning.methods.gradient_ascent import GradientAscent
from secede.unlearning.methods.projected_ascent import ProjectedAscent
from secede.unlearning.registry import (
    METHODS,
    Needs,
    Situation,
    check_possible,
    create,
    describe,
    suitable,
)

OWN = '''
from dataclasses import dataclass

from secede import state as states
from secede.unlearning.method import Method, Server, Start
from secede.unlearning.registry import Needs


@dataclass(frozen=True, kw_only=True)
class Shrink(Method):
    """Shrink every weight."""

    needs = Needs(history=True)
    factor: float = 0.5

    def start(self, server: Server) -> Start:
        zero = {name: value * 0 for name, value in server.global_state.items()}
        return Start(state=states.mean([server.global_state, zero], [self.factor, 1 - self.factor]))


class NotOne:
    pass
'''


def test_a_local_step_is_wrapped_and_gets_its_settings() -> None:
    entry, method = create("gradient-ascent", {"epochs": 3})
    assert entry is METHODS["gradient-ascent"]
    assert isinstance(method, LocalStepMethod)
    assert method.step == GradientAscent(epochs=3)


def test_a_local_step_that_holds_on_is_a_method_by_itself() -> None:
    _, method = create("projected-ascent", {"stop_distance": 2, "hold": 1})
    assert method == ProjectedAscent(stop_distance=2, hold=1.0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"epoch": 3}, "unknown key 'settings.projected-ascent.epoch': did you mean 'epochs'?"),
        ({"radius": "big"}, "settings.projected-ascent.radius is 'big', expected a valid number"),
        ({"stop": "never"}, "settings.projected-ascent.stop is 'never', expected 'distance', "),
        ({"epochs": -1}, "epochs must be positive, got -1"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create("projected-ascent", settings)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"hold_first": "heavy"}, "hold_first is 'heavy', expected a valid number or 'weighed'"),
        ({"hold_first": 1.5}, "hold_first must be within 0 and 1, got 1.5"),
        ({"floor": "no"}, "floor is 'no', expected a valid boolean"),
        ({"epochs": "2"}, "epochs is '2', expected a valid integer"),
        ({"clip": True}, "clip is True, expected a valid number"),
        ({"labels": "mine"}, "labels is 'mine', expected 'weighed', 'own' or 'all'"),
    ],
)
def test_what_a_setting_may_be_is_told_with_the_method(
    settings: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        create("second-choice@mine", settings)
    assert str(caught.value) in (
        f"settings.second-choice@mine.{told}",
        f"settings.second-choice@mine: {told}",
    )


OF_TYPES = """
from dataclasses import dataclass
from typing import Literal, Optional

@dataclass
class Own:
    epochs: int = 3
    mode: Literal["a", "b"] = "a"
    rate: Optional[float] = None
    other: float | None = None

    def unlearn(self, task): ...
"""


def _own_folder(folder: Path) -> Path:
    (folder / "dataclass_of_types.py").write_text(OF_TYPES)
    return folder


def test_settings_are_told_with_kind_and_default(tmp_path: Path) -> None:
    assert describe("federaser")[1] == {
        "interval": ("int", 2),
        "calibration_ratio": ("float", 0.5),
    }
    assert describe("second-choice")[1]["hold_by"] == ("Literal['model', 'neuron']", "neuron")
    assert describe("fine-tune")[1] == {}
    # A module that evaluates its annotations has types, not their names.
    assert describe("dataclass_of_types:Own", search=_own_folder(tmp_path))[1] == {
        "epochs": ("int", 3),
        "mode": ("Literal['a', 'b']", "a"),
        "rate": ("float | None", None),
        "other": ("float | None", None),
    }
    # It runs with none of its defaults alone, and is described all the same.
    assert describe("class-pruning")[1]["classes"] == ("tuple[int, ...]", ())


def test_settings_of_a_made_method_are_those_it_was_made_with() -> None:
    assert settings_of(create("gradient-ascent", {"epochs": 3})[1])["epochs"] == 3
    assert settings_of(create("federaser", {"interval": 4})[1])["interval"] == 4
    assert settings_of(create("fine-tune")[1]) == {}


def test_the_settings_of_second_choice_are_explained_with_their_defaults() -> None:
    page = ROOT / "docs" / "methods.md"
    lines = re.findall(r"^\| (`[a-z_`, ]+`) \| `?([^|`]+)`? \|", page.read_text(), re.MULTILINE)
    told = {name: default for names, default in lines for name in re.findall(r"`(\w+)`", names)}
    _, found = describe("second-choice")
    assert told.keys() >= found.keys()
    words = {None: "none", True: "true"}
    for name, (_, default) in found.items():
        expected = words[default] if default is None or default is True else str(default)
        assert told[name] == expected


def test_a_users_own_method_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "shrinking.py").write_text(OWN)
    entry, _ = create("shrinking:Shrink", {"factor": 0.9}, search=tmp_path)
    assert (entry.runs_at, entry.summary) == ("server", "Shrink every weight")
    assert entry.needs == Needs(history=True)
    with pytest.raises(ConfigError, match="needs stored history"):
        check_possible(entry, Situation(), "backdoor")
    with pytest.raises(ConfigError, match="expected a dataclass"):
        create("shrinking:NotOne", search=tmp_path)
    with pytest.raises(ConfigError, match="has no 'Other'"):
        create("shrinking:Other", search=tmp_path)


def test_a_local_step_that_would_never_be_asked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "climbing.py").write_text(
        "from dataclasses import dataclass\n"
        "from secede.unlearning.method import Method\n"
        "@dataclass(frozen=True)\n"
        "class Climb(Method):\n"
        "    def unlearn(self, task): ...\n"
    )
    with pytest.raises(ConfigError, match="must not inherit Method, whose start does nothing"):
        create("climbing:Climb", search=tmp_path)


def test_what_a_users_own_method_must_return_is_said(tmp_path: Path) -> None:
    (tmp_path / "forgetful.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Step:\n"
        "    def unlearn(self, task): return task.reference\n"
        "@dataclass(frozen=True)\n"
        "class Whole:\n"
        "    def start(self, server): ...\n"
    )
    step, whole = (create(f"forgetful:{name}", search=tmp_path)[1] for name in ("Step", "Whole"))
    found = servers.server()
    with pytest.raises(ConfigError, match=r"^Step.unlearn returned dict, expected a LocalResult$"):
        checked_start(step, found)
    with pytest.raises(ConfigError, match=r"^Whole.start returned NoneType, expected a Start$"):
        checked_start(whole, found)


def test_every_entry_can_be_built_and_says_where_it_runs() -> None:
    for name, entry in METHODS.items():
        made, method = create(name, {"classes": [0]} if name == "class-pruning" else {})
        assert made is entry
        assert hasattr(method, "unlearn") == (entry.runs_at == "leaver")


def test_without_the_leaver_only_server_methods_are_left() -> None:
    left = suitable(METHODS.values(), Situation(leaver_online=False), "backdoor")
    assert "fine-tune" in left
    assert "projected-ascent" not in left


def test_a_variant_is_the_same_method_under_another_name() -> None:
    entry, method = create("projected-ascent@far", {"stop_distance": 9.0})
    assert entry is METHODS["projected-ascent"]
    assert "stop_distance=9.0" in repr(method)
    with pytest.raises(ConfigError, match=r"settings\.projected-ascent@far\.stopp"):
        create("projected-ascent@far", {"stopp": 1})


@pytest.mark.parametrize("name", ["fine-tune@", "fine-tune@../up", "fine-tune@A", "fine-tune@a@b"])
def test_a_variants_name_is_fit_for_a_files(name: str) -> None:
    with pytest.raises(ConfigError, match=r"expected 1 to 32 of a to z, .* after '@'"):
        create(name)
    with pytest.raises(ConfigError, match="did you mean 'fine-tune'"):
        create("fine-tun@x")
