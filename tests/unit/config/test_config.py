"""Settings: four formats, precedence, all problems at once, the earlier systems' keys, and where values came from."""

from __future__ import annotations

import socket
from pathlib import Path

import pydantic
import pytest

from sparklm.config import Config, ModelConfig, flat_settings
from sparklm.config.legacy_keys import ALIASES, CLUSTER_ALIASES, translate
from sparklm.config.nearest import SYNONYMS, nearest_key
from sparklm.config.presets import PRESETS
from sparklm.config.resolve import describe, known_keys, resolve
from sparklm.errors import UserError
from sparklm.models.shape import ModelShape

FILES = {
    "a.conf": 'training { epochs = 7 # as HOCON\n learning_rate = 1e-4 }\ndata.corpus = "x.txt"\n',
    "a.yaml": "training:\n  epochs: 7\n  learning_rate: 1e-4\ndata: {corpus: x.txt}\n",
    "a.toml": '[training]\nepochs = 7\nlearning_rate = 1e-4\n[data]\ncorpus = "x.txt"\n',
    "a.json": '{"training": {"epochs": 7, "learning_rate": 1e-4}, "data": {"corpus": "x.txt"}}',
}


def write(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


@pytest.mark.parametrize("name", FILES)
def test_all_four_formats_say_the_same(tmp_path: Path, name: str) -> None:
    config = resolve(config_file=write(tmp_path, name, FILES[name])).config
    assert (config.training.epochs, config.training.learning_rate, config.data.corpus) == (7, 1e-4, "x.txt")


def test_later_layers_win_and_each_value_remembers_its_layer(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "training: {epochs: 7, batch_size: 9, seed: 3}\nmodel: {dropout: 0.5}")
    resolution = resolve(
        preset="gpt-small",
        config_file=path,
        assignments=["training.epochs=8"],
        flags={"spark.master": "none", "data.corpus": None},
    )
    sources = {key: (value, source) for key, value, source, _ in describe(resolution)}
    assert sources["model.num_layers"] == (6, "preset gpt-small")
    assert sources["model.dropout"] == (0.5, path)
    assert sources["training.epochs"] == (8, "--set")
    assert sources["spark.master"] == ("none", "command line")
    assert sources["training.beta1"] == (0.8, "default")
    assert sources["data.corpus"] == (None, "default")


def test_every_setting_is_described() -> None:
    assert all(text for *_, text in describe(resolve()))
    assert {key for key, *_ in describe(resolve())} == known_keys().keys()


def test_settings_are_flat_by_their_keys_and_those_of_spark_one_by_one() -> None:
    flat = flat_settings(resolve(assignments=["training.epochs=5", "spark.executor.memory=1g"]).config)
    assert flat["training.epochs"] == 5
    assert flat["spark.properties.spark.executor.memory"] == "1g"
    assert "spark.properties" not in flat
    assert flat.keys() - {"spark.properties.spark.executor.memory"} == known_keys().keys()


def test_a_resolved_config_cannot_be_changed() -> None:
    config = resolve().config
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.training.epochs = 3  # type: ignore[misc]
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.training = config.training  # type: ignore[misc]


def test_all_problems_are_told_at_once_with_value_source_allowed_and_nearest_key(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "training: {epohcs: 3}\ndata: {tokenizer: morse, overlap: 500}\n")
    with pytest.raises(UserError) as raised:
        resolve(
            config_file=path,
            assignments=["training.batch_size=many", "windowsize=4", "nonsense", "training.learning_rate=inf"],
        )
    message = str(raised.value)
    assert message.startswith("7 problems in the configuration:")
    for expected in (
        f"training.epohcs = 3 ({path}): unknown key; did you mean training.epochs?",
        f"data.tokenizer = 'morse' ({path}): should be one of bpe, word, char, byte, gpt2,",
        "data: overlap 500 must be smaller than window_size 128",
        "training.batch_size = 'many' (--set): should be a valid integer",
        "windowsize = '4' (--set): unknown key; did you mean data.window_size?",
        "--set nonsense: give it as key=value",
        "training.learning_rate = 'inf' (--set): should be a finite number",
    ):
        assert expected in message


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.num_heads=5", "num_heads 5 must divide width"),
        ("model.num_kv_heads=3", "num_kv_heads 3 must divide num_heads 4"),
        ("model.head_size=3", "must be even"),
        ("model.context_length=4", "is longer than model.context_length 4"),
        ("model.embedding_size=64", "embedding_size 64 must be width 128 with gpt"),
        ("model.positions=learned", "positions learned do not go with gpt"),
        ("training.objective=embedding", "does not go with gpt; use lstm, dense, attention or rnn"),
        ("model.architecture=transformer", "should be 'gpt', 'lstm', 'dense', 'attention' or 'rnn'"),
        ("training.epochs=0", "greater than or equal to 1"),
        ("training.max_minutes=0", "greater than 0"),
        ("distributed.replicas=5000", "less than or equal to 4096"),
        ("data.validation_fraction=1", "less than 1"),
        ("spark.mastr=local", "did you mean spark.master"),
        ("epochs=3", "did you mean training.epochs"),
        ("spark.properties=abc", "spark.properties = 'abc' .--set.: unknown key"),
        ("data.corpus=", "at least 1 character"),
        ("data.vocab_size=1000000000000", "less than or equal to 1000000"),
        ("generation.seed=99999999999999999999", "less than 9223372036854775808"),
    ],
)
def test_what_does_not_fit_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(assignments=[assignment])


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (
            ["model.architecture=lstm", "training.objective=embedding"],
            "set data.embeddings to random, word2vec or a file",
        ),
        (["model.architecture=lstm", "model.positions=rotary"], "positions rotary need attention, which lstm does not"),
        (["model.architecture=dense", "training.objective=next_token"], "dense has last_token"),
        (["model.architecture=attention", "model.num_heads=5"], "num_heads 5 must divide width 128"),
        (["model.architecture=rnn", "model.tie_embeddings=true", "model.embedding_size=8"], "8 must be width 128"),
        (["model.architecture=rnn", "model.context_length=4"], "128 is longer than model.context_length 4"),
    ],
)
def test_what_an_architecture_cannot_do_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(assignments=assignments)


