"""A run's records, made up, for tests of what reads them: two logged steps and a sample in each epoch."""

from __future__ import annotations

from sparklm.config import Config, SparkConfig
from sparklm.storage import Folder
from sparklm.training.history import SAMPLES, STEPS, EpochSample, StepRecord, write_lines
from sparklm.training.metrics import ClusterFigures, EpochRecord, EpochTotals, Evaluation, write_metrics
from sparklm.training.run import RUN_FORMAT, RunRecord

BEGAN = 1_700_000_000.0
RECORD = RunRecord(
    format=RUN_FORMAT,
    run_id="0123456789abcdef",
    config=Config(
        spark=SparkConfig(app_name="an experiment", properties={"spark.hadoop.fs.s3a.secret.key": "top secret"})
    ),
    dataset="dataset",
    dataset_sha256="0" * 64,
    threads=1,
)


def epoch_record(epoch: int) -> EpochRecord:
    totals = EpochTotals(
        steps=20,
        tokens=4000 * epoch,
        loss_sum=20 * 3.3 / epoch,
        targets=100,
        correct=7 * epoch,
        updates=20,
        seconds=2.5,
    )
    return EpochRecord.assemble(
        epoch=epoch - 1,
        duration_seconds=2.75,
        totals=totals,
        validation=Evaluation(loss=3.1 / epoch, accuracy=0.1, nearest_accuracy=0.1, tokens=50, is_probability=True),
        bytes_per_token=2.0,
        cluster=ClusterFigures(),
        cpu_loads=None,
        python_rss_bytes=2**28,
        gpu_memory_bytes=None,
        retries=0,
    )


def step_records(epoch: int) -> list[StepRecord]:
    last = 20 * epoch
    return [
        StepRecord(
            step=step,
            epoch=epoch,
            time=BEGAN + step / 4,
            loss=40 / step,
            learning_rate=0.01 / step,
            gradient_norm=1 + 1 / step,
            tokens_per_second=1000.0 + step,
        )
        for step in (last - 10, last)
    ]


def epoch_sample(epoch: int) -> EpochSample:
    return EpochSample(epoch=epoch, step=20 * epoch, prompt="The", text=f"The quick\n<b>fox</b> of epoch {epoch}")


def write_history(run: Folder, epochs: int) -> None:
    """Leave the records of the first epochs in a run folder."""
    all_epochs = range(1, epochs + 1)
    write_metrics(run, [epoch_record(epoch) for epoch in all_epochs])
    write_lines(run, STEPS, [step for epoch in all_epochs for step in step_records(epoch)])
    write_lines(run, SAMPLES, [epoch_sample(epoch) for epoch in all_epochs])
