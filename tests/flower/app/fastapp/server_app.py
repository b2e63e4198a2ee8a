from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fastapp.task import load_model
from secede.erasure.planning import Wishes
from secede.flower import Store, erase, recording

STEP = {"epochs": 1, "batch_size": 16, "learning_rate": 0.05, "stop_distance": 100.0}
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    store = Store(str(config["erasure.home"]), load_model, name="north")
    strategy = recording(FedAvg(fraction_evaluate=0.0, min_train_nodes=2), store, wait_seconds=90)
    if leaver := str(config["erasure.leaver"]):
        wishes = Wishes(
            methods=("projected-ascent",),
            settings={"projected-ascent": STEP},
            least_rounds=int(config["erasure.least-rounds"]),
            rounds=2,
            answer_seconds=120.0,
        )
        outcome = erase(
            grid, strategy, store, leaver=leaver, wishes=wishes, round_seconds=90, gather_seconds=60
        )
        if outcome.state != "promoted":
            raise SystemExit(f"{leaver} was not erased: {outcome.state}, {outcome.reason}")
        return
    torch.manual_seed(0)
    start = store.model() or load_model().state_dict()
    strategy.start(
        grid, ArrayRecord(start), num_rounds=int(config["num-server-rounds"]), timeout=90
    )
