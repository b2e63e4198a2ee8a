import math

import pytest
import torch
from torch import Tensor, nn

from secede.data.samples import Samples
from secede.errors import DataError, StateError
from secede.verification.accuracy import (
    GPU_BATCH,
    GPU_BATCH_BYTES,
    Evidence,
    _default_batch_size,
    accuracy,
    evaluate,
    evaluate_all,
)
from secede.verification.score import Mean, Score

LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0], [5.0, 0.0, 0.0]])
LABELS = torch.tensor([0, 1, 2, 2])  # the last one is wrong


class Answering(nn.Module):
    """Answer with a fixed thing, whatever is asked."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> object:
        return self.answer


def samples(count: int) -> Samples:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return Samples(x, torch.arange(count) % 2)


def test_accuracy_is_the_share_of_right_predictions() -> None:
    assert accuracy(LOGITS, LABELS) == Score(0.75, 4)
    assert accuracy(LOGITS[:3], LABELS[:3]) == Score(1.0, 3)
    assert accuracy(LOGITS[3:], LABELS[3:]) == Score(0.0, 1)


def test_a_mask_leaves_samples_out_of_value_and_count() -> None:
    assert accuracy(LOGITS, LABELS, torch.tensor([False, False, True, True])) == Score(0.5, 2)


def test_a_mask_that_leaves_nobody_is_refused() -> None:
    with pytest.raises(DataError, match="over 0 samples"):
        accuracy(LOGITS, LABELS, torch.zeros(4, dtype=torch.bool))


def test_evidence_derives_losses_and_predictions_by_hand() -> None:
    evidence = Evidence(LOGITS, LABELS)
    # -log softmax: log(1 + 2/e²), log(1 + 2/e), log(1 + 2/e³), log(e⁵ + 2)
    expected = [math.log(1 + 2 * math.exp(-size)) for size in (2, 1, 3)]
    expected.append(math.log(math.exp(5) + 2))
    assert evidence.losses.tolist() == pytest.approx(expected, abs=1e-6)
    assert evidence.predictions.tolist() == [0, 1, 2, 0]
    assert evidence.accuracy(torch.tensor([True, False, False, True])) == Score(0.5, 2)
    loss = evidence.loss()
    assert isinstance(loss, Mean)
    assert loss.value == pytest.approx(sum(expected) / 4, abs=1e-6)
    assert loss.count == 4


def test_the_models_answers_keep_the_samples_order_over_batches() -> None:
    model, data = nn.Linear(3, 2), samples(10)
    evidence = evaluate(model, data, batch_size=3)
    torch.testing.assert_close(evidence.logits, model(data.x).detach())
    assert torch.equal(evidence.labels, data.y)


def test_logits_are_plain_float32_tensors() -> None:
    logits = evaluate(nn.Linear(3, 2).double(), Samples(samples(4).x.double(), samples(4).y)).logits
    assert (logits.dtype, logits.device.type) == (torch.float32, "cpu")
    assert not logits.is_inference()
    assert not logits.requires_grad


def test_the_model_is_evaluated_in_evaluation_mode_and_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.9))
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = evaluate(model, samples(8)), evaluate(model, samples(8))
    assert torch.equal(first.logits, second.logits)  # dropout was off
    assert [part.training for part in model.modules()] == [True, True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_training_mode_comes_back_after_an_error() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(RuntimeError):
        evaluate(model, samples(2))
    assert model.training


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_outputs_that_are_not_finite_are_refused_and_counted(bad: float) -> None:
    logits = torch.zeros(4, 2)
    logits[1:3, 0] = bad
    with pytest.raises(StateError, match="not finite for 2 of 4 samples"):
        evaluate(Answering(logits), samples(4))


def test_outputs_too_large_for_float32_are_refused() -> None:
    with pytest.raises(StateError, match="not finite for 4 of 4"):
        evaluate(Answering(torch.full((4, 2), 1e60, dtype=torch.float64)), samples(4))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((torch.zeros(4, 2),), "returned a tuple, expected logits"),
        (torch.zeros(4), r"outputs of shape \(4,\) for 4 samples"),
        (torch.zeros(3, 2), r"outputs of shape \(3, 2\) for 4 samples"),
        (torch.zeros(4, 1), "labels run from 0 to 1, but the model has 1 outputs"),
    ],
)
def test_answers_that_do_not_fit_are_refused(answer: object, problem: str) -> None:
    with pytest.raises(StateError, match=problem):
        evaluate(Answering(answer), samples(4))


def test_no_samples_are_refused() -> None:
    with pytest.raises(DataError, match="no samples"):
        evaluate(nn.Linear(3, 2), samples(0))


def test_a_model_without_parameters_is_evaluated() -> None:
    assert evaluate(nn.Identity(), samples(4)).logits.shape == (4, 3)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 100, None])
def test_several_sets_are_answered_in_one_pass_as_each_alone(batch_size: int | None) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    whole = samples(23)
    sets = [whole.take(torch.arange(*ends)) for ends in ((0, 4), (4, 5), (5, 17), (17, 23))]
    together = evaluate_all(model, sets, batch_size=batch_size)
    for found, alone in zip(together, sets, strict=True):
        expected = evaluate(model, alone, batch_size=batch_size)
        torch.testing.assert_close(found.logits, expected.logits)
        assert torch.equal(found.labels, alone.y)


def test_where_batches_coincide_the_answers_are_the_same_bits() -> None:
    model, whole = nn.Linear(3, 2), samples(12)
    sets = [whole.take(torch.arange(8)), whole.take(torch.arange(8, 12))]
    for found, alone in zip(evaluate_all(model, sets, batch_size=4), sets, strict=True):
        assert torch.equal(found.logits, evaluate(model, alone, batch_size=4).logits)


def test_answers_that_do_not_fit_several_sets_are_refused() -> None:
    with pytest.raises(StateError, match=r"outputs of shape \(3, 2\) for 8 samples"):
        evaluate_all(Answering(torch.zeros(3, 2)), [samples(4), samples(4)])


class Greedy(nn.Module):
    """Has memory for so many samples at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.sizes = most, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return x


def test_a_batch_that_does_not_fit_the_memory_is_halved() -> None:
    model, data = Greedy(3), samples(10)
    assert torch.equal(evaluate(model, data, batch_size=8).logits, data.x)
    assert model.sizes == [8, 4, 2, 2, 2, 2, 2]
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(Greedy(0), data, batch_size=8)


def test_batches_on_a_gpu_are_large_but_bounded_by_their_bytes() -> None:
    gpu = torch.device("cuda")
    assert _default_batch_size(torch.device("cpu"), torch.empty(1, 1, 28, 28)) == 256
    assert _default_batch_size(gpu, torch.empty(1, 3, 32, 32)) == GPU_BATCH
    large = torch.empty(1, 3, 224, 224)
    assert _default_batch_size(gpu, large) * large.numel() * 4 <= GPU_BATCH_BYTES
    assert _default_batch_size(gpu, torch.empty(1, 1 << 28, device="meta")) == 1
