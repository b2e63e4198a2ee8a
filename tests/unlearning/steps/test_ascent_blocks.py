"""Tests `unlearning/steps/leaver_metrics.py` too."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from harness import climbs
from harness.plain_ascent import PlainClimb
from secede import state as states
from secede.errors import StateError
from secede.federation.engine import Batch
from secede.unlearning.method import LocalResult, LocalTask
from secede.unlearning.methods.projected_ascent import ProjectedAscent
from secede.unlearning.steps import leaver_metrics
from secede.unlearning.steps.ascent import AnchorState, Ascent, AscentBounds

BLOCKS = (1, 3, 8)


def assert_same(fast: LocalResult, plain: LocalResult) -> None:
    found, expected = fast.report, plain.report
    for name in ("steps", "ended_by", "projections", "gradient_samples", "stop_distance"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.searched == expected.searched
    assert found.search_target == expected.search_target
    assert found.accuracy == expected.accuracy
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.distance_to_own == pytest.approx(expected.distance_to_own, rel=1e-6)
    assert found.distance_to_reference == pytest.approx(expected.distance_to_reference, rel=1e-6)
    assert fast.state.keys() == plain.state.keys()
    for name, value in plain.state.items():
        if expected.projections == 0:
            assert torch.equal(fast.state[name], value), name
        else:  # the sum of squares that scales the projection may be taken in another order
            rtol = 2**-7 if value.dtype == torch.bfloat16 else 2e-7
            torch.testing.assert_close(fast.state[name], value, rtol=rtol, atol=1e-8)


def settings_of(draw: st.DrawFn, **changes: object) -> ProjectedAscent:
    drawn = {
        "radius": draw(st.sampled_from([0.05, 0.3, 2.0, 40.0])),
        "learning_rate": draw(st.sampled_from([0.01, 0.1, 1.0])),
        "momentum": draw(st.sampled_from([0.0, 0.9])),
        "clip": draw(st.sampled_from([0.05, 5.0])),
        "epochs": draw(st.integers(1, 5)),
    }
    return ProjectedAscent(**(drawn | changes))  # type: ignore[arg-type]


@st.composite
def stopped_climbs(draw: st.DrawFn, kind: str) -> tuple[ProjectedAscent, LocalTask]:
    """A climb and a threshold anywhere on its way, or just beyond all of it."""
    task = climbs.task_of(climbs.KINDS[kind], draw(st.integers(0, 99)))
    how = settings_of(draw)
    trail = list(PlainClimb(how, task).distances())
    # Beyond by a hair, so that no threshold is a distance that rounding may put on either side.
    fraction = draw(st.floats(0.02, 1.0)) * (1 + 1e-9)
    return dataclasses.replace(how, stop_distance=fraction * max(trail)), task


@st.composite
def searches(draw: st.DrawFn, kind: str) -> tuple[ProjectedAscent, LocalTask]:
    """Some leave the whole grid behind in one step, some never reach it."""
    task = climbs.task_of(climbs.KINDS[kind], draw(st.integers(0, 99)))
    rate = draw(st.sampled_from([0.01, 0.1, 0.5, 3.0]))
    radius = draw(st.sampled_from([0.5, 1.9, 40.0]))
    return settings_of(draw, learning_rate=rate, radius=radius, clip=5.0), task


@pytest.mark.parametrize("kind", climbs.KINDS)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_blocks_stop_at_the_step_at_which_single_plain_steps_stop(
    kind: str, data: st.DataObject
) -> None:
    how, task = data.draw(stopped_climbs(kind))
    plain = PlainClimb(how, task).unlearn()
    for block in BLOCKS:
        assert_same(how._unlearn(task, block_size=block), plain)


@pytest.mark.parametrize("kind", climbs.KINDS)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_blocks_search_the_grid_as_single_plain_steps_do(kind: str, data: st.DataObject) -> None:
    how, task = data.draw(searches(kind))
    plain = PlainClimb(how, task).unlearn()
    for block in BLOCKS:
        assert_same(how._unlearn(task, block_size=block), plain)


@pytest.mark.parametrize("kind", climbs.KINDS)
def test_a_stop_by_accuracy_is_the_plain_one(kind: str) -> None:
    task = climbs.task_of(climbs.KINDS[kind], 5)
    how = ProjectedAscent(radius=0.5, stop="accuracy", stop_accuracy=0.1, learning_rate=0.03)
    plain = PlainClimb(how, task).unlearn()
    for block in BLOCKS:
        assert_same(how._unlearn(task, block_size=block), plain)


# Fixed climbs, so that the cases that matter are there whatever hypothesis draws.
@pytest.mark.parametrize("block", BLOCKS)
def test_the_cases_that_matter_are_met(block: int) -> None:
    task = climbs.task_of(climbs.mlp, 1)
    calm = ProjectedAscent(radius=40.0, learning_rate=0.05, epochs=9)
    steps = [c.steps for c in calm._unlearn(task, block_size=block).report.searched]
    assert len(steps) == 9
    assert len(set(steps)) < 9, "several thresholds in one step"
    assert any(step % block != 1 % block for step in set(steps)) or block == 1, "within a block"
    tight = dataclasses.replace(calm, radius=0.5)._unlearn(task, block_size=block).report
    assert tight.projections > 20
    assert (tight.ended_by, tight.searched) == ("epochs", ())
    never = dataclasses.replace(calm, stop_distance=1e6)._unlearn(task, block_size=block).report
    assert (never.ended_by, never.steps) == ("epochs", 36)


@pytest.mark.parametrize("build", [climbs.dropout, climbs.spectral])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_model_that_a_vain_step_would_change_climbs_as_plain_code_does(
    build: type[nn.Module], block: int
) -> None:
    task = climbs.task_of(build, 2)
    how = ProjectedAscent(radius=40.0, learning_rate=0.1, epochs=9)
    torch.manual_seed(7)
    plain = PlainClimb(how, task).unlearn()
    torch.manual_seed(7)
    assert_same(how._unlearn(task, block_size=block), plain)
    assert len(plain.report.searched) > 2


def ascent_of(
    task: LocalTask, *, block_size: int | None = None, radius: float = 0.5
) -> tuple[Ascent, AscentBounds]:
    ascent = Ascent(
        task.model,
        task.reference,
        loss=task.loss,
        learning_rate=0.05,
        momentum=0.9,
        clip=5.0,
        block_size=block_size,
    )
    own, center = AnchorState(ascent, task.own_state), AnchorState(ascent, task.reference)
    return ascent, AscentBounds(center=center, radius=radius, own=own)


@pytest.mark.parametrize(
    ("build", "expected"), [(climbs.mlp, 8), (climbs.dropout, 1), (climbs.spectral, 1)]
)
def test_only_a_step_that_leaves_no_trace_is_followed_by_a_larger_block(
    build: type[nn.Module], expected: int
) -> None:
    task = climbs.task_of(build, 0)
    ascent, bounds = ascent_of(task, block_size=8)
    assert ascent.block_size == 1
    ascent.run_block(task.batches(0, 1)[:1], bounds, math.inf)  # type: ignore[index]
    assert ascent.block_size == expected


def test_blocks_on_the_cpu_hold_one_step() -> None:
    task = climbs.task_of(climbs.mlp, 0)
    ascent, bounds = ascent_of(task)
    ascent.run_block(list(task.batches(0, 1))[:1], bounds, math.inf)
    assert ascent.block_size == 1


def bits(ascent: Ascent) -> list[Tensor]:
    return [p.detach().clone() for p in ascent.parameters] + [
        velocity.clone() for velocity in ascent._momentum.views
    ]


@pytest.mark.parametrize("kind", climbs.KINDS)
@pytest.mark.parametrize("value", [0.5, math.nan, math.inf])
def test_steps_behind_the_stop_change_no_bit_whatever_their_gradients(
    kind: str, value: float
) -> None:
    task = climbs.task_of(climbs.KINDS[kind], 4)
    single, bounds = ascent_of(task, radius=40.0)
    batches = list(task.batches(0, 1))
    for batch in batches[:3]:
        last = single.run_block([batch], bounds, math.inf).distance
    expected, steps, samples = bits(single), single.steps, single.gradient_samples
    inputs, labels = batches[3]
    strange = [(torch.full_like(inputs, value), labels)] * 4

    ascent, bounds = ascent_of(task, radius=40.0)
    result = ascent.run_block([*batches[:3], *strange], bounds, last * (1 - 1e-9))
    assert result.steps == 3
    assert result.distance == pytest.approx(last)
    assert (ascent.steps, ascent.gradient_samples) == (steps, samples)
    for found, wanted in zip(bits(ascent), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)

    again, bounds = ascent_of(task, radius=40.0)
    again.run_block(batches[:3], bounds, last * (1 - 1e-9))
    for found, wanted in zip(bits(ascent), bits(again), strict=True):
        assert torch.equal(found, wanted)
        assert torch.equal(torch.signbit(found), torch.signbit(wanted))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("step", [1, 3, 7])
def test_the_step_that_leaves_the_finite_numbers_is_named(block: int, step: int) -> None:
    task = climbs.task_of(climbs.mlp, 0, batches=9)

    def breaking(size: int, number: int) -> list[Batch]:
        batches = list(task.batches(size, number))
        if number > 0:
            inputs, labels = batches[step - 1]
            batches[step - 1] = (inputs * math.inf, labels)
        return batches

    how = ProjectedAscent(radius=0.5, stop_distance=99.0, epochs=1)
    with pytest.raises(StateError, match=f"gave values that are not finite at step {step}:"):
        how._unlearn(dataclasses.replace(task, batches=breaking), block_size=block)


def test_labels_are_checked_once_and_not_at_every_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = list[int]()
    check = leaver_metrics._check_labels

    def counted(outputs: Tensor, labels: Tensor) -> None:
        checks.append(len(labels))
        check(outputs, labels)

    monkeypatch.setattr(leaver_metrics, "_check_labels", counted)
    how = ProjectedAscent(radius=0.5, stop="accuracy", stop_accuracy=0.0, epochs=2)
    assert how.unlearn(climbs.task_of(climbs.mlp, 0)).report.steps == 8
    assert len(checks) == 4


gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ON_GPU = pytest.mark.parametrize("device", [pytest.param("cuda", marks=gpu)])


@ON_GPU
@pytest.mark.parametrize("kind", climbs.KINDS)
def test_a_block_never_waits_for_the_gpu(kind: str, device: str) -> None:
    task = climbs.task_of(climbs.KINDS[kind], 0, batches=9, device=device)
    ascent, bounds = ascent_of(task)
    first, *batches = task.batches(0, 1)
    ascent.run_block([first], bounds, 0.5)  # what is set up once may wait
    assert ascent.block_size == 8
    torch.cuda.set_sync_debug_mode("error")
    try:
        trail = ascent._step_block.launch(
            batches,
            center=bounds.center.values,
            radius=bounds.radius,
            own=bounds.own.values,
            stop_distance=0.5,
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trail.shape == (8, 2)
    assert trail.isfinite().all()


@ON_GPU
@pytest.mark.parametrize("kind", climbs.KINDS)
def test_a_block_on_a_gpu_ends_where_single_plain_steps_end(kind: str, device: str) -> None:
    task = climbs.task_of(climbs.KINDS[kind], 3, device=device)
    how = ProjectedAscent(radius=1.9, learning_rate=0.05, epochs=5)
    with torch.backends.cudnn.flags(deterministic=True):
        plain, fast = PlainClimb(how, task).unlearn(), how.unlearn(task)
        single = how._unlearn(task, block_size=1)
    assert states.digest(fast.state) == states.digest(single.state)
    assert fast.report == single.report
    for name in ("steps", "ended_by", "projections", "gradient_samples"):
        assert getattr(fast.report, name) == getattr(plain.report, name), name
    assert [c.steps for c in fast.report.searched] == [c.steps for c in plain.report.searched]
    for name, value in plain.state.items():
        rtol = 2**-6 if value.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(fast.state[name], value, rtol=rtol, atol=1e-6)
