"""Networks, and the registry that finds them by name."""

from __future__ import annotations

from torch import nn

from sparklm.config import Config


def build_model(config: Config, vocab_size: int) -> nn.Module:
    """Build the network that a config asks for, with weights not yet initialised for training."""
    from sparklm.models.gpt import Gpt, GptShape

    architectures = {"gpt": lambda: Gpt(GptShape.from_config(config, vocab_size))}
    return architectures[config.model.architecture]()
