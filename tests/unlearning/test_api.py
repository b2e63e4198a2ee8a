from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import secede
from secede import state as states
from secede.errors import ConfigError, DataError, StateError
from secede.federation.engine import Batch
from secede.unlearning.methods.projected_ascent import ProjectedAscent

STEP = ProjectedAscent(stop_distance=0.5, learning_rate=0.05, epochs=3)


def images(count: int = 48) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(count, 1, 8, 8, generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return list(zip(inputs.split(16), labels.split(16), strict=True))


def trained(model: nn.Module) -> nn.Module:
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model.train()
    for inputs, labels in images():
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return model


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))


def with_batchnorm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )


class Shared(nn.Module):
    """Encoder and decoder are one matrix, as word embeddings often are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64, bias=False)
        self.outer = nn.Linear(64, 64, bias=False)
        self.outer.weight = self.inner.weight
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.outer(self.inner(x.flatten(1)).relu()))
        return out


def erase(model: nn.Module, **changes: object) -> secede.LocalResult:
    state = states.of(model)
    settings: dict[str, object] = {"reference": state, "own_state": state, "step": STEP, **changes}
    batches = settings.pop("batches", images())
    return secede.unlearn(model, batches, **settings)  # type: ignore[arg-type]


def test_the_readme_call_works_with_the_papers_defaults() -> None:
    torch.manual_seed(0)
    own, model = trained(plain()), trained(plain())
    global_state, own_state = model.state_dict(), own.state_dict()
    reference = secede.reference(global_state, own_state, weight=0.2)
    result = secede.unlearn(model, images(), reference=reference, own_state=own_state)
    before = trained_loss(model, reference)
    assert result.report.loss is not None
    assert result.report.loss > before
    model.load_state_dict(dict(result.state))


def trained_loss(model: nn.Module, state: dict[str, Tensor]) -> float:
    model.load_state_dict(state)
    model.eval()
    inputs, labels = (torch.cat(parts) for parts in zip(*images(), strict=True))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(inputs), labels))


def test_the_users_model_is_left_as_it_was() -> None:
    model = trained(plain())
    model.train()
    before = states.digest(states.of(model))
    erase(model)
    assert states.digest(states.of(model)) == before
    assert model.training


@pytest.mark.parametrize("step", ["second-choice", secede.SecondChoice, object()])
def test_what_is_no_local_step_is_refused_with_what_is_expected(step: object) -> None:
    with pytest.raises(ConfigError, match=r"expected a local step, such as secede.SecondChoice"):
        erase(plain(), step=step)


def test_a_one_shot_iterator_gives_what_a_list_gives() -> None:
    model = trained(plain())

    def once() -> Iterator[Batch]:
        yield from images()

    a, b = erase(model), erase(model, batches=once())
    assert states.digest(a.state) == states.digest(b.state)


def test_any_loss_is_climbed() -> None:
    model = nn.Linear(2, 1)
    batches = [(torch.ones(4, 2), torch.zeros(4, 1))]

    def squared(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets) ** 2).mean()

    result = erase(model, batches=batches, loss=squared)
    outputs = nn.functional.linear(torch.ones(1, 2), *result.state.values()).square().item()
    assert outputs > model(torch.ones(1, 2)).square().item()
    assert result.report.accuracy is None
    with pytest.raises(ConfigError, match="cannot measure accuracy"):
        erase(model, batches=batches, loss=squared, step=ProjectedAscent(radius=1.0))


def test_batchnorm_keeps_the_references_statistics() -> None:
    model = trained(with_batchnorm())
    result = erase(model)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(result.state[name], model.state_dict()[name])
    assert not torch.equal(result.state["1.weight"], model.state_dict()["1.weight"])


def test_an_impossible_batchnorm_variance_is_refused() -> None:
    model = trained(with_batchnorm())
    broken = {**states.of(model), "1.running_var": torch.tensor([1.0, -1.0, 1.0, 1.0])}
    with pytest.raises(StateError, match="negative variances in '1'"):
        erase(model, reference=broken)


def test_batchnorm_without_running_statistics_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False))
    with pytest.raises(StateError, match="track_running_stats"):
        erase(model)


def test_shared_parameters_count_once_and_stay_shared() -> None:
    torch.manual_seed(1)
    model = trained(Shared())
    state = model.state_dict()  # holds the shared matrix under both names
    result = secede.unlearn(model, images(), reference=state, own_state=state, step=STEP)
    assert set(result.state) == set(state)
    assert torch.equal(result.state["inner.weight"], result.state["outer.weight"])
    moved = {k: result.state[k] - state[k] for k in ("inner.weight", "head.weight", "head.bias")}
    once = sum(float(v.square().sum()) for v in moved.values()) ** 0.5
    assert result.report.distance_to_reference == pytest.approx(once, rel=1e-4)
    model.load_state_dict(dict(result.state))


def test_frozen_parameters_do_not_move() -> None:
    model = trained(plain())
    model[1].requires_grad_(False)  # type: ignore[index]
    result = erase(model)
    assert torch.equal(result.state["1.weight"], model.state_dict()["1.weight"])
    assert not torch.equal(result.state["3.weight"], model.state_dict()["3.weight"])


def test_a_model_without_anything_to_train_is_refused() -> None:
    model = plain().requires_grad_(False)
    with pytest.raises(StateError, match="every parameter of the model is frozen"):
        erase(model)
    with pytest.raises(ConfigError, match="has no parameters"):
        secede.unlearn(nn.Flatten(), images(), reference={}, own_state={})


def test_a_state_of_another_model_is_refused_by_name() -> None:
    with pytest.raises(StateError, match="names differ"):
        erase(plain(), own_state=states.of(with_batchnorm()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_work_and_keep_their_dtype(dtype: torch.dtype) -> None:
    model = trained(plain()).to(dtype)
    batches = [(inputs.to(dtype), labels) for inputs, labels in images()]
    result = erase(model, batches=batches)
    assert {v.dtype for v in result.state.values()} == {dtype}
    assert result.report.distance_to_reference > 0


def test_batchnorm_is_climbed_although_its_statistics_are_far_apart() -> None:
    model = trained(with_batchnorm())
    own = {k: v + 9 if "running" in k else v for k, v in states.of(model).items()}
    result = erase(model, own_state=own, step=ProjectedAscent(stop_distance=0.5, epochs=20))
    assert result.report.steps > 3
    assert result.report.distance_to_own == pytest.approx(
        result.report.distance_to_reference, abs=1e-6
    )


def test_a_start_beyond_the_papers_grid_is_climbed_all_the_same() -> None:
    model = trained(plain())
    own = {k: v + 0.3 for k, v in states.of(model).items()}  # over ten units away
    result = erase(model, own_state=own, step=ProjectedAscent(learning_rate=0.1, epochs=20))
    assert result.report.steps > 3
    assert result.report.search_target is not None


def test_epochs_that_end_before_grid_and_target_say_so() -> None:
    result = erase(trained(plain()), step=ProjectedAscent(learning_rate=1e-5, epochs=1))
    assert (result.report.ended_by, result.report.stop_distance) == ("epochs", None)
    assert result.report.steps == 3


def test_the_seed_fixes_fresh_models_and_dropout_and_leaves_the_callers_generator() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))

    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = erase(model, fresh_model=build, seed=1)
    assert torch.equal(torch.rand(1), expected)
    second = erase(model, fresh_model=build, seed=1)
    assert states.digest(first.state) == states.digest(second.state)
    assert first.report.radius == second.report.radius


def test_workers_that_persist_are_not_disturbed_by_measuring() -> None:
    inputs, labels = (torch.cat(parts) for parts in zip(*images(), strict=True))
    dataset = torch.utils.data.TensorDataset(inputs, labels)
    step = ProjectedAscent(stop="accuracy", stop_accuracy=0.0, learning_rate=1e-4, epochs=2)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=16, num_workers=1, persistent_workers=True
    )
    assert erase(trained(plain()), batches=loader, step=step).report.steps == 6


def test_shared_parameters_are_saved_and_come_back(tmp_path: Path) -> None:
    result = erase(trained(Shared()))
    secede.state.save(result.state, str(tmp_path / "state.safetensors"))
    loaded, _ = secede.state.load(tmp_path / "state.safetensors")
    assert states.digest(loaded) == states.digest(result.state)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ((torch.arange(4), torch.rand(4, 1, 8, 8)), "they look swapped"),
        ((torch.rand(4, 1, 8, 8), torch.arange(3)), "expected one label for each input"),
        ((torch.rand(1, 1, 8, 8), torch.tensor(0)), "expected one label for each input"),
    ],
)
def test_batches_that_cannot_be_meant_are_refused(
    batch: tuple[torch.Tensor, torch.Tensor], told: str
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(DataError, match=told):
        secede.unlearn(model, [batch], reference=state, own_state=state)


def test_what_is_no_model_or_no_state_is_named() -> None:
    model = nn.Linear(2, 2)
    own = model.state_dict()
    reference = {name: value + 1 for name, value in own.items()}
    with pytest.raises(ConfigError, match=r"model is a OrderedDict, expected a torch\.nn\.Module"):
        secede.unlearn(own, [], reference=reference, own_state=own)  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"a Linear is no state, expected what model\.state_dict"):
        secede.reference(model, own, weight=0.2)  # type: ignore[arg-type]
