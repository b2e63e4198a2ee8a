"""Federated rounds: the engine contract, local training, and the simulator."""
