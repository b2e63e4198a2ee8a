"""What a client answers a server at most, whatever it is asked: the client's own bounds.

A model made for it turns a step, or many counts, into single training samples. So a step starts
from a model near to one that the client trained itself, and is a real one; counts are rounded, of
classes that are large enough, and few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import cast, overload

import torch
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import LocalTraining, OwnState
from secede.seeding import generator
from secede.state import State
from secede.unlearning import LocalReport, LocalResult, Method, Reply, TakeStep, settings_of

KnownUpdate = tuple[State, Mapping[str, float]]  # an update, and how far a round moved each array
_FLOOR = 0.1  # of an array's norm: so far a model may be from an update that hardly moved it
_COUNT_SLACK = 10  # times farther for counts, which tell less than a step
_STEP = 0.01  # of the way to the reference, or to the own update: a shorter step hides nothing
_EPSILON = 1e-6  # for each value: rounding in a mean
_MIXED = 1024  # inputs of a unit whose noise is mixed from one another


@dataclass(frozen=True, kw_only=True)
class ClientLimits:
    """The bounds of what a client answers; what is beyond them is refused in words."""

    min_steps: int = 4  # of a local step: fewer return hardly more than a gradient
    max_batch: int = 1024
    max_epochs: int = 100
    max_clip: float = 10.0
    max_learning_rate: float = 1.0
    max_share: float = 0.9  # of the last mean that the server says is the client's
    model_distance: float = 5.0  # from an own update, in what that round moved
    steps: int = 4  # different local steps for one request
    monthly_steps: int = 6  # and in 30 days, whatever the request: it may be made up
    # Of a client that hides its updates: images can be recognised in a step, for all its noise.
    hidden_steps: int = 0
    hidden_monthly_steps: int = 2
    min_share: float = 0.001  # then, of the last mean: a step from a mean without it tells most
    questions: int = 24  # counts and measures of different models for one request
    readings: int = 12  # of canaries in different models for one request
    monthly: int = 48  # questions of any kind in 30 days
    tells_loss: bool = False  # no erasure asks for it, and one image may be nearly all of a loss
    min_class: int = 10  # samples: smaller classes are counted together, or not at all
    rounding: int = 2  # counts are rounded up or down at random to multiples of it
    noise: float = 0.5  # in a step, of how far it is from the server's model; if updates are hidden

    def __post_init__(self) -> None:
        for field in fields(self):
            value, may_be_none = getattr(self, field.name), field.name.endswith(("steps", "loss"))
            if not value >= 0 or not (value or may_be_none):
                expected = "0 or more" if may_be_none else "positive"
                raise ConfigError(f"{field.name} must be {expected}, got {value!r}")

    def while_hidden(self) -> ClientLimits:
        """Return the bounds of a client that hides its updates."""
        return replace(
            self,
            steps=min(self.steps, self.hidden_steps),
            monthly_steps=min(self.monthly_steps, self.hidden_monthly_steps),
        )

    def check_hidden_step(self, share: float) -> None:
        """Raise unless a client that hides its updates takes a step from a mean with this share."""
        if not self.steps:
            raise ConfigError(
                "this client hides its updates and takes no local step, in which a server could "
                "recognise samples; its owner allows one with "
                "limits=ClientLimits(hidden_steps=1)"
            )
        if not share >= self.min_share:
            raise ConfigError(
                f"this client hides its updates, and takes no step from a mean that it is not in: "
                f"a share of {share:g}, expected {self.min_share:g} or more"
            )

    def check_step(self, task: TakeStep, training: LocalTraining, share: float) -> None:
        """Raise unless a step's settings, and the share that is said to be ours, are in bounds."""
        settings = settings_of(cast("Method", task.step))
        limits = {
            "batch_size": self.max_batch,
            "epochs": self.max_epochs,
            "clip": self.max_clip,
            "learning_rate": self.max_learning_rate,
        }
        for name, limit in limits.items():
            value = settings.get(name)
            value = getattr(training, name, None) if value is None else value
            if isinstance(value, int | float) and not value <= limit:
                raise ConfigError(f"{name} is {value:g}, this client takes at most {limit:g}")
        if share > self.max_share:
            raise ConfigError(
                f"a share of {share:g} of the last mean, this client takes at most {self.max_share}"
            )

    def check_known(self, model: State, updates: Iterable[KnownUpdate], *, step: bool) -> None:
        """Raise unless a model is near, in each array, to an update that this client trained."""
        slack, farthest = 1 if step else _COUNT_SLACK, "it kept no update of this federation"
        for update, moved in updates:
            beyond = self._beyond(model, update, moved, slack)
            if beyond is None:
                return
            farthest = f"{beyond!r} is too far from every update that it kept"
        raise ConfigError(f"this client knows the model from no round: {farthest}")

    def _beyond(
        self, model: State, update: State, moved: Mapping[str, float], slack: float
    ) -> str | None:
        """Return an array in which a model is too far from an update; None if it is near."""
        for name, value in update.items():
            if not value.is_floating_point():
                continue
            norm, epsilon = float(value.double().norm()), _EPSILON * math.sqrt(value.numel())
            limit = max(self.model_distance * moved.get(name, 0.0), _FLOOR * norm)
            distance = float((model[name].double() - value.double()).norm())
            if not distance <= slack * limit + epsilon * (1 + norm):
                return name
        return None

    def check_result(self, result: LocalResult) -> None:
        """Raise if a step was none: its result would be little else than a gradient."""
        if result.report.steps < self.min_steps:
            raise ConfigError(
                f"the step ended after {result.report.steps} steps of training, and would return "
                f"hardly more than a gradient: this client takes {self.min_steps} or more"
            )

    def hidden_result(
        self, result: LocalResult, model: State, own: OwnState, secret: str
    ) -> LocalResult:
        """Return a step's result with noise; raise if it would reveal the own hidden update.

        A unit that a single sample moves would return that sample. In the open, rounds of training
        return as much. The noise is as large as all that the server sees: the change, and by how
        much the reference is off its model, which is the own update in another scale.
        """
        reference = states.reference(model, own.state, weight=own.weight)
        way = max(states.distance(model, reference), states.distance(model, own.state))
        if min(states.distance(result.state, start) for start in (reference, model)) <= _STEP * way:
            raise ConfigError(
                "the step ends where it begins and would reveal this client's own update, which "
                "secure aggregation hides: nothing is returned"
            )
        draw, state = generator(0, "noise", secret), {**result.state}
        for name, value in state.items():
            if value.is_floating_point() and value.numel():
                noise = _noise(value.float() - model[name].float(), draw)
                state[name] = value + (self.noise * noise).to(value.dtype)
        return LocalResult(state, _rounded_report(result.report))

    def check_loss(self, samples: int) -> None:
        """Raise unless this client tells its loss and accuracy."""
        if not self.tells_loss:
            raise ConfigError(
                "this client tells no loss, which can be nearly that of a single sample, and no "
                "erasure asks for it: limits=ClientLimits(tells_loss=True) would"
            )
        if samples < self.min_class:
            raise ConfigError(f"fewer than {self.min_class} samples here: no loss is told")

    def blurred(self, reply: Reply, secret: str, model: str, before: object = None) -> Reply:
        """Return a reply to a question without what would tell of single samples.

        All that is random comes from `secret` and the digests of the model and the one before, so
        that asking again tells no more, and changes fit the counts that were told before.
        """
        draw, state = generator(0, "blurred", secret, model), {**reply.state}
        if "loss" in state:
            self.check_loss(reply.samples)
            state["loss"] = state["loss"].new_tensor([float(f"{float(state['loss']):.2g}")])
            if math.isfinite(share := float(state["accuracy"])):
                count = torch.tensor([reply.samples])
                chances = torch.rand(1, generator=draw)
                right = self._rounded((share * count).round().long(), count, chances)
                state["accuracy"] = (right / count).to(state["accuracy"].dtype)
            return replace(reply, state=state)
        if any(values.shape != state["samples"].shape for values in state.values()):
            raise ConfigError("the counts are not of the same classes")
        counts = self._without_small_classes(state)
        samples = counts["samples"]
        chances = torch.rand(len(samples), generator=draw)
        right = self._rounded(counts["right"], samples, chances)
        if "lost" in counts:
            draw = generator(0, "blurred", secret, str(before))
            earlier = counts["right"] + counts["lost"] - counts["gained"]
            was = self._rounded(earlier, samples, torch.rand(len(samples), generator=draw))
            # What is gained follows from the rest, and another chance would be a second look.
            lost = self._rounded(counts["lost"], samples - right, 1 - chances)
            counts["lost"] = torch.maximum(torch.minimum(lost, was), was - right)
            counts["gained"] = right - was + counts["lost"]
        counts["right"] = right
        return replace(reply, state=counts, samples=int(samples.sum()))

    def _without_small_classes(self, counts: State) -> dict[str, Tensor]:
        """Return counts with those of small classes together, in the place of the first of them."""
        small = (counts["samples"] < self.min_class) & (counts["samples"] > 0)
        sums = {name: (values * small).sum() for name, values in counts.items()}
        large = {name: values * ~small for name, values in counts.items()}
        if sums["samples"] >= self.min_class:
            for name, values in large.items():
                values[small.nonzero()[0]] = sums[name]
        if not large["samples"].any():
            raise ConfigError(f"fewer than {self.min_class} samples here: they are not counted")
        return large

    def _rounded(self, counts: Tensor, most: Tensor, chances: Tensor) -> Tensor:
        """Round counts to a multiple below or above, such that the mean over chances is right."""
        counts = torch.minimum(counts, most)
        below = counts // self.rounding * self.rounding
        above = torch.minimum(below + self.rounding, most)
        chance = (counts - below) / (above - below).clamp(min=1)
        return torch.where(chances < chance, above, below)


