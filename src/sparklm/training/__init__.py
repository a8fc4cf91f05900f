"""Learning: steps, rounds, checkpoints, records and the run that holds them."""
