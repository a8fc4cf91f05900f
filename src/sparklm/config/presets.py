"""Named starting points: dotted keys over the defaults of the tree."""

from __future__ import annotations

from sparklm.errors import UserError

DEFAULT_PRESET = "gpt-tiny"
PRESETS: dict[str, dict[str, object]] = {
    # The tree's own defaults: about 1 M parameters, trained on the sample within two minutes on two cores.
    "gpt-tiny": {},
    # About 11 M parameters: an hour on a laptop, minutes on a GPU.
    "gpt-small": {
        "data.window_size": 256,
        "model.num_layers": 6,
        "model.width": 384,
        "model.dropout": 0.1,
        "training.batch_size": 32,
        "training.learning_rate": 1e-3,
    },
    # GPT-2's smallest size (123.6 M parameters), for a GPU.
    "gpt-124m": {
        "data.vocab_size": 50_257,
        "data.window_size": 1024,
        "model.num_layers": 12,
        "model.width": 768,
        "model.feedforward_size": 2048,
        "training.epochs": 1,
        "training.batch_size": 16,
        "training.learning_rate": 6e-4,
    },
}


def preset_values(name: str) -> dict[str, object]:
    """Give a preset's settings."""
    try:
        return PRESETS[name]
    except KeyError:
        raise UserError(f"preset {name!r} is unknown; there are {', '.join(PRESETS)}") from None
