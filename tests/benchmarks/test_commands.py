"""Every benchmark as a command, in its smallest size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks import command, erase, federations, matmul_share, overhead, scaling
from benchmarks import round as fedavg_round
from benchmarks.federation import LOOP, random_images, split

Main = Callable[[Sequence[str] | None], None]
ALL: dict[str, Main] = {
    "round": fedavg_round.main,
    "erase": erase.main,
    "scaling": scaling.main,
    "matmul_share": matmul_share.main,
    "overhead": overhead.main,
    "federations": federations.main,
}
QUICK = ["--device", "cpu", "--quick"]


@pytest.fixture(autouse=True)
def the_same_torch_afterwards() -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    yield
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


def rows(printed: str) -> list[list[str]]:
    """Return the cells of all tables' rows, headings and rules left out."""
    lines = printed.splitlines()
    ruled = [i for i, line in enumerate(lines) if line.startswith("| --")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for i, line in enumerate(lines)
        if line.startswith("|") and i not in ruled and i + 1 not in ruled
    ]


@pytest.mark.parametrize("name", ALL)
def test_help_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ALL[name](["--help"])
    assert ended.value.code == 0
    assert f"example: python -m benchmarks.{name} --" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--executors", "lop"], "did you mean 'loop'"),
        (["--precision", "tf32", "--device", "cpu"], "which needs a GPU: use 'float32' or 'bf16'"),
        (["--clients", "0"], "above zero"),
    ],
)
def test_a_wrong_option_is_named(
    wrong: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        fedavg_round.main(wrong)
    assert told in capsys.readouterr().err


def test_too_few_images_for_the_clients_are_refused() -> None:
    with pytest.raises(SystemExit, match="raise --images"):
        split(random_images(3), 4)


def test_clients_get_equal_shares_in_order() -> None:
    images = random_images(11)
    dealt = split(images, 3)
    assert [len(samples) for samples in dealt] == [3, 3, 3]
    assert torch.equal(torch.cat([samples.x for samples in dealt]), images.x[:9])


@pytest.mark.slow
def test_a_round_is_compared_with_the_authors_and_the_plain_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "round.json"
    fedavg_round.main([*QUICK, "--images", "20", "--executors", "cpu,graphs", "--json", str(file)])
    printed = capsys.readouterr().out
    found = rows(printed)
    contenders = [fedavg_round.AUTHORS, LOOP, "cpu", "graphs"]
    assert [row[:2] for row in found] == [[n, name] for n in "12" for name in contenders]
    assert found[0][4] == found[1][5] == "1.00×"
    assert found[3][2] == "refused: it needs a CUDA device"
    assert f"torch {torch.__version__}" in printed
    assert f"`python -m benchmarks.round {' '.join(QUICK)} --images 20 " in printed
    stored = json.loads(file.read_text())
    timing = stored["timings"]["2 clients, cpu"]
    assert timing["low"] <= timing["median"] <= timing["high"]
    assert stored["precision"] == "float32"


@pytest.mark.slow
def test_erasing_is_compared_with_retraining_in_time_and_in_counted_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    erase.main([*QUICK, "--images", "30", "--clients", "3", "--rounds", "4"])
    loop, cpu, gradients, upload, download = rows(capsys.readouterr().out)
    assert (loop[0], cpu[0]) == (LOOP, "cpu")
    # Five epochs of the leaver's 10 samples and one of the others' 20; four rounds of 20.
    assert gradients == ["gradient samples", "70", "80", "1.14×"]
    # The leaver's state and those of two clients; two clients in four rounds.
    assert upload[3] == download[3] == "2.67×"


@pytest.mark.slow
def test_scaling_has_a_curve_over_clients_samples_and_parameters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scaling.main([*QUICK, "--images", "40", "--executors", "cpu,graphs"])
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("###")] == [
        "### clients: mlp",
        "### samples: mlp",
        "### parameters: perceptron",
    ]
    found = rows(printed)
    assert {row[3] for row in found} == {LOOP, "cpu", "graphs"}
    assert all(float(row[6]) > 0 for row in found if row[3] != "graphs")
    assert all(row[4].startswith("refused") for row in found if row[3] == "graphs")


@pytest.mark.parametrize("parameters", [10**5, 10**6, 10**8])
def test_perceptrons_are_about_as_large_as_asked(parameters: int) -> None:
    case = scaling.Case(2, 1, scaling.perceptron(parameters))
    assert case.parameters == pytest.approx(parameters, rel=0.01)


def test_the_work_of_an_epoch_is_that_of_its_batches() -> None:
    parser = command.parser("peak", None, "")
    setting, _ = command.settle(parser, QUICK)
    # Products and convolutions, each twice as many operations as multiplications; backward is
    # twice forward, but for the first layer, whose inputs need no gradient.
    first, others = 2 * 25 * 32 * 28 * 28, 2 * (25 * 32 * 64 * 14 * 14 + 3136 * 512 + 512 * 10)
    assert matmul_share.epoch_flops(130, setting) == 130 * (2 * first + 3 * others)


@pytest.mark.slow
def test_each_executor_has_its_share_of_the_matmul_peak(
    capsys: pytest.CaptureFixture[str],
) -> None:
    matmul_share.main([*QUICK, "--clients", "2", "--images", "20"])
    product, loop, cpu = rows(capsys.readouterr().out)
    assert product[0] == "product of 1024 x 1024 matrices"
    assert product[4] == "100.0 %"
    assert (loop[0], cpu[0]) == (LOOP, "cpu")


def test_overhead_is_of_a_network_of_the_papers_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(p.numel() for p in overhead.Idle().parameters()) == 1_663_370
    overhead.main(QUICK)
    assert [row[0] for row in rows(capsys.readouterr().out)] == [LOOP, "cpu"]


@pytest.mark.slow
def test_federations_side_by_side_are_compared_with_one_after_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    federations.main([*QUICK, "--executors", "cpu,graphs", "--lanes", "2", "--images", "20"])
    authors, loop, cpu, graphs = rows(capsys.readouterr().out)
    assert authors[0] == "authors' loop, one after another (2 rounds timed, multiplied)"
    assert loop[0].startswith(LOOP)
    assert cpu[0] == "cpu, 2 lanes"
    assert graphs == ["graphs", "refused: it needs a CUDA device", "", "", ""]
