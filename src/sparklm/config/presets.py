"""Named starting points: dotted keys over the defaults of the tree."""

from __future__ import annotations

import difflib

from sparklm.errors import UserError

DEFAULT_PRESET = "gpt-tiny"
IN_AND_OUT_PRESET = "s3-attention"  # the system whose two arguments are the text and a file for what it generates
# How the earlier systems learned: one rate from beginning to end, and nothing that came later.
_AS_THEN: dict[str, object] = {
    "model.num_layers": 1,
    "training.optimizer": "adam",
    "training.beta2": 0.999,
    "training.schedule": "constant",
    "training.warmup_fraction": 0.0,
    "training.weight_decay": 0.0,
    "training.gradient_clip": None,
    "training.threads": 1,  # more slow down networks as small as these
    "distributed.strategy": "averaging",
    "distributed.replicas": 0,  # from the slots of the master
}
PRESETS: dict[str, dict[str, object]] = {
    # The tree's own defaults: about 1 M parameters, trained on the sample in about a minute on two cores.
    "gpt-tiny": {},
    # About 11 M parameters: an hour on a laptop, minutes on a GPU.
    "gpt-small": {
        "data.window_size": 256,
        "model.num_layers": 6,
        "model.width": 384,
        "model.dropout": 0.1,
        "training.batch_size": 32,
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
    },
    # Five earlier systems, with their own numbers where they gave any.
    # An LSTM that predicts the embedding of the token after a window.
    "s0-lstm": {
        **_AS_THEN,
        "data.window_size": 64,
        "data.stride": 32,
        "data.embeddings": "random",
        "model.architecture": "lstm",
        "model.width": 64,
        "training.objective": "last_embedding",
        "training.learning_rate": 1e-3,
        "training.batch_size": 32,
        "training.epochs": 10,
    },
    # A dense network that predicts the embedding of the token after a window.
    "s1-dense": {
        **_AS_THEN,
        "data.window_size": 16,
        "data.stride": 1,
        "data.embeddings": "random",
        "model.architecture": "dense",
        "model.width": 128,
        "training.objective": "embedding",
        "training.optimizer": "nesterov",
        "training.learning_rate": 0.1,
        "training.batch_size": 32,
        "training.epochs": 10,
    },
    # Attention over Word2Vec embeddings that predicts the next tokens.
    "s2-attention": {
        **_AS_THEN,
        "data.window_size": 15,
        "data.overlap": 7,
        "data.embeddings": "word2vec",
        "model.architecture": "attention",
        "training.objective": "next_token",
        "training.learning_rate": 1e-3,
        "training.batch_size": 32,
        "training.epochs": 10,
    },
    # Attention over words, for a book; it ends with a sentence that continues four words, the likeliest way.
    "s3-attention": {
        **_AS_THEN,
        "data.tokenizer": "word",
        "data.vocab_size": 4096,
        "data.window_size": 8,
        "data.stride": 4,
        "model.architecture": "attention",
        "training.objective": "next_token",
        "training.learning_rate": 1e-3,
        "training.batch_size": 32,
        "training.epochs": 10,
        "training.early_stopping_patience": 2,
        "generation.prompt": "The man starts with",
        "generation.max_new_tokens": 20,
        "generation.temperature": 0.0,
    },
    # A recurrent network with a softmax at every step, to learn a few sentences by heart.
    "s4-rnn": {
        **_AS_THEN,
        "data.format": "lines",
        "data.window_size": 4,
        "data.stride": 1,
        "data.validation_fraction": 0.0,
        "model.architecture": "rnn",
        "model.width": 256,
        "training.learning_rate": 1e-3,
        "training.batch_size": 2,
        "training.epochs": 200,
    },
}


def preset_values(name: str) -> dict[str, object]:
    """The settings of a preset, by dotted key."""
    try:
        return PRESETS[name]
    except KeyError:
        similar = [other for other in PRESETS if name.lower() in other] or difflib.get_close_matches(name, PRESETS)
        meant = f"did you mean {similar[0]}? There" if similar else "there"
        raise UserError(f"preset {name!r} is unknown; {meant} are {', '.join(PRESETS)}") from None
