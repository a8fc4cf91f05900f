"""Settings: the typed tree, and where its values come from."""

from sparklm.config.tree import (
    CleaningConfig,
    Config,
    DataConfig,
    DistributedConfig,
    GenerationConfig,
    ModelConfig,
    OutputConfig,
    SparkConfig,
    TrainingConfig,
    Word2VecConfig,
)

__all__ = [
    "CleaningConfig",
    "Config",
    "DataConfig",
    "DistributedConfig",
    "GenerationConfig",
    "ModelConfig",
    "OutputConfig",
    "SparkConfig",
    "TrainingConfig",
    "Word2VecConfig",
]
