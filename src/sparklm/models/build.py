"""Networks made from settings: found by name in the registry, loaded, built and given their first weights."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sparklm.config import Config
from sparklm.models.network import LanguageModel
from sparklm.models.registry import ARCHITECTURES
from sparklm.models.shape import ModelShape


def build_model(
    config: Config,
    vocab_size: int,
    embeddings_VE: Tensor | None = None,
    *,
    seed: int = 0,
    weights: dict[str, Tensor] | None = None,
) -> LanguageModel:
    """Build the network that a config asks for, its weights as given or drawn by the seed, with embeddings if given."""
    model = model_of_shape(ModelShape.from_config(config, vocab_size, embeddings_VE))
    model.reserve(config.data.window_size)
    if weights:
        model.load_state_dict(weights)
        return model
    model.initialise(torch.Generator().manual_seed(seed), embeddings_VE)
    return model


def count_parameters(config: Config, vocab_size: int) -> int:
    """Count the weights of the network that a config asks for, without making it."""
    model = outline(ModelShape.from_config(config, vocab_size))
    return sum(parameter.numel() for parameter in model.parameters())


class _NoFirstWeights(TorchFunctionMode):
    """Leaves out what torch does to draw first weights."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return keywords.get("tensor", arguments[0] if arguments else None)
        return function(*arguments, **keywords)


def outline(shape: ModelShape) -> LanguageModel:
    """A network without weights. To draw some in vain would load torch's compiler, which takes a second."""
    with torch.device("meta"), _NoFirstWeights():
        return model_of_shape(shape)


def model_of_shape(shape: ModelShape) -> LanguageModel:
    """Make a network of a shape, with whatever weights torch gives it."""
    return network_class(shape.architecture)(shape)


def network_class(architecture: str) -> type[LanguageModel]:
    """The class of an architecture's networks, imported now if it was not before."""
    module, _, name = ARCHITECTURES[architecture].network.partition(":")
    network: type[LanguageModel] = getattr(importlib.import_module(module), name)
    return network
