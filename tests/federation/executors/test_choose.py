from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from harness import networks
from secede.errors import ConfigError
from secede.federation.executors import NAMES
from secede.federation.executors.choose import (
    _candidates,
    changes_buffers,
    choose,
    draws_random_numbers,
    replaces_buffers,
    try_out,
)
from secede.federation.executors.cpu import Cpu
from secede.federation.executors.executor import Executor, Refused, Work


@pytest.mark.parametrize("network", list(networks.ALL))
def test_auto_takes_all_cores_of_a_cpu_for_every_kind_of_network(network: str) -> None:
    work = networks.work(networks.ALL[network])
    choice = choose("auto", work, networks.samples(20), clients=3)
    assert (choice.name, choice.note) == ("cpu", "")


def test_a_network_that_relies_on_the_usual_layout_keeps_it() -> None:
    viewing = networks.work(networks.Viewing)
    executor = choose("auto", viewing, networks.samples(20), clients=3).executor
    assert executor.lay_out(networks.Viewing()).conv.weight.is_contiguous()  # type: ignore[union-attr,operator]
    conv = choose("auto", networks.work(networks.conv), networks.samples(20), clients=3).executor
    laid_out = conv.lay_out(networks.conv())[0].weight  # type: ignore[index]
    assert laid_out.is_contiguous(memory_format=torch.channels_last)


def test_a_named_executor_that_cannot_do_the_work_is_an_error_that_says_why() -> None:
    with pytest.raises(ConfigError, match=r"executor 'stacked' cannot run .*BatchNorm"):
        choose("stacked", networks.work(networks.batch_norm), networks.samples(9), clients=9)
    with pytest.raises(ConfigError, match=r"'graphs' .* needs a CUDA device"):
        choose("graphs", networks.work(networks.mlp), networks.samples(9), clients=9)
    with pytest.raises(ConfigError, match=r"'graphs' .* replaces in training"):
        choose("graphs", networks.work(networks.ALL["averaging"]), networks.samples(9), clients=9)
    with pytest.raises(ConfigError, match=r"data dependent|item"):
        choose("stacked", networks.work(networks.Branching), networks.samples(9), clients=9)


def test_an_unknown_executor_is_named_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"unknown name 'stakked'; did you mean 'stacked'\?"):
        choose("stakked", networks.work(networks.mlp), networks.samples(9), clients=1)


class Wrong:
    """Trains, but not as the loop does."""

    name = "wrong"

    def __init__(self, work: Work) -> None:
        self._inner = Cpu(work, draws=False)

    def train(self, jobs: list[object]) -> list[dict[str, Tensor]]:
        found = self._inner.train(jobs)  # type: ignore[arg-type]
        for state in found:
            for value in state.values():
                value.mul_(1.001)
        return found

    def lay_out(self, model: nn.Module) -> nn.Module:
        return model


def test_an_executor_that_computes_something_else_is_refused() -> None:
    with pytest.raises(Refused, match="differ from the plain loop's by"):
        try_out(Wrong, networks.work(networks.mlp), networks.samples(20))  # type: ignore[arg-type]


def test_an_executor_that_is_right_about_its_first_job_only_is_refused() -> None:
    class Mixed(Wrong):
        def train(self, jobs: list[object]) -> list[dict[str, Tensor]]:
            first, *others = self._inner.train(jobs)  # type: ignore[arg-type]
            return [first, *({n: v * 0 for n, v in state.items()} for state in others)]

    with pytest.raises(Refused, match="differ from the plain loop's by"):
        try_out(Mixed, networks.work(networks.mlp), networks.samples(20))  # type: ignore[arg-type]


def test_running_out_of_memory_in_a_trial_is_no_refusal() -> None:
    def build(work: Work) -> Executor:
        raise torch.OutOfMemoryError("pretended")

    with pytest.raises(torch.OutOfMemoryError):
        try_out(build, networks.work(networks.mlp), networks.samples(20))


def test_an_executor_that_fails_is_refused_with_its_error() -> None:
    def build(work: Work) -> Executor:
        raise RuntimeError("no such kernel")

    with pytest.raises(Refused, match="RuntimeError: no such kernel"):
        try_out(build, networks.work(networks.mlp), networks.samples(20))


@pytest.mark.parametrize("network", list(networks.ALL))
def test_trials_tell_random_numbers_and_changing_buffers(network: str) -> None:
    work, some = networks.work(networks.ALL[network]), networks.samples(5)
    before = torch.get_rng_state()
    assert draws_random_numbers(work, some) == (network == "dropout")
    assert changes_buffers(work, some) == (network in ("batch_norm", "averaging"))
    assert replaces_buffers(work, some) == (network == "averaging")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_trial_works_with_a_single_sample() -> None:
    assert choose("auto", networks.work(networks.mlp), networks.samples(1), clients=1).name == "cpu"


def test_on_a_gpu_the_rule_looks_at_convolutions_and_the_number_of_clients() -> None:
    class Elsewhere(Work):
        device = torch.device("cuda")

    def rule(make: object, clients: int) -> str:
        model = make()  # type: ignore[operator]
        return _candidates(
            Elsewhere(model=model, training=networks.work(networks.mlp).training), clients
        )[0]

    assert rule(networks.mlp, 10) == "stacked"
    assert rule(networks.mlp, 2) == "graphs"
    assert rule(networks.conv, 10) == rule(networks.conv, 1) == "fused"


def test_every_executor_has_a_line_about_it() -> None:
    assert set(NAMES) == {"loop", "cpu", "fused", "graphs", "stacked"}
    assert all(NAMES.values())
