"""Federation: the engine contract, local training, and the simulator."""
