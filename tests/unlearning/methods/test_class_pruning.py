from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from harness import servers
from secede import state as states
from secede.data.samples import Samples
from secede.errors import ConfigError, DataError, StateError
from secede.federation.engine import ClientSide, LocalTraining
from secede.unlearning import registry
from secede.unlearning.methods.class_pruning import (
    ClassPruning,
    activation_sums,
    pool_replies,
    prunable_layers,
    tf_idf,
)
from secede.unlearning.steps import norm_channels

NAN = math.nan


def side(model: nn.Module, inputs: Tensor, labels: list[int], *, batch_size: int = 2) -> ClientSide:
    y = torch.tensor(labels)
    return ClientSide(
        global_state=states.of(model),
        own=None,
        samples=len(labels),
        training=LocalTraining(batch_size=batch_size),
        fresh_model=lambda _: model,
        batches=lambda size, _: zip(inputs.split(size), y.split(size), strict=True),
        loss=nn.functional.cross_entropy,
    )


def test_the_scores_match_the_hand_sum() -> None:
    # Rows are classes, columns channels. Channel means over classes are 4, 4 and 3, so channel 0
    # stands out in one class, channel 1 in two and channel 2, the same everywhere, in all three.
    # TF of class 0: 8, 1 and 3 out of 12. IDF: log of 4 over 2, 3 and 4.
    mean = torch.tensor([[8.0, 1.0, 3.0], [2.0, 5.0, 3.0], [2.0, 6.0, 3.0]])
    expected = [8 / 12 * math.log(2), 1 / 12 * math.log(4 / 3), 0.0]
    torch.testing.assert_close(tf_idf(mean, 0), torch.tensor(expected))


def test_a_class_nobody_holds_is_no_document() -> None:
    mean = torch.tensor([[8.0, 1.0, 3.0], [NAN, NAN, NAN], [2.0, 5.0, 3.0], [2.0, 6.0, 3.0]])
    held = torch.tensor([True, False, True, True])
    torch.testing.assert_close(tf_idf(mean, 0), tf_idf(mean[held], 0))
    with pytest.raises(DataError, match="no client holds samples of class 1"):
        tf_idf(mean, 1)
    with pytest.raises(ConfigError, match="classes names 4, expected 0 to 3"):
        tf_idf(mean, 4)


def test_a_client_sums_what_its_channels_say_after_relu() -> None:
    # A 1×1 convolution with weights 1 and -1 on 1×2 images: the second channel is what ReLU
    # leaves of the negative.
    convolution = nn.Conv2d(1, 2, 1, bias=False)
    nn.init.ones_(convolution.weight[0])
    nn.init.constant_(convolution.weight[1], -1)
    model = nn.Sequential(convolution, nn.Flatten(), nn.Linear(4, 3))
    images = torch.tensor([[2.0, -4.0], [6.0, 0.0], [-2.0, -2.0]]).view(3, 1, 1, 2)
    reply = activation_sums(side(model, images, [0, 0, 2]))
    # Means over the pixels: (1, 2), (3, 0) and (0, 2).
    assert reply.state["0"].tolist() == [[4.0, 2.0], [0.0, 0.0], [0.0, 2.0]]
    assert reply.state["counts"].tolist() == [2.0, 0.0, 1.0]
    assert reply.gradient_samples == 0


def test_only_sums_over_clients_matter() -> None:
    # So the server may add them blindly, as secure aggregation does.
    one = {"a": torch.tensor([[4.0], [0.0]]), "counts": torch.tensor([2.0, 0.0])}
    two = {"a": torch.tensor([[2.0], [9.0]]), "counts": torch.tensor([1.0, 3.0])}
    together = {name: one[name] + two[name] for name in one}
    assert pool_replies([one, two])[0]["a"].tolist() == [[2.0], [3.0]]
    torch.testing.assert_close(pool_replies([one, two]), pool_replies([together]))
    broken = {**two, "a": two["a"] * math.inf}
    with pytest.raises(StateError, match="reply 1: 'a' holds values that are not finite"):
        pool_replies([one, broken])


