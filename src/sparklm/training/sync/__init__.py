"""How replicas stay one model: rounds, strategies, and the ways to a mean."""
