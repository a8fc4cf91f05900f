"""Duplicate documents found by a Spark query: the rule of text/cleaning.py, for any number of documents.

Tasks read the text and return one row for each key of each document; Spark brings equal keys together. What is left out
goes from the tasks to storage, shard by shard: the driver sees only how many shards are concerned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from sparklm.spark.tasks import arrow_batch, arrow_rows, map_arrow, name_jobs, run_query
from sparklm.storage import Folder
from sparklm.text.cleaning import Signature, least_agreement
from sparklm.text.encode import ShardRequest, sign_shard, write_duplicates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIGNATURE_SCHEMA = "shard int, document long, keys array<long>, values array<long>, user_error string"
_ROWS_A_BATCH = 1000


def find_duplicates_in_files(session: SparkSession, requests: Sequence[ShardRequest], most_tasks: int) -> set[int]:
    """Sign the documents of files in tasks, and compare them."""
    orders = [request.model_dump_json() for request in requests]
    num_tasks = min(len(orders), most_tasks)

    def sign(batches: Iterator[Any]) -> Iterator[Any]:
        for (place,) in arrow_rows(batches):
            request = ShardRequest.model_validate_json(orders[place])
            yield from signature_batches(request.number, sign_shard(request))

    def signatures() -> DataFrame:
        return map_arrow(session.range(0, len(orders), 1, num_tasks), sign, SIGNATURE_SCHEMA)

    return find_duplicates(session, signatures, requests[0])


def find_duplicates(session: SparkSession, sign: Callable[[], DataFrame], request: ShardRequest) -> set[int]:
    """Compare every document with the first of each of its keys; the shards that lose documents are returned."""
    kept: list[DataFrame] = []
    dataset = Folder(request.dataset_url)
    name_jobs(session, "sparklm: prepare, find duplicates")

    def failures() -> DataFrame:
        kept.append(sign().persist())
        return kept[0].filter("user_error is not null")

    def note(batches: Iterator[Any]) -> Iterator[Any]:
        for shard, rows in groupby(arrow_rows(batches), key=lambda row: row[0]):
            write_duplicates(dataset, shard, [document for _, document in rows])
            yield arrow_batch("shard int", shard=[shard])

    def duplicates() -> DataFrame:
        found = _duplicates(kept[0], least_agreement(request.cleaning))
        ordered = found.repartition("shard").sortWithinPartitions("shard", "document")
        return ordered.mapInArrow(note, "shard int")

    try:
        run_query(session, failures)  # what the user did wrong ends it here
        return {row.shard for row in run_query(session, duplicates)}
    finally:
        for signatures in kept:
            signatures.unpersist()


def _duplicates(signatures: DataFrame, agreement: float) -> DataFrame:
    rows = signatures.selectExpr("shard", "document", "values", "explode(keys) as key")
    first = "min(struct(shard, document, values)) over (partition by key) as first"
    agreeing = "aggregate(zip_with(values, first.values, (a, b) -> int(a <=> b)), 0, (sum, x) -> sum + x)"
    is_later = "(first.shard != shard or first.document != document)"
    return (
        rows.selectExpr("*", first)
        .filter(f"{is_later} and {agreeing} >= {agreement!r}D * size(values)")
        .select("shard", "document")
        .distinct()
    )


def signature_batches(shard: int, signatures: Iterable[Signature]) -> Iterator[Any]:
    """Signatures as Arrow batches; a hash keeps its bits, read as a signed number."""
    rows = iter(signatures)
    while batch := list(islice(rows, _ROWS_A_BATCH)):
        yield arrow_batch(
            SIGNATURE_SCHEMA,
            shard=[shard] * len(batch),
            document=[row.document for row in batch],
            keys=[row.keys.view("int64") for row in batch],
            values=[row.values.view("int64") for row in batch],
        )
