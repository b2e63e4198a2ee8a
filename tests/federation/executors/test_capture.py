from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from secede.federation.executors.capture import MAX_BLOCK_STEPS, Replay, blocks


@given(count=st.integers(1, 3000), batch_size=st.integers(1, 64))
def test_blocks_cover_an_epoch_in_order_and_only_the_last_batch_is_partial(
    count: int, batch_size: int
) -> None:
    found = list(blocks(count, batch_size))
    covered = [row for block in found for row in range(count)[block.rows]]
    assert covered == list(range(count))
    sizes = [block.size for block in found for _ in range(block.steps)]
    assert all(size == batch_size for size in sizes[:-1])
    assert len(sizes) == -(-count // batch_size)


def test_few_different_blocks_serve_clients_of_every_size() -> None:
    shapes = {(b.steps, b.size) for n in range(1, 2000) for b in blocks(n, 16) if b.size == 16}
    assert shapes == {(2**k, 16) for k in range(6)}
    assert max(steps for steps, _ in shapes) == MAX_BLOCK_STEPS


def test_without_a_gpu_a_replay_calls_the_function_each_time_it_is_run() -> None:
    calls: list[int] = []
    replay = Replay(torch.device("cpu"))
    replay.prepare("key", lambda: calls.append(1))
    assert calls == []
    replay.run("key", lambda: calls.append(2))
    replay.run("key", lambda: calls.append(3))
    assert calls == [2, 3]
