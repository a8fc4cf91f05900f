"""Settings: the typed tree, and where its values come from."""

from sparklm.config.tree import (
    Config,
    DataConfig,
    DistributedConfig,
    GenerationConfig,
    ModelConfig,
    OutputConfig,
    SparkConfig,
    TrainingConfig,
)

__all__ = [
    "Config",
    "DataConfig",
    "DistributedConfig",
    "GenerationConfig",
    "ModelConfig",
    "OutputConfig",
    "SparkConfig",
    "TrainingConfig",
]
