"""Settings: the typed tree, and where its values come from."""

from sparklm.config.model import ModelConfig
from sparklm.config.tree import (
    CleaningConfig,
    Config,
    DataConfig,
    DistributedConfig,
    GenerationConfig,
    OutputConfig,
    SparkConfig,
    TrainingConfig,
    Word2VecConfig,
    describe_setting,
    flat_settings,
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
    "describe_setting",
    "flat_settings",
]
