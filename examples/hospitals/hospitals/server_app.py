"""What runs at the server: trains; erases the hospital that `erasure.leaver` names."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from hospitals.names import Named
from hospitals.task import SITES, accuracy, load_model
from secede.flower import Store, erase, recording

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, unless there are no rounds to do; erase, if somebody leaves."""
    grid, config = Named(grid), context.run_config
    store = Store(str(config["erasure.home"]), load_model, name="hospitals")
    rounds, leaver = int(config["num-server-rounds"]), str(config["erasure.leaver"])
    everybody = len(SITES) - len(store.erased_clients())
    mean = FedAvg(fraction_evaluate=0.0, min_train_nodes=everybody, min_available_nodes=everybody)
    strategy = recording(mean, store)
    if rounds:
        torch.manual_seed(0)
        start = store.last_model() or load_model().state_dict()
        strategy.start(grid, ArrayRecord(start), num_rounds=rounds)
        print(f"trained: {accuracy(store.last_model()):.1%} of new images are read right")
    if leaver:
        why = str(config["erasure.trigger"])
        outcome = erase(grid, strategy, store, leaver=leaver, trigger=why, passes=3)
        if outcome.state != "promoted":
            raise SystemExit(f"{leaver} was not erased: {outcome.state}, {outcome.reason}")
        print(f"erased: {accuracy(store.last_model()):.1%} of new images are read right")
        print(f"receipt {outcome.receipt}")
        print(f"page {outcome.page}")
