"""The guard: checks the state that the leaver returned, before anybody trains from it.

Distances are plain L2 over the trainable entries. Their unit is the paper's radius, a third of the
distance to freshly initialised models; docs/threats.md has what honest starts measure in it, and so
where the limits come from. The guard has no samples: it bounds how far a state goes and cannot see
what it does. The gate looks at that, and nobody sees a backdoor without its trigger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from secede import state as states
from secede.erasure.defences.fingerprints import Fingerprints
from secede.erasure.documents import GuardLimits
from secede.erasure.storage import GuardReport
from secede.errors import ConfigError, GuardError, StateError
from secede.federation.engine import OwnState
from secede.state import State
from secede.text import short_digest
from secede.unlearning import third_of_distance_to_fresh


@dataclass(frozen=True, kw_only=True)
class UpdateTrace:
    """Metadata kept about an update after its values are discarded."""

    weight: float  # in the mean that the global model is
    distance: float | None = None  # from the global model, plain L2 over the trainable entries
    digest: str | None = None

    @property
    def to_reference(self) -> float:
        """Distance of the reference from the global model: p/(1 − p) times the update's."""
        if not 0 < self.weight < 1 or self.distance is None:
            return 0.0
        return self.weight / (1 - self.weight) * self.distance


_FINGERPRINT_FACTOR = 4.0  # on `min_distance`, for models of which only a fingerprint is left
_ROUNDING = 1e-6  # of a radius: a state on the ball's edge is not pulled back for it
_SAME_DISTANCE = 1e-4  # of the reference's distance: no honest step is nearer to it by chance


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Checks the state that a leaver returned; `check` returns what post-training may start from.

    With the leaver's last update the server recomputes the reference. It lies on the line through
    the global model and that update, as do all mixtures of the three: a state on it took no data.
    An honest start may lie there too, where the leaver alone held its classes and the reference has
    forgotten them already; `min_line_distance=0` then refuses exact copies only.

    Without single updates the global model is the centre and the only known state. A server that
    kept a `trace` of the last update knows how far off the reference lies, not where: the limits
    are wider by that, since an honest state lies around the reference; the leaver's last update and
    the reference itself are refused, by digest and by distance. Under secure aggregation not even
    that is known, and a leaver with a large share may be refused.
    """

    global_state: State
    fresh_model: Callable[[int], nn.Module]  # the n-th freshly initialised model
    last: OwnState | None = None  # the leaver's last update and its share in the mean
    trace: UpdateTrace | None = None  # of that update, where the server no longer has it
    radius: float | None = None  # plain L2, the method's own; None: the guard's ball
    ball: float | None = None  # radius in units, as are the next three; None: no ball of its own
    max_distance: float = GuardLimits().max_distance  # from the centre
    min_distance: float = GuardLimits().min_distance  # from every known state
    min_line_distance: float = GuardLimits().min_line_distance  # from the line
    registered: Collection[str] = ()  # digests of all models that ever served
    fingerprints: Fingerprints | None = None  # of those whose files may be gone

    def __post_init__(self) -> None:
        for name in ("radius", "ball"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("min_distance", "min_line_distance"):
            if not 0 <= getattr(self, name) < self.max_distance:
                raise ConfigError(
                    f"{name} must be at least 0 and below max_distance ({self.max_distance}), "
                    f"got {getattr(self, name)}"
                )

    def check(self, state: State) -> tuple[dict[str, Tensor], GuardReport]:
        """Return the state made safe, and the report; raise GuardError to refuse it."""
        self._check_schema(state)
        state = states.to(state, next(iter(self.global_state.values())).device)
        away = self._check_not_far(state)
        from_global, from_line = self._check_unlearnt(state)
        safe, restored = self._restored(state)
        projections, radius = 0, self._ball
        if radius is not None and away > (1 + _ROUNDING) * radius:
            safe, projections = states.project(safe, self._centre, radius), 1
        return safe, GuardReport(
            digest=states.digest(safe),
            centre="global" if self.last is None else "reference",
            distance=away,
            distance_to_global=from_global,
            distance_to_line=from_line,
            unit=self._unit,
            max_distance=self._limit,
            min_distance=self.min_distance * self._unit,
            min_line_distance=self.min_line_distance * self._unit,
            radius=radius,
            ball=None if radius is None else "guard" if self.radius is None else "method",
            known=len({*self.registered} - {states.digest(self.global_state)}),
            projections=projections,
            restored=restored,
            to_reference=self._offset,
        )

    def _check_schema(self, state: State) -> None:
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

    def _check_unlearnt(self, state: State) -> tuple[float, float | None]:
        """Return the distances to the global model and to the line; raise for a known state."""
        digest = states.digest(state)
        for name, known in self._known.items():
            if digest == states.digest(known):
                raise GuardError(f"the returned state is {name}: nothing was unlearnt")
            self._check_apart(name, self._distance(state, known), self.min_distance)
        self._check_trace(state, digest)
        self._check_registered(state, digest)
        from_global, from_line = self._distance(state, self.global_state), self._off_line(state)
        if from_line is not None:
            line = "the line through the global model and the leaver's last update"
            self._check_apart(line, from_line, self.min_line_distance)
        return from_global, from_line

    def _check_trace(self, state: State, digest: str) -> None:
        """Raise for the leaver's last update, and for a state just as far off as the reference."""
        if self.last is not None or self.trace is None:
            return
        if digest == self.trace.digest:
            raise GuardError("the returned state is the leaver's last update: nothing was unlearnt")
        away = self._distance(state, self.global_state)
        if self.min_distance and abs(away - self._offset) < _SAME_DISTANCE * self._offset:
            raise GuardError(
                f"the returned state is {away:.6g} from the global model, just as far as the "
                "reference: nothing was unlearnt"
            )

    def _check_registered(self, state: State, digest: str) -> None:
        """Raise for a model that served before, by digest, or one near it, by fingerprint."""
        if digest in self.registered:
            raise GuardError("the returned state is a model that served before: it is out of use")
        if self.fingerprints is None:
            return
        for model in sorted({*self.registered} - {states.digest(self.global_state)}):
            away = self.fingerprints.distance(model, state, self._trainable)
            if away is not None:
                name = f"model {short_digest(model)}, which served before"
                self._check_apart(name, away, _FINGERPRINT_FACTOR * self.min_distance)

    def _check_apart(self, name: str, distance: float, min_distance: float) -> None:
        if distance < min_distance * self._unit:
            raise GuardError(
                f"the returned state is {distance:.3g} from {name}, expected at least "
                f"{min_distance * self._unit:.3g}: nothing was unlearnt"
            )

    def _off_line(self, state: State) -> float | None:
        if self.last is None:
            return None
        origin = self._only_trainable(self.global_state)
        away = states.difference(self._only_trainable(state), origin)
        line = states.difference(self._only_trainable(self.last.state), origin)
        return states.norm(states.orthogonal_part(away, [line]))

    def _restored(self, state: State) -> tuple[dict[str, Tensor], int]:
        """Return the state with buffers and frozen parameters as the server has them."""
        returned = self._trainable | self._shared.keys()
        own = {name: v for name, v in self._centre.items() if name not in returned}
        changed = sum(not torch.equal(state[name], value) for name, value in own.items())
        restored = {name: own.get(name, value).clone() for name, value in state.items()}
        return states.tied(restored, self._shared), changed

    @property
    def _ball(self) -> float | None:
        if self.radius is not None:
            return self.radius + self._offset
        return None if self.ball is None else self.ball * self._unit + self._offset

    @cached_property
    def _trainable(self) -> frozenset[str]:
        parameters = self.fresh_model(0).named_parameters()
        trainable = frozenset(
            n for n, p in parameters if p.requires_grad and n in self.global_state
        )
        if not trainable:
            raise ConfigError("The model has no trainable parameters.")
        return trainable

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
        return third_of_distance_to_fresh(self._centre, self.fresh_model, self._trainable)

    @property
    def _limit(self) -> float:
        return max(self.max_distance * self._unit, self.radius or 0.0) + self._offset

    @property
    def _offset(self) -> float:
        """How far from the centre the reference lies: 0 where it is the centre, or unknown."""
        return 0.0 if self.last is not None or self.trace is None else self.trace.to_reference

    def _only_trainable(self, state: State) -> dict[str, Tensor]:
        return {name: value for name, value in state.items() if name in self._trainable}

    def _distance(self, a: State, b: State) -> float:
        try:
            return states.distance(self._only_trainable(a), self._only_trainable(b))
        except OverflowError:  # float64 values whose squares have no number
            return float("inf")
