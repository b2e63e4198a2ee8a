import pytest
from torch import nn

from secede.models.evaluation import evaluating


def test_every_part_is_in_evaluation_mode_inside_and_as_before_outside() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    model[1].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False]


def test_the_mode_comes_back_after_an_error() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert model.training