def test_hidden_units_stand_in_where_there_are_no_channels() -> None:
    assert prunable_layers(servers.network()) == ["0"]
    assert prunable_layers(perceptron()) == ["1", "3"]
    with pytest.raises(ConfigError, match="expected a model with Conv2d or hidden Linear"):
        prunable_layers(nn.Linear(3, 2))
    on_rows = nn.Linear(2, 2, bias=False)
    nn.init.eye_(on_rows.weight)
    deep = nn.Sequential(on_rows, nn.Flatten(), nn.Linear(6, 2))
    rows = torch.tensor([[[1.0, 4.0], [2.0, -5.0], [3.0, 2.0]]])
    assert activation_sums(side(deep, rows, [1])).state["0"].tolist() == [[0.0, 0.0], [2.0, 2.0]]


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 10), nn.ReLU(), nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 3)
    )


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def leaver_alone_holds_class_two() -> list[Samples]:
    pool_replies = servers.blobs(90, seed=8)
    mine, rest = pool_replies.take(pool_replies.y == 2), pool_replies.take(pool_replies.y != 2)
    return [mine, *(rest.take(part) for part in torch.arange(len(rest)).tensor_split(2))]


@pytest.mark.parametrize("make_model", [servers.network, perceptron, normalised])
def test_what_is_pruned_is_zero_and_stays_zero(make_model: Callable[[], nn.Module]) -> None:
    server = servers.server(clients=leaver_alone_holds_class_two(), make_model=make_model)
    start, state = servers.erase(ClassPruning(classes=(2,), share=0.3), server, rounds=2)
    states.check_schema(state, server.global_state)
    states.check_finite(state)
    assert start.report is not None
    layers = {f"{layer}.weight" for layer in prunable_layers(make_model())}
    rows = {name: mask for name, mask in start.memory.items() if name in layers}
    assert sum(int((~mask).sum()) for mask in rows.values()) == start.report["pruned"]
    assert start.report["pruned"] == math.ceil(0.3 * int(str(start.report["channels"])))
    for name, mask in start.memory.items():
        assert not mask.all()
        for found in (start.state, state):
            assert bool((found[name][~mask] == 0).all())
            assert bool((found[name][mask] != 0).any())
    for name, value in server.global_state.items():
        if name not in start.memory:
            assert torch.equal(start.state[name], value)


def test_a_pruned_channel_is_dead_behind_batchnorm_and_others_are_not() -> None:
    # One pixel, two 1×1 channels with weights 1 and 2, normalised by the statistics mean 3 and 5,
    # variance 4 - eps and 9 - eps, scale 6 and 3, shift 1 and 2. At x = 5 the first channel says
    # (5 - 3) / 2 · 6 + 1 = 7 and the second (10 - 5) / 3 · 3 + 2 = 7. With a zero in place of its
    # weight alone, the second would say (0 - 5) / 3 · 3 + 2 = -3; cut with its row, it says 0.
    norm = nn.BatchNorm2d(2)
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), norm)
    state = {
        "0.weight": torch.tensor([1.0, 2.0]).view(2, 1, 1, 1),
        "1.running_mean": torch.tensor([3.0, 5.0]),
        "1.running_var": torch.tensor([4.0, 9.0]) - norm.eps,
        "1.weight": torch.tensor([6.0, 3.0]),
        "1.bias": torch.tensor([1.0, 2.0]),
        "1.num_batches_tracked": torch.tensor(9),
    }
    x = torch.full((1, 1, 1, 1), 5.0)
    states.load_into(model, state)
    assert model.eval()(x).flatten().tolist() == pytest.approx([7, 7])
    keep = {"0": torch.tensor([True, False])}
    half = {"0.weight": keep["0"]}
    states.load_into(model, states.masked(state, half))
    assert model(x).flatten().tolist() == pytest.approx([7, -3])
    both = half | norm_channels.masks(model, keep, norm_channels.channel_maps(model, ["0"], x))
    states.load_into(model, states.masked(state, both))
    assert model(x).flatten().tolist() == pytest.approx([7, 0])


