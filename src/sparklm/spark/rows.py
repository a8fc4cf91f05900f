"""Tables in and out of work on their rows: a copy of the rows in the order of their keys, and a table of the result.

The copy pins the input: every row is in it once, whatever becomes of the table and of tasks meanwhile. That costs one
sort of the text.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sparklm.config import DataConfig
from sparklm.errors import UserError
from sparklm.lake.parts import RowFile
from sparklm.spark.engine import engine_of
from sparklm.spark.tables import look_at_rows, open_rows
from sparklm.spark.task_logs import this_task
from sparklm.spark.tasks import arrow_batch, map_arrow, name_jobs, run_job, run_query
from sparklm.storage import Folder
from sparklm.text.corpus import corpus_name
from sparklm.text.shards import Input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_BYTES = 32 * 1024 * 1024  # of text, about
_MOST_FILES = 10_000
_GROUP_ROWS = 1024
_FILE_SCHEMA = "file string, rows long, user_error string"


class KeyedRows:
    """The rows of a table (see placement/protocol.py): those with null as their key come first."""

    def __init__(self, session: SparkSession, data: DataConfig, key: str | None) -> None:
        self._session, self._name = session, corpus_name(data)
        self._rows = open_rows(session, data, key)
        if key is None:
            self._rows = _named_by_hash(self._rows, self._name)
        name_jobs(session, f"sparklm: look at {self._name}")
        self.num_rows, num_bytes, content = look_at_rows(session, self._rows)
        self.input = Input(name=self._name, num_bytes=num_bytes, modified=content)

    def write(self, folder: Folder) -> list[RowFile]:
        """Sort the rows by key and text, and let each task write its share."""
        folder = folder.absolute()

        def write(batches: Iterator[Any]) -> Iterator[Any]:
            for number, group in enumerate(_file_groups(batches)):
                name = f"{this_task().partitionId():05d}-{number:03d}.parquet"
                folder.write_bytes(name, _parquet(group))
                yield arrow_batch(_FILE_SCHEMA, file=[name], rows=[sum(batch.num_rows for batch in group)])

        name_jobs(self._session, f"sparklm: sort {self._name}")
        files = run_query(self._session, lambda: map_arrow(self._sorted(), write, _FILE_SCHEMA))
        return sorted((RowFile(file=row.file, rows=row.rows) for row in files), key=lambda file: file.file)

    def _sorted(self) -> DataFrame:
        num_files = min(_MOST_FILES, max(1, -(-self.input.num_bytes // _FILE_BYTES)))
        rows = self._rows.repartitionByRange(num_files, "key", "text").sortWithinPartitions("key", "text")
        return rows.select("key", "text")


def _named_by_hash(rows: DataFrame, table: str) -> DataFrame:
    """Rows with the name that a document of a table has everywhere."""
    name = table.replace("\\", "\\\\").replace("'", "\\'")
    return rows.selectExpr("*", f"concat('{name}:', lower(lpad(hex(hash), 16, '0'))) as key")


def _file_groups(batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Batches of rows that are a file together."""
    group: list[Any] = []
    for batch in batches:
        if batch.num_rows:
            group.append(batch)
        if sum(each.nbytes for each in group) >= 2 * _FILE_BYTES:
            yield group
            group = []
    if group:
        yield group


def _parquet(batches: list[Any]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    table = pyarrow.Table.from_batches(batches)
    pyarrow.parquet.write_table(table, buffer, row_group_size=_GROUP_ROWS, compression="zstd")
    return buffer.getvalue()


def refuse_table(session: SparkSession, name: str) -> None:
    """Refuse a name that is taken, or that no table can have."""
    from pyspark.errors import PySparkException

    database = name.rpartition(".")[0]
    try:
        has_place = not database or session.catalog.databaseExists(database)
        is_there = has_place and session.catalog.tableExists(name)
    except PySparkException as error:
        raise UserError(f"--out-table {name} cannot be a table: {str(error).splitlines()[0]}") from error
    if not has_place:
        raise UserError(f"--out-table {name}: Spark's catalog has no database {database}; make it, or choose another")
    if is_there:
        raise UserError(f"table {name} is there already and is not overwritten; choose another --out-table")


def save_table(session: SparkSession, folder: Folder, name: str) -> None:
    """Make a table of the parquet files in a folder."""
    from pyspark.errors import AnalysisException

    local = folder.absolute().local_path()
    address = folder.url if local is None else local.as_uri()

    def save() -> list[Any]:
        try:
            session.read.parquet(address).write.saveAsTable(name)
        except AnalysisException as error:
            raise UserError(f"Spark cannot make table {name}: {str(error).splitlines()[0]}") from error
        return []

    name_jobs(session, f"sparklm: write table {name}")
    run_job(engine_of(session), save)
