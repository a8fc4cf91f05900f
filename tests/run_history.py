"""What training leaves in a run folder beside checkpoints, made up, for tests of what reads it.

`write_history` leaves epochs of two logged steps and a sample each, whose numbers are easily told apart; `add_history`
completes the folder of a real run with as much as a long one on Spark has.
"""

from __future__ import annotations

import math
import random

from sparklm.config import Config, SparkConfig
from sparklm.evaluation import Evaluation
from sparklm.storage import Folder
from sparklm.training.epoch_log import EpochTotals
from sparklm.training.metrics import ClusterFigures, EpochFacts, EpochRecord, read_metrics, write_metrics
from sparklm.training.records import (
    EVALUATIONS,
    SAMPLES,
    STEPS,
    TASKS,
    EvaluationRecord,
    Sample,
    StepRecord,
    TaskRecord,
    write_lines,
)
from sparklm.training.run import RUN_FORMAT, RunRecord

BEGAN = 1_700_000_000.0
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> & <b>bold</b>"
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
        judged=100,
        ranked=100,
        updates=20,
        seconds=2.5,
    )
    facts = EpochFacts(
        epoch=epoch - 1,
        seconds=2.75,
        totals=totals,
        validation=Evaluation(loss=3.1 / epoch, accuracy=0.1, nearest_accuracy=0.1, tokens=50, is_probability=True),
        bytes_per_token=2.0,
        cluster=ClusterFigures(),
        cpu_loads=None,
        python_rss_bytes=2**28,
        gpu_memory_bytes=None,
        retries=0,
    )
    return EpochRecord.of(facts)


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


def epoch_sample(epoch: int) -> Sample:
    return Sample(epoch=epoch, step=20 * epoch, prompt="The", text=f"The quick\n<b>fox</b> of epoch {epoch}")


def evaluation_record(step: int, loss: float | None = None, tokens_per_step: int = 200) -> EvaluationRecord:
    """An evaluation during epochs of twenty steps, as those above."""
    loss = 60 / (step + 10) if loss is None else loss
    return EvaluationRecord(
        step=step,
        epoch=(step - 1) // 20 + 1,
        time=BEGAN + step / 4,
        tokens=tokens_per_step * step,
        loss=loss,
        accuracy=0.1 + step / 1000,
        perplexity=math.exp(loss),
    )