def test_stride_and_overlap_are_two_ways_to_say_one_thing() -> None:
    assert resolve(assignments=["data.window_size=15", "data.overlap=7"]).config.data.window_stride == 8
    assert resolve(assignments=["data.stride=5"]).config.data.window_stride == 5
    assert resolve(assignments=["data.window_size=9"]).config.data.window_stride == 9
    with pytest.raises(UserError, match="give one of them"):
        resolve(assignments=["data.stride=5", "data.overlap=5"])


def test_sparks_own_settings_come_from_anywhere_and_lists_are_joined(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conf", 'spark { jars = ["a.jar", "b.jar"], sql.adaptive.enabled = false }')
    resolution = resolve(config_file=path, assignments=["spark.executor.memory=2g"])
    assert resolution.config.spark.properties == {
        "spark.jars": "a.jar,b.jar",
        "spark.sql.adaptive.enabled": "false",
        "spark.executor.memory": "2g",
    }
    assert ("spark.executor.memory", "2g", "--set", "handed to Spark") in describe(resolution)


def test_a_file_may_include_another_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "base.conf", "training.epochs = 5")
    path = write(tmp_path, "a.conf", 'include "base.conf"\ntraining.seed = 4')
    config = resolve(config_file=path).config
    assert (config.training.epochs, config.training.seed) == (5, 4)


