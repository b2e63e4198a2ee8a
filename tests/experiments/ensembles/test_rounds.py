from __future__ import annotations

from pathlib import Path

from harness import audits
from secede import state as states
from secede.experiments.ensembles.rounds import train_rounds
from secede.federation.engine import aggregate
from secede.state import State


def test_rounds_are_means_of_the_clients_that_train(tmp_path: Path) -> None:
    job, ended = audits.job(tmp_path), list[int]()
    engine = job.simulator(0, job.material.member(0))

    def train() -> State:
        start = engine.initial_state("initial")
        return train_rounds(
            engine, start, (1, 2), 2, phase="x", after_round=lambda: ended.append(1)
        )

    found = train()
    assert len(ended) == 2
    state: State = engine.initial_state("initial")
    for number in (1, 2):
        state = aggregate(engine.train_round(state, (1, 2), phase="x", number=number).updates)
    assert states.digest(found) == states.digest(state)
    engine.clients[0] = engine.clients[1]  # nobody looks at a client that does not train
    assert states.digest(train()) == states.digest(found)
