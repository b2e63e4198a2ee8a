import pytest
import torch

from secede.data.samples import Dataset, Samples
from secede.errors import DataError


def samples(*labels: int, width: int = 2) -> Samples:
    """Samples whose inputs repeat their place: (0, 0), (1, 1) and so on."""
    places = torch.arange(len(labels), dtype=torch.float32)
    return Samples(places[:, None].expand(-1, width), torch.tensor(labels, dtype=torch.int64))


def test_samples_know_their_length_and_shape() -> None:
    assert len(samples(4, 5, 6)) == 3
    assert samples(4, 5, 6).shape == (2,)


def test_take_keeps_the_order_asked_for_and_accepts_masks() -> None:
    taken = samples(4, 5, 6).take(torch.tensor([2, 0]))
    assert taken.y.tolist() == [6, 4]
    assert taken.x.tolist() == [[2, 2], [0, 0]]
    assert samples(4, 5, 6).take(torch.tensor([False, True, False])).y.tolist() == [5]


def test_labels_must_match_the_inputs() -> None:
    with pytest.raises(DataError, match=r"inputs of shape \(3, 2\) and labels of shape \(2,\)"):
        Samples(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(DataError, match=r"labels of shape \(3, 1\)"):
        Samples(torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (samples(0, 2), samples(0), "training labels run from 0 to 2, expected 0 to 1"),
        (samples(0), samples(-1, 1), "test labels run from -1 to 1, expected 0 to 1"),
        (samples(0), samples(), "the test part is empty"),
        (samples(0), samples(1, width=3), r"training inputs have shape \(2,\), test inputs \(3,\)"),
    ],
)
def test_a_data_set_that_does_not_fit_together_is_told(
    train: Samples, test: Samples, message: str
) -> None:
    with pytest.raises(DataError, match=f"toy: {message}"):
        Dataset("toy", train, test, ("a", "b"))


def test_limited_draws_without_repeats_in_the_original_order() -> None:
    dataset = Dataset("toy", samples(*[0] * 50), samples(0, 1, 1), ("a", "b"))
    limited = dataset.limited(5, torch.Generator().manual_seed(0))
    places = limited.train.x[:, 0].tolist()
    assert len(places) == len(set(places)) == 5
    assert places == sorted(places)
    assert places != [0, 1, 2, 3, 4]
    assert len(limited.test) == 3