def test_a_config_can_be_the_base_of_another() -> None:
    base = resolve(assignments=["training.epochs=5", "spark.executor.memory=1g"]).config
    resolution = resolve(base=("run x", base), flags={"spark.master": "none"})
    assert resolution.config.training.epochs == 5
    assert resolution.config.spark.properties == {"spark.executor.memory": "1g"}
    assert resolution.config.spark.master == "none"
    assert resolution.notes == []


def test_null_unsets_a_value() -> None:
    assert resolve(assignments=["training.gradient_clip=null"]).config.training.gradient_clip is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.ini", "x", "unknown format '.ini'"),
        ("a.json", "{", "is not valid json"),
        ("a.toml", "=", "is not valid toml"),
        ("a.yaml", "a: [", "is not valid yaml"),
        ("a.conf", "a { b = ", "is not valid conf"),
        ("a.json", "[1]", "expected settings by name"),
        ("a.conf", "spark.network.timeout = 120s", "put it in quotes"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(config_file=write(tmp_path, name, text))


def test_a_missing_file_and_a_missing_preset_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        resolve(config_file=str(tmp_path / "no.yaml"))
    with pytest.raises(UserError, match="'huge' is unknown; there are gpt-tiny, gpt-small, gpt-124m"):
        resolve(preset="huge")
    for typed, meant in (("tiny", "gpt-tiny"), ("gpt_small", "gpt-small"), ("LSTM", "s0-lstm")):
        with pytest.raises(UserError, match=rf"did you mean {meant}\? There are gpt-tiny"):
            resolve(preset=typed)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_config(name: str) -> None:
    config = resolve(preset=name).config
    family = name.partition("-")[0] if name.startswith("gpt") else name.partition("-")[2]
    assert config.model.architecture == family
    shape = ModelShape.from_config(config, 512)
    assert shape.num_heads * shape.head_size == shape.width == config.model.width


@pytest.mark.parametrize(("width", "heads"), [(64, 4), (128, 4), (192, 4), (256, 4), (384, 6), (768, 12), (1026, 19)])
def test_heads_follow_the_width_unless_given(width: int, heads: int) -> None:
    assert ModelConfig(width=width).resolved_heads == heads


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["data.format=txt"], "format 'txt' is unknown; did you mean text"),
        (["data.format=a b"], "format 'a b' is none of auto, text"),
        (["data.format=orc"], "format orc needs a corpus"),
        (["data.table=a.b", "data.corpus=c"], "table a.b and corpus c are two sources"),
        (["data.validation_table=a.b", "data.validation=c"], "validation_table a.b and validation c are two sources"),
        (["data.validation=v", "data.validation_fraction=0.2"], "data.validation and data.validation_fraction: "),
        (["data.validation_table=v", "data.validation_fraction=0"], "data.validation_table and data.validation_frac"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(assignments=assignments)


SEVERAL = {
    "a.conf": 'data.corpus = ["a.txt", "b.txt"]\n',
    "a.yaml": "data: {corpus: [a.txt, b.txt]}\n",
    "a.toml": '[data]\ncorpus = ["a.txt", "b.txt"]\n',
    "a.json": '{"data": {"corpus": ["a.txt", "b.txt"]}}',
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_corpus_may_be_a_list(tmp_path: Path, name: str) -> None:
    config = resolve(config_file=write(tmp_path, name, SEVERAL[name])).config
    assert config.data.corpus == config.data.places == ("a.txt", "b.txt")
    assert Config.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("corpus", "places"), [(None, ()), ("a.txt", ("a.txt",)), (["a.txt"], ("a.txt",)), (["a", "b"], ("a", "b"))]
)
def test_a_list_of_one_is_that_one(corpus: object, places: tuple[str, ...]) -> None:
    data = resolve(flags={"data.corpus": corpus}).config.data
    assert data.places == places
    assert data.corpus == (places or (None,))[0] or len(places) == 2


@pytest.mark.parametrize("corpus", [[], [3], 3, ["a", ""]])
def test_what_is_no_address_is_refused(corpus: object) -> None:
    with pytest.raises(UserError, match=r"data\.corpus = .* (should be an address, or a list|at least 1 character)"):
        resolve(flags={"data.corpus": corpus})


def test_a_preset_may_have_a_split_where_validation_text_is_given() -> None:
    resolution = resolve(preset="s4-rnn", assignments=["data.validation=v", "data.split=tail"])
    assert resolution.config.data.has_own_validation
    assert "data.split is not used: validation is a text of its own" in resolution.notes


# The config blocks of the earlier systems, as they stand in their descriptions.
S0 = """
training { learningRate = 0.001, batchSize = 32, epochs = 10 }
model { lstmLayerSize = 64 }
spark {
  appName = "Spark LLM"
  master = "local[*]"
  jars = "s3://sparkllmbucket/jar/LLMDecoderSpark-assembly-0.1.0-SNAPSHOT.jar"
  hadoop { fs { defaultFS = "hdfs://localhost:9000" } }
  executor { memory = "4g" }
  local { dir = "hdfs://localhost:9000/spark/tmp" }
  eventLog { dir = "hdfs://localhost:9000/spark/events" }
  rdd { compress = "true" }
  io { compression { codec = "lz4" } }
}
hdfs { uri = "hdfs://localhost:9000/" }
paths { model = "src/main/resources/trainedModel.zip", csv = "src/main/resources/training_metrics.csv" }
data { windowSize = 64, stride = 32 }
metrics { similarityThreshold = 0.05 }
trainingMaster{
   avgFreq=5
   workerPreFetchNumBatches=2
}
"""
S1 = """
embeddingCsvPath = "src/main/resources/input/embeddings.csv"
tokenDataPath = "src/main/resources/input/part-r-00000"
modelOutputPath = "src/main/resources/output/decoder_model.zip"
statisticsPath = "src/main/resources/output/training_stats.csv"
masterCluster = "local[*]"
"""
S2 = """
inputFilePath = "/local/path/to/input"
outputFilePath = "/local/path/to/output"
modelPath = "/local/path/to/model.zip"
s3InputPath = "s3a://bucket-name/input"
s3OutputPath = "s3a://bucket-name/output"
s3ModelPath = "s3a://bucket-name/model.zip"
spark.appName = "Distributed LLM Training"
spark.master = "yarn"
spark.executor.memory = "4g"
spark.driver.memory = "4g"
windowSize = 15
overlap = 7
"""
S4 = """
model {
    hiddenSize = 256         // Increase hidden size for more learning capacity
    learnRate = 0.001
    batchSize = 2
    windowSize = 4
    numEpochs = 200
    embeddingDim = 128
    vocabSize = 50257
    averagingFrequency = 3
    workerPrefetchNumBatches = 1
}
"""


def test_the_lstm_systems_file_is_understood_as_it_is(tmp_path: Path) -> None:
    resolution = resolve(config_file=write(tmp_path, "application.conf", S0))
    config = resolution.config
    assert (config.training.learning_rate, config.training.batch_size, config.training.epochs) == (0.001, 32, 10)
    assert (config.data.window_size, config.data.window_stride, config.model.width) == (64, 32, 64)
    assert (config.spark.app_name, config.spark.master) == ("Spark LLM", "local[*]")
    assert config.spark.properties == {
        "spark.executor.memory": "4g",
        "spark.rdd.compress": "true",
        "spark.io.compression.codec": "lz4",
    }
    assert config.output.model == "src/main/resources/trainedModel.zip"
    assert config.output.metrics == "src/main/resources/training_metrics.csv"
    assert (config.distributed.averaging_frequency, config.distributed.prefetch_batches) == (5, 2)
    assert config.metrics.similarity_threshold == 0.05
    assert (config.model.architecture, config.objective, config.data.embeddings) == ("lstm", "last_embedding", "random")
    about = "\n".join(resolution.notes)
    assert "has model.lstmLayerSize, so it starts from the preset s0-lstm" in about
    assert "spark.local.dir = 'hdfs://localhost:9000/spark/tmp' is not used" in about
    assert "spark.jars" in about
    assert (
        "spark.hadoop.fs.defaultFS = 'hdfs://localhost:9000/' is not used: it does not answer; paths without" in about
    )
    assert "spark.eventLog.dir = 'hdfs://localhost:9000/spark/events' is not used: it does not answer" in about
    assert "metrics.similarity_threshold" not in about


def test_an_hdfs_that_is_there_is_used(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"hdfs://127.0.0.1:{server.getsockname()[1]}"
        text = S0.replace("hdfs://localhost:9000", address)
        resolution = resolve(config_file=write(tmp_path, "application.conf", text))
    assert resolution.config.spark.properties["spark.hadoop.fs.defaultFS"] == f"{address}/"
    assert resolution.config.spark.event_log == f"{address}/spark/events"
    assert "spark.eventLog.dir" not in resolution.config.spark.properties
    assert "does not answer" not in "\n".join(resolution.notes)


def test_relative_inputs_and_outputs_are_below_an_hdfs_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"data.corpus": "tokenids.txt", "output.run": "/runs/a", "output.text": "s3://bucket/a.txt"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"hdfs://127.0.0.1:{server.getsockname()[1]}"
        path = write(tmp_path, "application.conf", S0.replace("hdfs://localhost:9000", address))

        def refuse(url: str) -> None:
            raise UserError(f"{url}: sparklm cannot reach this file system (no libhdfs)")

        monkeypatch.setattr("sparklm.config.resolve.open_filesystem", refuse)
        without = resolve(config_file=path, flags=flags)
        monkeypatch.setattr("sparklm.config.resolve.open_filesystem", lambda url: (None, ""))
        resolution = resolve(config_file=path, flags=flags)
    (note,) = [note for note in without.notes if "hdfs.uri" in note]
    assert note.startswith(f"hdfs.uri = '{address}/' is used by Spark only: ")
    assert note.endswith("(no libhdfs); paths without a protocol are on local disks")
    assert without.config.data.corpus == "tokenids.txt"
    config = resolution.config
    assert config.data.corpus == f"{address}/tokenids.txt"
    assert config.output.model == f"{address}/src/main/resources/trainedModel.zip"
    assert config.output.metrics == f"{address}/src/main/resources/training_metrics.csv"
    assert (config.output.run, config.output.text, config.data.embeddings) == ("/runs/a", "s3://bucket/a.txt", "random")
    assert config.data.tokenizer == "bpe"
    (note,) = [note for note in resolution.notes if "hdfs.uri" in note]
    assert note == (
        f"data.corpus, output.model, output.metrics: below {address}, because hdfs.uri answers; a path from / is on "
        "local disks"
    )


def test_an_event_log_is_asked_for_by_either_name_and_needs_spark() -> None:
    by_ours = resolve(assignments=["spark.event_log=events"])
    by_sparks = resolve(assignments=["spark.eventLog.dir=events"])
    assert by_ours.config == by_sparks.config
    assert by_sparks.provenance["spark.event_log"] == "--set, as spark.eventLog.dir"
    away = resolve(assignments=["spark.event_log=hdfs://127.0.0.1:1/events"])
    assert away.config.spark.event_log is None
    assert away.notes == [
        "spark.event_log = 'hdfs://127.0.0.1:1/events' is not used: it does not answer; there will be no event log"
    ]
    connected = resolve(assignments=["spark.log_level=INFO", "spark.master=sc://host:15002"])
    assert connected.notes == ["spark.log_level is not used: a Spark Connect server has its own"]
    without = resolve(assignments=["spark.event_log=events", "spark.master=none"])
    assert "spark.event_log is not used: there is no Spark" in without.notes


def test_the_dense_systems_paths_are_honoured(tmp_path: Path) -> None:
    config = resolve(config_file=write(tmp_path, "application.conf", S1)).config
    assert config.data.corpus == "src/main/resources/input/part-r-00000"
    assert config.data.embeddings == "src/main/resources/input/embeddings.csv"
    assert config.output.model == "src/main/resources/output/decoder_model.zip"
    assert config.output.statistics == "src/main/resources/output/training_stats.csv"
    assert config.spark.master == "local[*]"
    assert (config.model.architecture, config.training.optimizer) == ("dense", "nesterov")


def test_of_two_addresses_the_one_that_fits_the_master_is_used(tmp_path: Path) -> None:
    path = write(tmp_path, "application.conf", S2)
    on_cluster, here = resolve(config_file=path), resolve(config_file=path, flags={"spark.master": "local[2]"})
    assert on_cluster.config.data.corpus == "s3a://bucket-name/input"
    assert on_cluster.config.output.model == "s3a://bucket-name/model.zip"
    assert here.config.data.corpus == "/local/path/to/input"
    assert here.config.output.text == "/local/path/to/output"
    assert any("s3InputPath" in note and "inputFilePath is" in note for note in here.notes)
    assert on_cluster.config.data.window_stride == 8
    assert (here.config.model.architecture, here.config.data.embeddings) == ("attention", "word2vec")
    assert on_cluster.config.spark.properties["spark.driver.memory"] == "4g"


def test_the_recurrent_systems_block_is_understood(tmp_path: Path) -> None:
    config = resolve(config_file=write(tmp_path, "application.conf", S4)).config
    assert (config.model.width, config.model.embedding_size, config.data.vocab_size) == (256, 128, 50_257)
    assert (config.training.learning_rate, config.training.batch_size, config.training.epochs) == (0.001, 2, 200)
    assert (config.model.architecture, config.objective, config.data.window_size) == ("rnn", "next_token", 4)
    assert (config.distributed.averaging_frequency, config.distributed.prefetch_batches) == (3, 1)


def test_a_preset_that_is_asked_for_wins_over_the_one_that_a_file_looks_like(tmp_path: Path) -> None:
    resolution = resolve(preset="gpt-tiny", config_file=write(tmp_path, "application.conf", S0))
    assert (resolution.config.model.architecture, resolution.config.model.width) == ("gpt", 64)
    assert "metrics.similarity_threshold is not used" in "\n".join(resolution.notes)


def test_stride_takes_the_place_of_an_overlap_that_a_preset_gives() -> None:
    data = resolve(preset="s2-attention", assignments=["data.stride=3"]).config.data
    assert (data.overlap, data.window_stride) == (None, 3)


def test_what_an_architecture_does_not_have_is_named() -> None:
    notes = resolve(assignments=["model.architecture=lstm", "model.num_heads=3", "model.feedforward_size=9"]).notes
    assert "model.num_heads is not used: lstm has no attention" in notes
    assert "model.feedforward_size is not used: lstm has none" in notes


def test_every_alias_leads_to_a_key_that_exists() -> None:
    keys = known_keys()
    for target in {*ALIASES.values(), *CLUSTER_ALIASES.values()}:
        assert target in keys or target.startswith("spark.properties.spark.")
        assert translate(target, keys) == target
    assert Config.model_validate({}) == Config()


@pytest.mark.parametrize("name", SYNONYMS)
def test_the_names_of_other_trainers_are_refused_with_ours(name: str) -> None:
    assert SYNONYMS[name] in known_keys()
    for spelling in (name, name.replace("_", "-"), name.upper(), f"anything.{name}"):
        assert nearest_key(spelling, known_keys()) == SYNONYMS[name]
    with pytest.raises(UserError, match=rf"  {name} = '1' .*: unknown key; did you mean {SYNONYMS[name]}\?"):
        resolve(assignments=[f"{name}=1"])


def test_a_key_without_its_section_is_refused_with_the_whole_key() -> None:
    owners: dict[str, str] = {}
    for key in known_keys():
        owners.setdefault(key.rpartition(".")[2], key)  # of several sections that have it, the first
    for name, key in owners.items():
        assert nearest_key(name, known_keys()) == SYNONYMS.get(name, key)
    assert nearest_key("word2vec.lr", known_keys()) == "word2vec.learning_rate"
    assert nearest_key("gibberish", known_keys()) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.conf", "training { learning-rate = 0.5, max-steps = 7 }"),
        ("a.yaml", "training: {learning-rate: 0.5, max-steps: 7}"),
        ("a.toml", "[training]\nlearning-rate = 0.5\nmax-steps = 7"),
        ("a.json", '{"training": {"learning-rate": 0.5, "max-steps": 7}}'),
    ],
)
def test_hyphens_are_as_good_as_underscores(tmp_path: Path, name: str, text: str) -> None:
    training = resolve(config_file=write(tmp_path, name, text)).config.training
    assert (training.learning_rate, training.max_steps) == (0.5, 7)
    assert resolve(assignments=["data.window-size=9"]).config.data.window_size == 9
    assert "spark.properties" not in (translate("spark.event-log", known_keys()) or "")
    assert translate("spark.some-package.some-key", known_keys()) == "spark.properties.spark.some-package.some-key"