def shifting() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4, affine=False), nn.Flatten(),
        nn.Linear(64, 3),
    )  # fmt: skip


@pytest.mark.parametrize(("make_model", "through"), [(normalised, 2), (shifting, 3)])
def test_what_is_pruned_says_nothing_before_and_after_post_training(
    make_model: Callable[[], nn.Module], through: int
) -> None:
    server = servers.server(clients=leaver_alone_holds_class_two(), make_model=make_model)
    start, state = servers.erase(ClassPruning(classes=(2,), share=0.3), server, rounds=2)
    cut = ~start.memory["0.weight"]
    assert 0 < int(cut.sum()) < len(cut)
    for found in (start.state, state):
        model = make_model()
        states.load_into(model, found)
        said = model.eval()[:through](servers.blobs(20, seed=5).x)  # type: ignore[index]
        assert bool((said[:, cut] == 0).all())
        assert bool((said[:, ~cut] != 0).any())
        variances = next(v for name, v in found.items() if name.endswith("running_var"))
        assert bool((variances >= 0).all())


def test_one_small_exchange_with_everybody_is_counted() -> None:
    server = servers.server(clients=leaver_alone_holds_class_two())
    start = ClassPruning(classes=(2,)).start(server)
    # Three clients, each 3 classes × 4 channels and 3 counts of 4 bytes.
    assert start.cost.upload_bytes == 3 * (12 + 3) * 4
    assert start.cost.download_bytes == 3 * states.size_bytes(server.global_state)
    assert (start.cost.rounds, start.cost.gradient_samples) == (1, 0)


def test_a_layer_keeps_at_least_one_channel() -> None:
    server = servers.server(clients=leaver_alone_holds_class_two())
    start = ClassPruning(classes=(0, 1, 2), share=0.99).start(server)
    assert start.memory["0.weight"].sum().item() == 1
    assert start.report == {"pruned": 3, "channels": 4}


def test_the_same_seed_gives_the_same_digest() -> None:
    first, second = (
        servers.erase(ClassPruning(classes=(1,), share=0.3), servers.server(seed=3), rounds=1)[1]
        for _ in range(2)
    )
    assert states.digest(first) == states.digest(second)


def test_masks_survive_a_checkpoint(tmp_path: object) -> None:
    server = servers.server()
    method = ClassPruning(classes=(1,), share=0.3)
    start = method.start(server)
    path = f"{tmp_path}/memory.safetensors"
    states.save(start.memory, path)
    through = method.recover(server, start.state, start.memory, 1)
    again = method.recover(server, start.state, states.load(path)[0], 1)
    assert states.digest(again.state) == states.digest(through.state)


def test_a_class_that_no_client_holds_is_said() -> None:
    everybody = leaver_alone_holds_class_two()
    server = servers.server(clients=[everybody[1], everybody[2]])
    with pytest.raises(DataError, match="no client holds samples of class 2"):
        ClassPruning(classes=(2,)).start(server)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "classes is empty"),
        ({"classes": (1, 1)}, "classes must be different numbers from 0, got 1, 1"),
        ({"classes": (-1,)}, "classes must be different numbers from 0, got -1"),
        ({"classes": (1,), "share": 0.0}, "share must be above 0"),
        ({"classes": (1,), "share": 1.0}, "share must be above 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ClassPruning(**settings)  # type: ignore[arg-type]


def test_the_table_says_what_it_needs_and_what_it_is_made_for() -> None:
    entry, method = registry.create("class-pruning", {"classes": [8, 9]})
    assert dataclasses.asdict(method) == {"classes": (8, 9), "share": 0.05}  # type: ignore[call-overload]
    assert entry.needs.words() == ("the leaver online",)
    assert entry.scenarios == ("class", "exclusive")
