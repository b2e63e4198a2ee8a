from __future__ import annotations

import pytest
import torch

from secede import state as states
from secede.data.samples import Dataset, Samples
from secede.errors import ConfigError
from secede.experiments import setup
from secede.experiments.config import parse


def dataset(count: int = 90) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(count, 1, 8, 8, generator=draw)
    samples = Samples(images, torch.arange(count) % 3)
    return Dataset("toy", samples, samples.take(torch.arange(45)), ("a", "b", "c"))


def federation(text: str = "", seed: int = 0) -> setup.Federation:
    config = parse(f"device = 'cpu'\nmodel = 'mlp'\nscenario.share = 0.5\n{text}", name="x")
    return setup.federate(config, dataset(), seed, search=None)


def test_all_samples_are_dealt_and_only_the_leavers_are_changed() -> None:
    found = federation("clients.count = 3\nclients.leaver = 1")
    assert [len(c) for c in found.engine.clients] == [30, 30, 30]
    assert (found.leaver, found.retained) == (1, (0, 2))
    known = {tuple(x.flatten().tolist()) for x in dataset().train.x}
    changed = [
        sum(tuple(x.flatten().tolist()) not in known for x in client.x)
        for client in found.engine.clients
    ]
    assert changed == [0, 15, 0]


def test_unequal_sizes_and_skewed_labels_are_dealt() -> None:
    sizes = federation("clients.count = 3\nclients.partition='sizes'\nclients.sizes=[40, 10, 20]")
    assert [len(c) for c in sizes.engine.clients] == [40, 10, 20]
    text = "clients.count = 3\nclients.partition = 'dirichlet'\nclients.alpha = 100.0"
    assert sum(len(c) for c in federation(text).engine.clients) == 90


def test_a_seed_decides_the_deal_and_the_start() -> None:
    one, same, other = (federation("clients.count = 3", seed) for seed in (0, 0, 1))
    assert torch.equal(one.engine.clients[2].x, same.engine.clients[2].x)
    assert not torch.equal(one.engine.clients[2].x, other.engine.clients[2].x)
    digests = [states.digest(f.engine.initial_state("initial")) for f in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]


def test_retraining_starts_elsewhere_than_the_first_training() -> None:
    engine = federation("clients.count = 3").engine
    a, b = (states.digest(engine.initial_state(name)) for name in ("initial", "retraining"))
    assert a != b


def test_non_members_are_made_like_the_leavers_samples() -> None:
    found = federation("clients.count = 3")
    known = {tuple(x.flatten().tolist()) for x in dataset().test.x}
    assert sum(tuple(x.flatten().tolist()) not in known for x in found.nonmembers.x) == 22


def classes(text: str) -> setup.Federation:
    config = parse(f"device = 'cpu'\nmodel = 'mlp'\nclients.count = 3\n{text}", name="x")
    return setup.federate(config, dataset(), 0, search=None)


def test_an_exclusive_leaver_alone_holds_its_classes_and_sizes_stay() -> None:
    found = classes(
        "scenario = {name = 'exclusive', classes = [1], kept = 0.1}\nclients.leaver = 1"
    )
    assert [len(c) for c in found.engine.clients] == [30, 30, 30]
    held = [int((c.y == 1).sum()) for c in found.engine.clients]
    assert sum(held) == 30
    assert held[1] > 25
    known = sorted(float(x.sum()) for x in dataset().train.x)
    assert sorted(float(x.sum()) for c in found.engine.clients for x in c.x) == known


def test_a_class_leaver_holds_nothing_else() -> None:
    found = classes("scenario = {name = 'class', classes = [0]}")
    assert found.engine.clients[0].y.tolist() == [0] * 30
    assert not any((c.y == 0).any() for c in found.engine.clients[1:])
    assert [len(c) for c in found.engine.clients] == [30, 30, 30]


def test_non_members_of_such_a_leaver_have_its_mix_of_classes() -> None:
    found = classes("scenario = {name = 'class', classes = [0]}")
    assert found.nonmembers.y.tolist() == [0] * 15
    assert found.nonmember_indices is not None
    assert torch.equal(found.nonmembers.x, found.test.x[found.nonmember_indices])
    assert federation("clients.count = 3").nonmember_indices is None


def test_too_few_test_samples_like_the_leavers_are_refused() -> None:
    config = parse("device = 'cpu'\nmodel = 'mlp'\nscenario.name = 'class'", name="x")
    whole = dataset()
    few = torch.cat([(whole.test.y != 2).nonzero().flatten(), torch.tensor([2, 5])])
    test = whole.test.take(few.repeat(2))
    small = Dataset("toy", whole.train, test, whole.classes)
    with pytest.raises(ConfigError, match="4 of 64 test samples have the leaver's mix"):
        setup.federate(config, small, 0, search=None)


def test_a_limit_below_the_clients_is_refused() -> None:
    config = parse("limit = 3\nclients.count = 5\ndevice = 'cpu'", name="x")
    small = setup.load_dataset(config)
    assert len(small.train) == len(small.test) == 3
    with pytest.raises(ConfigError, match=r"clients\.count asks for 5 .* \(limit is 3\)"):
        setup.federate(config, small, 0, search=None)


def test_too_few_test_samples_are_refused_before_hours_of_training() -> None:
    config = parse("limit = 30\nclients.count = 2\ndevice = 'cpu'", name="x")
    with pytest.raises(ConfigError, match=r"30 test samples \(limit is 30\), expected at least 40"):
        setup.federate(config, setup.load_dataset(config), 0, search=None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_devices_are_resolved_or_refused() -> None:
    assert setup.resolve_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="no GPU"):
        setup.resolve_device("cuda")
