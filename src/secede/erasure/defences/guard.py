"""The guard: what the leaver returned is held against what the server knows, before anybody trains.

Distances are plain L2 over what training moves. Their unit is the paper's radius, a third of the
distance to freshly initialised models; what honest starts measure in it, and so where the limits
come from, is in docs/threats.md. The guard has no samples: it bounds how far a state goes and
cannot see what it does. The gate looks at that, and nobody sees a backdoor without its trigger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from secede import state as states
from secede.erasure.defences.fingerprints import Fingerprints
from secede.erasure.documents.plan import GuardLimits
from secede.erasure.storage.transition_details import GuardReport
from secede.errors import ConfigError, GuardError, StateError
from secede.federation.engine import OwnState
from secede.state import State
from secede.text import short_digest
from secede.unlearning.steps.radius import third_of_distance_to_fresh


@dataclass(frozen=True, kw_only=True)
class UpdateTrace:
    """What a server knows of an update that it has not: its share, and what it wrote down then."""

    weight: float  # in the mean that the global model is
    distance: float | None = None  # from the global model, plain L2 over what training moves
    digest: str | None = None

    @property
    def to_reference(self) -> float:
        """How far the reference lies from the global model: p/(1 − p) times the update's way."""
        if not 0 < self.weight < 1 or self.distance is None:
            return 0.0
        return self.weight / (1 - self.weight) * self.distance


