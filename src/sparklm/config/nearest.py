"""The setting that is meant by a key that does not exist: other tools' names, names without a section, and typos."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from sparklm.config.legacy_keys import ALIASES

# What other trainers call our settings. Letter case, underscores and hyphens do not matter, nor does the section.
SYNONYMS: dict[str, str] = {
    # the text
    "input": "data.corpus",
    "dataset": "data.corpus",
    "train_data": "data.corpus",
    "file": "data.corpus",
    "text": "data.corpus",
    "source": "data.corpus",
    "vocab": "data.vocab_size",
    "n_vocab": "data.vocab_size",
    "vocabulary": "data.vocab_size",
    "vocabulary_size": "data.vocab_size",
    "block_size": "data.window_size",
    "ctx": "data.window_size",
    "n_ctx": "data.window_size",
    "context": "data.window_size",
    "context_size": "data.window_size",
    "context_window": "data.window_size",
    "seq_len": "data.window_size",
    "seq_length": "data.window_size",
    "sequence_length": "data.window_size",
    "max_seq_len": "data.window_size",
    "max_seq_length": "data.window_size",
    "max_length": "data.window_size",
    "val": "data.validation",
    "val_split": "data.validation_fraction",
    "val_fraction": "data.validation_fraction",
    "validation_split": "data.validation_fraction",
    "test_split": "data.validation_fraction",
    "dedup": "cleaning.duplicates",
    "deduplicate": "cleaning.duplicates",
    # the network
    "model": "model.architecture",
    "arch": "model.architecture",
    "model_type": "model.architecture",
    "n_layer": "model.num_layers",
    "n_layers": "model.num_layers",
    "layers": "model.num_layers",
    "depth": "model.num_layers",
    "num_hidden_layers": "model.num_layers",
    "n_embd": "model.width",
    "d_model": "model.width",
    "dim": "model.width",
    "hidden": "model.width",
    "hidden_dim": "model.width",
    "hidden_size": "model.width",
    "n_head": "model.num_heads",
    "n_heads": "model.num_heads",
    "heads": "model.num_heads",
    "num_attention_heads": "model.num_heads",
    "n_kv_head": "model.num_kv_heads",
    "n_kv_heads": "model.num_kv_heads",
    "num_key_value_heads": "model.num_kv_heads",
    "head_dim": "model.head_size",
    "d_ff": "model.feedforward_size",
    "ffn_dim": "model.feedforward_size",
    "intermediate_size": "model.feedforward_size",
    "emb_dim": "model.embedding_size",
    "embedding_dim": "model.embedding_size",
    "tie_weights": "model.tie_embeddings",
    "tie_word_embeddings": "model.tie_embeddings",
    "rope_theta": "model.rope_base",
    "drop": "model.dropout",
    "dropout_rate": "model.dropout",
    "p_drop": "model.dropout",
    # learning
    "lr": "training.learning_rate",
    "learn_rate": "training.learning_rate",
    "max_lr": "training.learning_rate",
    "min_lr": "training.final_learning_rate_fraction",
    "epoch": "training.epochs",
    "n_epochs": "training.epochs",
    "num_epochs": "training.epochs",
    "max_epochs": "training.epochs",
    "num_train_epochs": "training.epochs",
    "steps": "training.max_steps",
    "n_steps": "training.max_steps",
    "num_steps": "training.max_steps",
    "iters": "training.max_steps",
    "max_iters": "training.max_steps",
    "iterations": "training.max_steps",
    "minutes": "plan.minutes",
    "max_time": "training.max_minutes",
    "batch": "training.batch_size",
    "bs": "training.batch_size",
    "train_batch_size": "training.batch_size",
    "grad_accum": "training.accumulation_steps",
    "gradient_accumulation": "training.accumulation_steps",
    "gradient_accumulation_steps": "training.accumulation_steps",
    "optim": "training.optimizer",
    "opt": "training.optimizer",
    "scheduler": "training.schedule",
    "lr_scheduler": "training.schedule",
    "lr_schedule": "training.schedule",
    "warmup": "training.warmup_fraction",
    "warmup_iters": "training.warmup_steps",
    "num_warmup_steps": "training.warmup_steps",
    "warmup_ratio": "training.warmup_fraction",
    "wd": "training.weight_decay",
    "decay": "training.weight_decay",
    "clip": "training.gradient_clip",
    "grad_clip": "training.gradient_clip",
    "max_norm": "training.gradient_clip",
    "max_grad_norm": "training.gradient_clip",
    "ema": "training.ema_decay",
    "eval_interval": "training.evaluate_every",
    "eval_every": "training.evaluate_every",
    "eval_steps": "training.evaluate_every",
    "val_check_interval": "training.evaluate_every",
    "eval_iters": "training.evaluation_tokens",
    "eval_tokens": "training.evaluation_tokens",
    "patience": "training.early_stopping_patience",
    "early_stopping": "training.early_stopping_patience",
    "save_every": "training.checkpoint_every_steps",
    "save_steps": "training.checkpoint_every_steps",
    "save_interval": "training.checkpoint_every_steps",
    "checkpoint_every": "training.checkpoint_every_steps",
    "checkpoint_interval": "training.checkpoint_every_steps",
    "save_total_limit": "training.keep_checkpoints",
    "random_seed": "training.seed",
    "random_state": "training.seed",
    "dtype": "training.precision",
    "bf16": "training.precision",
    "fp16": "training.precision",
    "gpu": "training.device",
    "cuda": "training.device",
    "num_threads": "training.threads",
    "loss": "training.objective",
    # many machines
    "workers": "distributed.replicas",
    "num_workers": "distributed.replicas",
    "num_replicas": "distributed.replicas",
    "nodes": "distributed.replicas",
    "num_nodes": "distributed.replicas",
    "world_size": "distributed.replicas",
    "compression": "distributed.compress",
    "retries": "distributed.max_retries",
    "timeout": "distributed.timeout_seconds",
    # results
    "temp": "generation.temperature",
    "tokens": "generation.max_new_tokens",
    "max_tokens": "generation.max_new_tokens",
    "num_tokens": "generation.max_new_tokens",
    "log_every": "output.log_every_steps",
    "log_interval": "output.log_every_steps",
    "logging_steps": "output.log_every_steps",
    "out": "output.run",
    "out_dir": "output.run",
    "output_dir": "output.run",
    "save_dir": "output.run",
}


def nearest_key(key: str, keys: Collection[str]) -> str | None:
    """The known key that is most likely meant by an unknown one.

    >>> known = ["training.learning_rate", "word2vec.learning_rate", "data.window_size"]
    >>> nearest_key("lr", known), nearest_key("word2vec.lr", known), nearest_key("windowsize", known)
    ('training.learning_rate', 'word2vec.learning_rate', 'data.window_size')
    """
    section, _, name = key.rpartition(".")
    meant = {_bare(synonym): target for synonym, target in SYNONYMS.items() if target in keys}.get(_bare(name))
    if meant is not None:
        in_section = f"{section}.{meant.rpartition('.')[2]}"
        return in_section if in_section in keys else meant
    by_name = {_bare(known.rpartition(".")[2]): known for known in reversed(list(keys))}
    if _bare(name) in by_name:
        return by_name[_bare(name)]
    close = difflib.get_close_matches(key, [*keys, *ALIASES], n=1, cutoff=0.7)
    if close:
        return close[0]
    close = difflib.get_close_matches(_bare(name), by_name, n=1, cutoff=0.75)
    return by_name[close[0]] if close else None


def _bare(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