def _noise(seen: Tensor, draw: torch.Generator) -> Tensor:
    """Return noise for what a server sees of an array: of its size, and of each unit's own size.

    A unit's own part is mixed from its inputs, the same way for all units: those that see the same
    sample have the same noise, and it does not go away in a mean over them.
    """
    noise = seen.square().mean().sqrt() * torch.randn(seen.shape, generator=draw)
    if seen.ndim < 2:
        return noise
    mixed = list[Tensor]()
    for part in seen.flatten(1).split(_MIXED, dim=1):
        size = part.shape[1]
        mixed.append(part @ torch.randn((size, size), generator=draw) / math.sqrt(size))
    return noise + torch.cat(mixed, dim=1).view_as(seen)


def _rounded_report(report: LocalReport) -> LocalReport:
    """Return a step's report with two digits of what was measured on samples and own update."""
    return replace(
        report,
        accuracy=_two_digits(report.accuracy),
        loss=_two_digits(report.loss),
        distance_to_own=_two_digits(report.distance_to_own),
        distance_to_reference=_two_digits(report.distance_to_reference),
        own_share=_two_digits(report.own_share),
        searched=tuple(replace(e, accuracy=_two_digits(e.accuracy)) for e in report.searched),
    )


@overload
def _two_digits(value: float) -> float: ...
@overload
def _two_digits(value: float | None) -> float | None: ...
def _two_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.2g}")
