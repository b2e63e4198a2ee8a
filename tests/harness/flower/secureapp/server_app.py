from __future__ import annotations

import torch
from fastapp.task import load_model
from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from secede.flower import Store, erase_if_asked, secure_recording

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    torch.manual_seed(0)
    arrays = [value.numpy() for value in load_model().state_dict().values()]
    strategy = FedAvg(
        initial_parameters=ndarrays_to_parameters(arrays),
        fraction_evaluate=0.0,
        min_available_clients=3,
    )
    store = Store(str(config["erasure.home"]), load_model, name="north")
    hidden = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(3, 2, max_weight=500))
    workflow = secure_recording(hidden, store)
    if erase_if_asked(grid, strategy, store, context, secure=workflow):
        return
    rounds = ServerConfig(num_rounds=int(config["num-server-rounds"]))
    workflow(grid, LegacyContext(context, config=rounds, strategy=strategy))
