from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness import audits
from secede.errors import ConfigError
from secede.experiments.ensembles import material
from secede.experiments.ensembles.material import Material, gather

CLASSES = audits.CONFIG.replace(
    '{ name = "backdoor", share = 0.5 }', '{ name = "exclusive", classes = [2] }'
)


@pytest.fixture
def found(tmp_path: Path) -> Material:
    return audits.job(tmp_path).material


def rows(x: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(each.flatten().tolist()) for each in x]


def test_the_pool_is_the_leavers_part_with_as_many_held_out_samples(found: Material) -> None:
    assert (found.dealt, len(found.pool)) == (100, 200)
    assert len(found.test) == 100


def test_every_sample_is_a_member_in_the_stated_share_of_federations(found: Material) -> None:
    deals = torch.stack([found.member(number) for number in range(400)])
    assert set(deals.sum(dim=1).tolist()) == {100}
    shares = deals.double().mean(dim=0)
    # Four deviations of 400 fair coins, for 200 samples.
    assert float((shares - 0.5).abs().max()) < 4 * (0.25 / 400) ** 0.5
    assert torch.equal(deals[7], found.member(7))


def test_a_sample_is_the_same_in_all_federations_and_the_retained_clients_keep_theirs(
    found: Material,
) -> None:
    one, other = found.member(0), found.member(1)
    assert torch.equal(found.clients(one)[0].x, found.pool.x[one])
    assert torch.equal(found.clients(other)[0].y, found.pool.y[other])
    for client in (1, 2):
        assert found.clients(one)[client] is found.clients(other)[client]


def test_the_scenario_changes_its_share_of_the_whole_pool_once(
    found: Material, tmp_path: Path
) -> None:
    whole = audits.dataset(tmp_path)
    known = {*rows(whole.train.x), *rows(whole.test.x)}
    changed = [row not in known for row in rows(found.pool.x)]
    assert sum(changed) == 100  # half of the pool
    assert {int(y) for y, new in zip(found.pool.y, changed, strict=True) if new} == {2}


def test_nothing_that_is_asked_as_test_is_in_the_pool_or_trained_on(tmp_path: Path) -> None:
    text = audits.CONFIG.replace('{ name = "backdoor", share = 0.5 }', '{ name = "clean" }')
    found = audits.job(tmp_path, text).material
    test, pool = set(rows(found.test.x)), set(rows(found.pool.x))
    assert not test & pool
    assert not pool & {row for samples in found.retained.values() for row in rows(samples.x)}
    assert set(rows(found.watched.samples.x)) <= {
        row for samples in found.retained.values() for row in rows(samples.x)
    }


def test_as_many_samples_of_each_retained_client_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(material, "WATCHED", 40)
    found = audits.job(tmp_path).material
    assert found.watched.clients.unique(return_counts=True)[1].tolist() == [20, 20]


def test_an_exclusive_leavers_pool_has_its_mix_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(material, "MINIMUM_POOL", 100)
    found = audits.job(tmp_path, CLASSES).material
    own = found.pool.y[: found.dealt]
    held_out = found.pool.y[found.dealt :]
    share = (own == 2).double().mean()
    assert float((held_out == 2).double().mean()) == pytest.approx(float(share), abs=0.05)


def test_too_few_held_out_samples_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "MINIMUM_NONMEMBERS", 101)
    with pytest.raises(ConfigError, match="100 held-out samples are like the leaver's, expected"):
        gather(audits.config(tmp_path), audits.dataset(tmp_path), 0)


def test_a_pool_that_is_too_small_is_told_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(material, "MINIMUM_POOL", 201)
    with pytest.raises(ConfigError, match=r"100 samples and 100 held-out ones .* expected 201 or"):
        gather(audits.config(tmp_path), audits.dataset(tmp_path), 0)


def test_federations_have_seeds_of_their_own(found: Material) -> None:
    assert len({found.federation_seed(number) for number in range(50)}) == 50