def test_settings_of_syncs_that_do_not_take_place_are_named() -> None:
    alone = resolve(assignments=["distributed.strategy=averaging", "distributed.averaging_frequency=3"])
    assert alone.notes == [
        "distributed.averaging_frequency is not used: one replica has nothing to sync with",
        "distributed.strategy is not used: one replica has nothing to sync with",
    ]
    together = resolve(
        assignments=["distributed.replicas=2", "distributed.averaging_frequency=3", "distributed.diloco_steps=9"]
    )
    assert together.notes == ["distributed.averaging_frequency is not used: the strategy is diloco"]


def test_knobs_of_an_old_training_master_are_taken_over_or_explained(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text(
        "trainingMaster { numWorkers = 4, batchSizePerWorker = 16, averageUpdaters = false, averagingFrequency = 7, "
        "aggregationDepth = 2, storageLevel = MEMORY_ONLY }\ndistributed.strategy = averaging"
    )
    resolution = resolve(config_file=str(tmp_path / "a.conf"))
    distributed = resolution.config.distributed
    assert (distributed.replicas, distributed.averaging_frequency, distributed.average_optimizer) == (4, 7, False)
    assert resolution.config.training.batch_size == 16
    assert [note.partition(":")[0] for note in resolution.notes] == [
        "trainingMaster.aggregationDepth = 2 is not used",
        "trainingMaster.storageLevel = 'MEMORY_ONLY' is not used",
    ]


def test_early_stopping_without_validation_text_is_said_to_have_no_effect() -> None:
    settings = ["data.validation_fraction=0", "training.early_stopping_patience=2"]
    notes = resolve(assignments=settings).notes
    assert "training.early_stopping_patience is not used: there is no validation text" in notes


def test_several_sources_and_validation_text_are_below_an_hdfs_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklm.config.resolve.open_filesystem", lambda url: (None, ""))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"hdfs://127.0.0.1:{server.getsockname()[1]}"
        path = write(tmp_path, "application.conf", S0.replace("hdfs://localhost:9000", address))
        flags = {"data.corpus": ["a.txt", "/b.txt"], "data.validation": "v.txt"}
        config = resolve(config_file=path, flags=flags).config
    assert config.data.places == (f"{address}/a.txt", "/b.txt")
    assert config.data.of_validation.places == (f"{address}/v.txt",)


def test_a_table_is_not_its_own_validation_text() -> None:
    with pytest.raises(UserError, match="books is corpus and validation text at once"):
        resolve(assignments=["data.table=books", "data.validation_table=books"])