def evaluation_sample(step: int) -> Sample:
    return Sample(epoch=(step - 1) // 20 + 1, step=step, prompt="The", text=f"The quick\n<b>fox</b> of step {step}")


def write_history(run: Folder, epochs: int) -> None:
    """Leave the records of the first epochs in a run folder."""
    all_epochs = range(1, epochs + 1)
    write_metrics(run, [epoch_record(epoch) for epoch in all_epochs])
    write_lines(run, STEPS, [step for epoch in all_epochs for step in step_records(epoch)])
    write_lines(run, SAMPLES, [epoch_sample(epoch) for epoch in all_epochs])


def steps_of(epochs: list[EpochRecord], steps_per_epoch: int) -> list[StepRecord]:
    draw = random.Random(1)
    lines = []
    for step in range(1, len(epochs) * steps_per_epoch + 1):
        epoch = epochs[(step - 1) // steps_per_epoch]
        lines.append(
            StepRecord(
                step=step,
                epoch=epoch.Epoch,
                time=BEGAN + 0.12 * step,
                loss=epoch.TrainingLoss + 2.5 * math.exp(-step / 60) + draw.gauss(0, 0.12),
                learning_rate=1e-2 * min(step / 50, 1.0) * (1 - 0.9 * step / (len(epochs) * steps_per_epoch)),
                gradient_norm=epoch.meanGradientMagnitude + abs(draw.gauss(0, 0.2)),
                tokens_per_second=epoch.TokensPerSecond * draw.uniform(0.85, 1.1),
            )
        )
    return lines


def tasks_of(num_epochs: int, rounds: int = 6) -> list[TaskRecord]:
    """Two replicas on two executors: one attempt fails, one is killed, one is not seen to end."""
    lines, clock = [], BEGAN
    draw = random.Random(2)

    def add(epoch: int, title: str, task: int, seconds: float | None, status: str = "SUCCESS", **more: object) -> None:
        values = {"attempt": 0, "error": None, "executor": str(task % 2)} | more
        lines.append(
            TaskRecord(
                epoch=epoch,
                title=f"sparklm: {title}",
                stage=len(lines) // 2,
                task=task,
                host=f"worker-{task % 2}",
                launched=clock,
                seconds=seconds,
                status=status,
                **values,
            )
        )

    for epoch in range(1, num_epochs + 1):
        for number in range(rounds):
            title = f"epoch {epoch}, steps {number * 20} to {number * 20 + 20}"
            lost = (epoch, number) == (1, 2)
            add(epoch, title, 0, draw.uniform(4, 5))
            if lost:
                error = f"ExecutorLostFailure: executor 1 exited {HOSTILE}"
                add(epoch, title, 1, 2.1, "FAILED", error=error)
                clock += 2.5
                add(epoch, title, 1, 4.6, attempt=1, executor="2")
            elif (epoch, number) == (2, 3):
                add(epoch, title, 1, 4.0)
                add(epoch, title, 1, 3.2, "KILLED", attempt=1, executor="2", error="another attempt succeeded")
            else:
                add(epoch, title, 1, draw.uniform(4, 5))
            clock += 5.2
        add(epoch, f"epoch {epoch}, evaluation", 0, 2.0)
        add(epoch, f"epoch {epoch}, evaluation", 1, 2.2)
        clock += 2.5
    add(num_epochs, "write the model", 0, None)
    return lines


def with_measurements(epoch: EpochRecord, on_spark: bool) -> EpochRecord:
    """Fill the columns of an epoch that a run without Spark leaves empty, and those of its phases."""
    total = float(epoch.TimeStamp)
    shares = {"GetModelMs": 0.02, "DataMs": 0.03, "FitMs": 0.7, "SaveMs": 0.05, "EvaluateMs": 0.08}
    if on_spark:
        shares |= {"FitMs": 0.55, "ExchangeMs": 0.06, "ReduceMs": 0.03, "BroadcastMs": 0.03}
    measured: dict[str, float | None] = {name: total * share for name, share in shares.items()}
    measured |= {"OverheadMs": total * (1 - sum(shares.values())), "BitsPerByte": 2.1 - 0.05 * epoch.Epoch}
    measured |= {"PythonCpuLoad": 180.0 + epoch.Epoch}
    if on_spark:
        measured |= {"UsedMemoryMB": 210.0 + 9 * epoch.Epoch, "TotalMemoryMB": 512.0, "MaxMemoryMB": 1024.0}
        measured |= {"totalShuffleReadBytes": 4096, "totalShuffleWriteBytes": 4096, "failedTaskCount": epoch.Epoch % 2}
        measured |= {"maxTaskDuration": 5000.0, "minTaskDuration": 2000.0, "avgTaskDuration": 4100.0}
    return epoch.model_copy(update=measured)


def add_evaluations(run: Folder, *steps: int) -> None:
    """Add evaluations at these steps, and a sample at each."""
    write_lines(run, EVALUATIONS, [evaluation_record(step) for step in steps])
    write_lines(run, SAMPLES, [evaluation_sample(step) for step in steps])


def add_history(run: Folder, *, on_spark: bool, steps_per_epoch: int = 120) -> None:
    """Complete a run's folder."""
    epochs = [with_measurements(epoch, on_spark) for epoch in read_metrics(run)]
    write_metrics(run, epochs)
    write_lines(run, STEPS, steps_of(epochs, steps_per_epoch))
    samples = [
        Sample(epoch=e.Epoch, step=e.Epoch * steps_per_epoch, prompt="It was", text=f"It was {HOSTILE} {e.Epoch}")
        for e in epochs
    ]
    write_lines(run, SAMPLES, samples)
    if on_spark:
        write_lines(run, TASKS, tasks_of(len(epochs)))
