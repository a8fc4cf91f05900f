"""Checkpoints: files of tensors, the commit that makes them count, and replicas still in memory."""
