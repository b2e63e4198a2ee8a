from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fastapp.task import load_model
from secede.flower import Store, erase_if_asked, recording

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    store = Store(str(config["erasure.home"]), load_model, name="north")
    strategy = recording(FedAvg(fraction_evaluate=0.0, min_train_nodes=2), store, online_timeout=90)
    if erase_if_asked(grid, strategy, store, context):
        return
    torch.manual_seed(0)
    start = store.last_model() or load_model().state_dict()
    strategy.start(
        grid, ArrayRecord(start), num_rounds=int(config["num-server-rounds"]), timeout=90
    )
