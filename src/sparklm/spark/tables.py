"""Tables as a corpus: anything that Spark reads, each row a document.

A table has no order of its own, and how it is cut into partitions depends on the cluster. So rows are put into shards
by the hash of their text and sorted inside them: the same rows give the same bytes, however they are stored and
whatever reads them. That costs one shuffle of the text. Rows reach the tasks through Arrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.spark.duplicates import SIGNATURE_SCHEMA, find_duplicates, signature_batches
from sparklm.spark.task_logs import this_task
from sparklm.spark.tasks import arrow_batch, arrow_rows, map_arrow, name_jobs, run_query
from sparklm.text.cleaning import clean
from sparklm.text.corpus import SHARD_TEXT_BYTES, TOKENIZER_SAMPLE_BYTES, corpus_name
from sparklm.text.encode import ShardRequest, ShardResult, encode_shard, sign_shard
from sparklm.text.formats import Form
from sparklm.text.readers import Chunk, make_chunk, missing_column
from sparklm.text.shards import Input
from sparklm.text.token_files import Vocabulary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RESULT_SCHEMA = "result string, user_error string"


class TableCorpus:
    """A corpus (see text/corpus.py) whose documents are the rows of a table."""

    form: Form = "text"

    def __init__(self, session: SparkSession, data: DataConfig, cleaning: CleaningConfig) -> None:
        self._session, self._cleaning = session, cleaning
        self._rows = open_rows(session, data)
        self._name = corpus_name(data)
        name_jobs(session, f"sparklm: prepare, look at {self._name}")
        _, self.text_bytes, content = look_at_rows(session, self._rows)
        self.inputs = [Input(name=self._name, num_bytes=self.text_bytes, modified=content)]
        self.notes: list[str] = []
        self._num_shards = max(1, -(-self.text_bytes // SHARD_TEXT_BYTES))

    def sample_texts(self) -> Iterator[str]:
        """The rows whose hashes are smallest, until there is enough text: a fair sample, always the same."""
        name_jobs(self._session, f"sparklm: prepare, take a sample of {self._name}")
        share, texts = min(1.0, 1.2 * TOKENIZER_SAMPLE_BYTES / max(1, self.text_bytes)), [b""]
        while sum(map(len, texts)) < min(TOKENIZER_SAMPLE_BYTES, self.text_bytes):
            limit = int(-(2**63) + share * 2**64) - 1
            texts = [row.text for row in run_query(self._session, partial(self._rows_up_to, limit))]
            if share == 1.0:
                break
            share = min(1.0, 2 * share)
        chunks = (make_chunk(str(number), bytes(text)) for number, text in enumerate(texts))
        for _, chunk in clean(chunks, self._cleaning, Counter()):
            yield chunk.data.decode()

    def _rows_up_to(self, limit: int) -> DataFrame:
        return self._rows.filter(f"hash <= {limit}").orderBy("hash", "text").select("text")

    def documents(self) -> Iterator[Chunk]:
        """Fetch the rows, in the order of their hashes."""
        name_jobs(self._session, f"sparklm: read {self._name}")
        for row in run_query(self._session, lambda: self._rows.orderBy("hash", "text")):
            yield make_chunk(f"{self._name}:{row.hash & (2**64 - 1):016x}", bytes(row.text))

    def survey_ids(self) -> Vocabulary:
        """A table holds text."""
        raise UserError(f"{self._name} is a table of text, not of token ids")

    def find_duplicates(self, request: ShardRequest) -> set[int]:
        """Sign and compare the rows."""
        name = self._name

        def sign(batches: Iterator[Any]) -> Iterator[Any]:
            chunks = _chunks(batches, name, Counter())
            yield from signature_batches(this_task().partitionId(), sign_shard(request, chunks))

        return find_duplicates(self._session, lambda: map_arrow(self._shards(), sign, SIGNATURE_SCHEMA), request)

    def encode(self, request: ShardRequest, with_duplicates: set[int]) -> list[ShardResult]:
        """Encode every partition into its shard."""
        name = self._name

        def encode(batches: Iterator[Any]) -> Iterator[Any]:
            shard = this_task().partitionId()
            own = request.model_copy(update={"number": shard, "has_duplicates": shard in with_duplicates})
            counts: Counter[str] = Counter()
            result = encode_shard(own, _chunks(batches, name, counts), counts)
            yield arrow_batch(_RESULT_SCHEMA, result=[result.model_dump_json()])

        name_jobs(self._session, f"sparklm: prepare, tokenise {self._name}")
        rows = run_query(self._session, lambda: map_arrow(self._shards(), encode, _RESULT_SCHEMA))
        return [ShardResult.model_validate_json(row.result) for row in rows]

    def name_document(self, request: ShardRequest, with_duplicates: set[int], shard: int, place: int) -> str | None:
        """Rows have no names."""
        return None

    def _shards(self) -> DataFrame:
        rows = self._rows.repartition(self._num_shards, "hash").sortWithinPartitions("hash", "text")
        return rows.select("hash", "text")


def look_at_rows(session: SparkSession, rows: DataFrame) -> tuple[int, int, str]:
    """How many rows there are, how many bytes of text, and what tells that they have changed."""
    facts_of_all = (
        "count(*) as num_rows",
        "sum(octet_length(text)) as num_bytes",
        "bit_xor(hash) as xor",
        "sum(hash % 65521) as sum",
    )
    (facts,) = run_query(session, lambda: rows.selectExpr(*facts_of_all))
    content = f"{facts.num_rows} rows, hash {(facts.xor or 0) & (2**64 - 1):016x} {facts['sum']}"
    return facts.num_rows, facts.num_bytes or 0, content


def open_rows(session: SparkSession, data: DataConfig, key: str | None = None) -> DataFrame:
    """The table's text, as bytes, with a hash of it; or a column as its key, with a hash of both."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, PySparkException

    source = f"table {data.table}" if data.table else f"{corpus_name(data)} as {data.format}"
    try:
        table = session.table(data.table) if data.table else session.read.format(data.format).load(list(data.places))
        names = table.columns
        if data.text_column not in names:
            raise missing_column(source, data.text_column, names)
        kind = table.schema[data.text_column].dataType.simpleString()
        if kind not in ("string", "binary") and not kind.startswith(("varchar", "char")):
            raise UserError(f"{source}: the column {data.text_column!r} is of type {kind}, not a text")
        if key is not None and key not in names:
            raise UserError(f"{source} has no column {key!r}, only {', '.join(names)}; say which with --key")
        text = f"coalesce(cast({_quoted(data.text_column)} as binary), X'') as text"
        if key is None:
            return table.selectExpr(text).selectExpr("text", "xxhash64(text) as hash")
        return table.selectExpr(f"{_quoted(key)} as key", text).selectExpr("*", "xxhash64(key, text) as hash")
    except AnalysisException as error:
        raise UserError(f"Spark cannot read {source}: {str(error).splitlines()[0]}") from error
    except (PySparkException, Py4JJavaError) as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise UserError(
                f"Spark has no reader for the format {data.format!r}; add its package, for example with "
                "--set spark.jars.packages=…, or check the spelling"
            ) from error
        raise


def _chunks(batches: Iterator[Any], name: str, counts: Counter[str]) -> Iterator[Chunk]:
    """The rows of a partition as documents, named by their hash."""
    for number, text in arrow_rows(batches):
        counts["input_bytes"] += len(text)
        counts["read_bytes"] += len(text)
        yield make_chunk(f"{name}:{number & (2**64 - 1):016x}", text)


def _quoted(column: str) -> str:
    """A column's name in SQL."""
    return "`" + column.replace("`", "``") + "`"
