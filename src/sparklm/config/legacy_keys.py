"""Settings by the names that earlier Spark language-model trainers gave them.

Their config files run as they are: `translate` turns each of their keys into one of ours. Camel case and hyphens in
place of our snake case (`training.learningRate`, `training.learning-rate`) need no entry here.
"""

from __future__ import annotations

import re
from collections.abc import Collection

# Their key → ours. Grouped by the system that used it.
ALIASES: dict[str, str] = {
    # an LSTM that predicts embeddings
    "model.lstmLayerSize": "model.width",
    "paths.model": "output.model",
    "paths.csv": "output.metrics",
    "trainingMaster.avgFreq": "distributed.averaging_frequency",
    "trainingMaster.workerPreFetchNumBatches": "distributed.prefetch_batches",
    "hdfs.uri": "spark.properties.spark.hadoop.fs.defaultFS",
    "spark.eventLog.dir": "spark.event_log",
    # a dense network over precomputed embeddings
    "embeddingCsvPath": "data.embeddings",
    "tokenDataPath": "data.corpus",
    "modelOutputPath": "output.model",
    "statisticsPath": "output.statistics",
    "masterCluster": "spark.master",
    # attention over Word2Vec
    "inputFilePath": "data.corpus",
    "outputFilePath": "output.text",
    "modelPath": "output.model",
    "windowSize": "data.window_size",
    "overlap": "data.overlap",
    # a recurrent network with a softmax at every step
    "model.hiddenSize": "model.width",
    "model.learnRate": "training.learning_rate",
    "model.batchSize": "training.batch_size",
    "model.windowSize": "data.window_size",
    "model.numEpochs": "training.epochs",
    "model.embeddingDim": "model.embedding_size",
    "model.vocabSize": "data.vocab_size",
    **{
        f"{section}{name}": key
        for section in ("", "model.", "training.", "trainingMaster.")
        for name, key in {
            "averagingFrequency": "distributed.averaging_frequency",
            "averageUpdaters": "distributed.average_optimizer",
            "batchSizePerWorker": "training.batch_size",
            "numWorkers": "distributed.replicas",
            "workerPrefetchNumBatches": "distributed.prefetch_batches",
        }.items()
    },
}

# Settings of their training masters that have nothing to set here, and why.
WITHOUT_EFFECT: dict[str, str] = {
    "aggregationDepth": "means are taken in slices, each by one task, so there is no tree of a depth",
    "collectTrainingStats": "figures are always collected",
    "exportDirectory": "windows are cut out of the dataset's shards and never exported",
    "rddDataSetNumExamples": "windows are cut out of the dataset's shards; there are no examples in an RDD",
    "rddTrainingApproach": "windows are cut out of the dataset's shards and never exported",
    "repartition": "which replica sees which window follows from the seed alone",
    "repartitionStrategy": "which replica sees which window follows from the seed alone",
    "storageLevel": "windows are cut out of the dataset's shards; nothing is kept in Spark's storage",
}

# Addresses on S3 that stand beside a local one: used on a cluster, where the local one cannot be meant.
CLUSTER_ALIASES: dict[str, str] = {
    "s3InputPath": "data.corpus",
    "s3OutputPath": "output.text",
    "s3ModelPath": "output.model",
}

# Keys by which one of the earlier systems' config files is known, and the preset that is that system.
SYSTEM_PRESETS: dict[str, str] = {
    "model.lstmLayerSize": "s0-lstm",
    "embeddingCsvPath": "s1-dense",
    "inputFilePath": "s2-attention",
    "model.hiddenSize": "s4-rnn",
}

# Those of Spark's own settings whose names have one word after `spark.`.
_SPARK_OWN_WORDS = (
    *("archives", "authenticate", "extraListeners", "files", "home", "jars", "logConf", "plugins", "pyFiles"),
    *("serializer", "speculation"),
)
_SPARK_OWN_KEYS = {f"spark.{word}" for word in _SPARK_OWN_WORDS}


def translate(key: str, known_keys: Collection[str]) -> str | None:
    """Our key for any spelling that is accepted, or None for an unknown one.

    >>> translate("model.numEpochs", {"training.epochs"})
    'training.epochs'
    >>> translate("spark.executor.memory", {"spark.master"})
    'spark.properties.spark.executor.memory'
    """
    for candidate in (key, ALIASES.get(key), CLUSTER_ALIASES.get(key), _snake_case(key)):
        if candidate is not None and (candidate in known_keys or candidate in ALIASES.values()):
            return candidate
    if key.startswith("spark.properties.spark."):
        return key
    if key in _SPARK_OWN_KEYS or (key.startswith("spark.") and key.count(".") >= 2):
        return f"spark.properties.{key}"  # Spark's own name space is open: what has its form is handed to Spark
    return None


def _snake_case(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", key).replace("-", "_")
