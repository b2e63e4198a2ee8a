"""The GPU's executors against the plain loop on the same GPU."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from harness import networks
from secede import models
from secede import state as states
from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.federation.engine import LocalTraining, aggregate
from secede.federation.executors.choose import choose
from secede.federation.executors.executor import Executor, Job, Loop, Work
from secede.federation.executors.fused.executor import Fused
from secede.federation.executors.graphs import Graphs
from secede.federation.executors.stacked import Stacked
from secede.federation.simulator import Simulator
from secede.state import State

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SIZES = [21, 8, 3, 40, 21]


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def deviation(found: State, expected: State, start: State) -> float:
    """Return how far `found` is off, as a share of what training moved."""

    def squared(a: State, b: State) -> float:
        return sum(
            float((a[n].double() - b[n].double()).square().sum())
            for n in a
            if a[n].is_floating_point()
        )

    return float((squared(found, expected) / squared(expected, start)) ** 0.5)


def chosen(name: str, work: Work) -> Executor:
    return choose(name, work, networks.samples(12, device="cuda"), clients=5).executor


@pytest.mark.parametrize("network", sorted(networks.ALL.keys() - {"averaging"}))
def test_graphs_give_the_plain_loops_bits_for_every_kind_of_network(network: str) -> None:
    work = networks.work(networks.ALL[network], device="cuda", epochs=2)
    jobs = networks.jobs(work, SIZES)
    executor = chosen("graphs", work)
    expected = Loop(work).train(jobs)
    for _ in range(2):  # captured, then replayed
        for found, want in zip(executor.train(jobs), expected, strict=True):
            assert states.digest(found) == states.digest(want)


@pytest.mark.parametrize("network", list(networks.PLAIN))
def test_stacked_clients_equal_the_plain_loop(network: str) -> None:
    work = networks.work(networks.PLAIN[network], device="cuda", epochs=2)
    jobs = networks.jobs(work, SIZES)
    for found, want, job in zip(
        chosen("stacked", work).train(jobs), Loop(work).train(jobs), jobs, strict=True
    ):
        assert deviation(found, want, job.state) < 1e-5


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("network", ["conv", "mlp"])
def test_lower_precisions_stay_near_the_loop_in_float32(network: str, precision: str) -> None:
    exact = networks.work(networks.ALL[network], device="cuda")
    work = networks.work(networks.ALL[network], device="cuda", precision=precision)  # type: ignore[arg-type]
    jobs = networks.jobs(work, SIZES)
    for found, want, job in zip(
        chosen("auto", work).train(jobs), Loop(exact).train(jobs), jobs, strict=True
    ):
        assert deviation(found, want, job.state) < (0.01 if precision == "tf32" else 0.3)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("paper-cnn", (1, 28, 28), 10),
        ("small-cnn", (3, 32, 32), 10),
        ("paper-cnn", (1, 28, 28), 47),
    ],
)
def test_fused_kernels_equal_the_plain_loop_on_the_built_in_networks(
    name: str, shape: tuple[int, ...], classes: int, precision: str
) -> None:
    torch.manual_seed(0)
    model = models.build(name, shape=shape, classes=classes).cuda()
    exact = Work(model=model, training=LocalTraining(batch_size=32, learning_rate=0.05))
    work = replace(exact, precision=precision)  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(0)
    jobs = [
        Job(
            state=states.of(model),
            samples=Samples(
                torch.randn(n, *shape, generator=draw),
                torch.randint(0, classes, (n,), generator=draw),
            ).to("cuda"),
            orders=(torch.randperm(n, generator=draw),),
            noise=0,
        )
        for n in (100, 64, 5)
    ]
    found = Fused(work, jobs[0].samples).train(jobs)
    # In float64, for cuDNN's float32 is up to 2e-4 off; the loop in TF32 is up to 0.12 off.
    expected = Loop(replace(exact, model=copy.deepcopy(model).double())).train(
        [
            replace(
                job,
                state={name: value.double() for name, value in job.state.items()},
                samples=Samples(job.samples.x.double(), job.samples.y),
            )
            for job in jobs
        ]
    )
    bound = {"float32": 2e-5, "tf32": 0.2, "bf16": 0.3}[precision]
    for one, want, job in zip(found, expected, jobs, strict=True):
        assert deviation(one, want, job.state) < bound


def test_control_flow_that_depends_on_data_falls_back_to_the_loop_and_says_so() -> None:
    work = networks.work(networks.Branching, device="cuda")
    choice = choose("auto", work, networks.samples(12, device="cuda"), clients=5)
    assert choice.name == "loop"
    assert "not stacked" in choice.note
    assert "not graphs" in choice.note
    with pytest.raises(ConfigError, match="cannot run this federation"):
        choose("graphs", work, networks.samples(12, device="cuda"), clients=5)


def test_a_gpu_that_runs_out_halves_what_it_does_at_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = networks.work(networks.mlp, device="cuda")
    jobs = networks.jobs(work, SIZES)
    expected = Loop(work).train(jobs)
    executor = Graphs(work, draws=False, slots=4)
    like = executor.train(jobs[:1])[0]
    failures = iter([True, True])

    def fails(*_: object) -> dict[str, torch.Tensor]:
        if next(failures, False):
            raise torch.OutOfMemoryError("pretended")
        return {name: torch.empty_like(value) for name, value in like.items()}

    monkeypatch.setattr("secede.federation.executors.executor.WorkingModel.empty_state", fails)
    for found, want, job in zip(executor.train(jobs), expected, jobs, strict=True):
        assert deviation(found, want, job.state) < 1e-6
    assert executor._limit == 1


def test_memory_that_is_really_gone_halves_the_stack() -> None:
    def wide() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(128, 8192), nn.ReLU(), nn.Linear(8192, 3))

    work = networks.work(wide, device="cuda", batch_size=64)
    jobs = networks.jobs(work, [64] * 64)  # 64 x 4 MiB, several times over
    expected = Loop(work).train(jobs)
    torch.cuda.empty_cache()
    executor = Stacked(work, networks.samples(64, device="cuda"), chunk=64)
    free = torch.cuda.mem_get_info()[0]
    hog = torch.empty(free - 900 * 2**20, dtype=torch.uint8, device="cuda")
    try:
        found = executor.train(jobs)
    finally:
        del hog
        torch.cuda.empty_cache()
    assert executor.chunks.size < 64
    for one, want, job in zip(found, expected, jobs, strict=True):
        assert deviation(one, want, job.state) < 1e-5


def test_several_threads_may_train_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    work = networks.work(networks.conv, device="cuda")
    executor = chosen("graphs", work)
    jobs = networks.jobs(work, SIZES)
    expected = [states.digest(state) for state in executor.train(jobs)]

    def lane(_: int) -> list[str]:
        with torch.cuda.stream(torch.cuda.Stream()):
            return [states.digest(state) for state in executor.train(jobs)]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lane, range(12)):
            assert found == expected


@pytest.mark.parametrize("name", ["graphs", "fused", "stacked"])
def test_captures_in_one_thread_do_not_meet_the_work_of_others(name: str) -> None:
    # torch's pool has 32 streams: with more in use, some objects stand for the same stream.
    from concurrent.futures import ThreadPoolExecutor

    work = networks.work(networks.mlp if name == "stacked" else networks.conv, device="cuda")
    jobs = networks.jobs(work, SIZES)
    expected = Loop(work).train(jobs)

    def lane(_: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            executor = chosen(name, work)  # captures anew while the others train
            for _ in range(3):
                for found, want, job in zip(executor.train(jobs), expected, jobs, strict=True):
                    assert deviation(found, want, job.state) < 1e-4

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lane, range(20)))


def test_a_round_does_not_wait_for_the_device() -> None:
    work = networks.work(networks.conv, device="cuda")
    executor = chosen("graphs", work)
    jobs = networks.jobs(work, SIZES)
    executor.train(jobs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        executor.train(jobs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_federation_on_a_gpu_repeats_to_the_bit() -> None:
    def run() -> str:
        draw = torch.Generator().manual_seed(0)
        clients = [
            Samples(torch.rand(n, *networks.SHAPE, generator=draw), torch.arange(n) % 3)
            for n in (300, 200)
        ]
        engine = Simulator(clients, networks.conv, training=LocalTraining(), seed=0, device="cuda")
        state: State = engine.initial_state("initial")
        for number in (1, 2):
            reply = engine.train_round(state, (0, 1), phase="training", number=number)
            state = aggregate(reply.updates)
        return states.digest(state)

    assert run() == run()