FARTHEST = GuardLimits().max_distance  # units from the centre
NEAREST = GuardLimits().min_distance  # units from every known state
NEAREST_LINE = GuardLimits().min_line_distance  # from the line of global model and last update
SKETCHED = 4.0  # times further from a model that is known by its sketch alone
ROUNDING = 1e-6  # of a radius: a state on the ball's edge is not pulled back for it
SAME = 1e-4  # of the reference's distance: nearer to it no honest step comes by chance


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Checks one leaver's returned state; `check` returns what post-training may start from.

    With the leaver's last update the server recomputes the reference, which lies on the line
    through the global model and that update, as all mixtures of the three do: a state on it took no
    data. An honest start may lie there too, where the leaver alone held its classes and the
    reference has forgotten them already; `nearest_line=0` then refuses exact copies only.

    Without single updates the global model is the centre and the only known state. A server that
    saw the updates once and kept a `trace` knows how far off the reference lies, not where: the
    limits are wider by so much, since an honest state lies around the reference; the leaver's last
    update and the reference itself are refused, by digest and by distance. Under secure aggregation
    not even that is known, and a leaver with a large share may be refused.
    """

    global_state: State
    fresh_model: Callable[[int], nn.Module]  # the n-th freshly initialised model
    last: OwnState | None = None  # the leaver's last update and its share in the mean
    trace: UpdateTrace | None = None  # of that update, where the server has it no more
    radius: float | None = None  # plain L2, the method's own; None: the guard's ball
    ball: float | None = None  # in units, as are the next three; None: no ball of the guard's
    farthest: float = FARTHEST
    nearest: float = NEAREST
    nearest_line: float = NEAREST_LINE
    registered: Collection[str] = ()  # digests of all models that ever served
    sketches: Fingerprints | None = None  # of those whose files may be gone

    def __post_init__(self) -> None:
        for name in ("radius", "ball"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("nearest", "nearest_line"):
            if not 0 <= getattr(self, name) < self.farthest:
                raise ConfigError(
                    f"{name} must be at least 0 and below farthest ({self.farthest}), "
                    f"got {getattr(self, name)}"
                )

    def check(self, state: State) -> tuple[dict[str, Tensor], GuardReport]:
        """Return the state made safe, and the report; raise GuardError for one that is refused."""
        self._check_form(state)
        state = states.to(state, next(iter(self.global_state.values())).device)
        away = self._check_not_far(state)
        from_global, from_line = self._check_not_lazy(state)
        safe, restored = self._restored(state)
        projections, radius = 0, self._ball
        if radius is not None and away > (1 + ROUNDING) * radius:
            safe, projections = states.project(safe, self._centre, radius), 1
        return safe, GuardReport(
            digest=states.digest(safe),
            centre="global" if self.last is None else "reference",
            distance=away,
            distance_to_global=from_global,
            distance_to_line=from_line,
            unit=self._unit,
            farthest=self._limit,
            nearest=self.nearest * self._unit,
            nearest_line=self.nearest_line * self._unit,
            radius=radius,
            ball=None if radius is None else "guard" if self.radius is None else "method",
            known=len({*self.registered} - {states.digest(self.global_state)}),
            projections=projections,
            restored=restored,
            to_reference=self._offset,
        )

    def _check_form(self, state: State) -> None:
        try:
            states.check_schema(state, self.global_state)
            states.check_finite(state, "the returned state")
        except StateError as error:
            raise GuardError(str(error)) from error

    def _check_not_far(self, state: State) -> float:
        away = self._distance(state, self._centre)
        if not away <= self._limit:
            raise GuardError(
                f"the returned state is {away:.4g} from {self._centre_name}, expected at most "
                f"{self._limit:.4g}: no unlearning step goes that far"
            )
        if away < 2 * self._offset - self._limit:
            raise GuardError(
                f"the returned state is {away:.4g} from {self._centre_name}, expected at least "
                f"{2 * self._offset - self._limit:.4g}: the reference lies {self._offset:.4g} off"
            )
        return away

    def _check_not_lazy(self, state: State) -> tuple[float, float | None]:
        """Return the distances to the global model and to the line; copies and neighbours raise."""
        found = states.digest(state)
        for name, known in self._known.items():
            if found == states.digest(known):
                raise GuardError(f"the returned state is {name}: nothing was unlearnt")
            self._check_apart(name, self._distance(state, known), self.nearest)
        self._check_not_traced(state, found)
        self._check_not_registered(state, found)
        from_global, from_line = self._distance(state, self.global_state), self._off_line(state)
        if from_line is not None:
            line = "the line through the global model and the leaver's last update"
            self._check_apart(line, from_line, self.nearest_line)
        return from_global, from_line

    def _check_not_traced(self, state: State, found: str) -> None:
        """Raise for the leaver's last update, and for a state just as far off as the reference."""
        if self.last is not None or self.trace is None:
            return
        if found == self.trace.digest:
            raise GuardError("the returned state is the leaver's last update: nothing was unlearnt")
        away = self._distance(state, self.global_state)
        if self.nearest and abs(away - self._offset) < SAME * self._offset:
            raise GuardError(
                f"the returned state is {away:.6g} from the global model, just as far as the "
                "reference: nothing was unlearnt"
            )

    def _check_not_registered(self, state: State, found: str) -> None:
        """Raise for a model that served before, or one near it: by digest, then by sketch."""
        if found in self.registered:
            raise GuardError("the returned state is a model that served before: it is out of use")
        if self.sketches is None:
            return
        for digest in sorted({*self.registered} - {states.digest(self.global_state)}):
            away = self.sketches.distance(digest, state, self._movable)
            if away is not None:
                name = f"model {short_digest(digest)}, which served before"
                self._check_apart(name, away, SKETCHED * self.nearest)

    def _check_apart(self, what: str, found: float, least: float) -> None:
        if found < least * self._unit:
            raise GuardError(
                f"the returned state is {found:.3g} from {what}, expected at least "
                f"{least * self._unit:.3g}: nothing was unlearnt"
            )

    def _off_line(self, state: State) -> float | None:
        if self.last is None:
            return None
        here = self._moved(self.global_state)
        away = states.difference(self._moved(state), here)
        way = states.difference(self._moved(self.last.state), here)
        return states.norm(states.orthogonal_part(away, [way]))

    def _restored(self, state: State) -> tuple[dict[str, Tensor], int]:
        """Return the state with buffers and frozen parameters as the server has them."""
        kept = self._movable | self._shared.keys()
        own = {name: v for name, v in self._centre.items() if name not in kept}
        changed = sum(not torch.equal(state[name], value) for name, value in own.items())
        restored = {name: own.get(name, value).clone() for name, value in state.items()}
        return states.tied(restored, self._shared), changed

    @property
    def _ball(self) -> float | None:
        if self.radius is not None:
            return self.radius + self._offset
        return None if self.ball is None else self.ball * self._unit + self._offset

    @cached_property
    def _movable(self) -> frozenset[str]:
        parameters = self.fresh_model(0).named_parameters()
        movable = frozenset(n for n, p in parameters if p.requires_grad and n in self.global_state)
        if not movable:
            raise ConfigError("the network has no parameter that training moves: another network?")
        return movable

    @cached_property
    def _shared(self) -> dict[str, str]:
        """Further names of shared parameters, which follow the first."""
        return states.aliases(self.fresh_model(0))

    @cached_property
    def _centre(self) -> State:
        """The retained clients' mean where it can be recomputed."""
        if self.last is None:
            return self.global_state
        return states.reference(self.global_state, self.last.state, weight=self.last.weight)

    @property
    def _centre_name(self) -> str:
        return "the global model" if self.last is None else "the reference"

    @cached_property
    def _known(self) -> dict[str, State]:
        if self.last is None:
            return {"the global model": self.global_state}
        return {
            "the global model": self.global_state,
            "the reference": self._centre,
            "the leaver's last update": self.last.state,
        }

    @cached_property
    def _unit(self) -> float:
        return third_of_distance_to_fresh(self._centre, self.fresh_model, self._movable)

    @property
    def _limit(self) -> float:
        return max(self.farthest * self._unit, self.radius or 0.0) + self._offset

    @property
    def _offset(self) -> float:
        """How far from the centre the reference lies: 0 where it is the centre, or unknown."""
        return 0.0 if self.last is not None or self.trace is None else self.trace.to_reference

    def _moved(self, state: State) -> dict[str, Tensor]:
        return {name: value for name, value in state.items() if name in self._movable}

    def _distance(self, a: State, b: State) -> float:
        try:
            return states.distance(self._moved(a), self._moved(b))
        except OverflowError:  # float64 values whose squares have no number
            return float("inf")
