import subprocess
import sys

import pytest
import torch

from secede.errors import ConfigError
from secede.models import NAMES, build
from secede.models.networks import BUILDERS
from secede.seeding import seeded


def test_the_table_of_names_is_listed_without_torch() -> None:
    code = "import sys, secede.models; assert secede.models.NAMES; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_listed_name_can_be_built() -> None:
    assert list(NAMES) == list(BUILDERS)


def test_an_unknown_name_is_refused_with_the_nearest_and_the_list() -> None:
    with pytest.raises(ConfigError, match="did you mean 'paper-cnn'") as caught:
        build("papercnn", shape=(1, 28, 28), classes=10)
    assert all(name in str(caught.value) for name in ("small-cnn", "mlp", "package.module:factory"))


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(ConfigError, match="unknown name 'xyzzy'; expected one of"):
        build("xyzzy", shape=(1, 28, 28), classes=10)


@pytest.mark.parametrize(("shape", "classes"), [((), 10), ((1, 0, 28), 10), ((5,), 0)])
def test_sizes_without_content_are_refused(shape: tuple[int, ...], classes: int) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        build("mlp", shape=shape, classes=classes)


def test_the_same_seed_builds_the_same_parameters() -> None:
    def start(seed: int) -> torch.Tensor:
        with seeded(seed, "model"):
            model = build("mlp", shape=(3,), classes=2)
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(start(0), start(0))
    assert not torch.equal(start(0), start(1))
