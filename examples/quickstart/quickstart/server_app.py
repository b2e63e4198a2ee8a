"""What the server does: average what the sites have learned."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net
from secede.flower import Store, erase_if_asked, recording

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    strategy = recording(FedAvg(), store := Store(context.run_config["erasure.home"], Net))
    if erase_if_asked(grid, strategy, store, context):
        return
    torch.manual_seed(0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        train_config=ConfigRecord({"learning-rate": context.run_config["learning-rate"]}),
    )
