"""The whole job, stage after stage: text → dataset → training → model.zip → a sample of what it says.

Each stage leaves its artifact in the run folder; started again with the same settings, the job does only what is
still missing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sparklm.config import Config
from sparklm.embeddings.files import EMBEDDINGS, WORD2VEC_ROUNDS
from sparklm.embeddings.make import make_embeddings, write_embeddings
from sparklm.errors import UserError
from sparklm.inference.generate import Sampling, generate_text, prompt_of
from sparklm.logs import forget, identify
from sparklm.models.model_zip import TrainedModel, load_model
from sparklm.models.shape import check_embeddings
from sparklm.placement.protocol import Placement
from sparklm.placement.start import Start
from sparklm.progress.status import STATUS
from sparklm.progress.watcher import Watcher
from sparklm.report.exporters.base import SafeExporter, check_exporters, exporting
from sparklm.report.statistics import STATS_JSON, STATS_TEXT, statistics_csv, write_statistics
from sparklm.storage import Folder, split_address
from sparklm.text.corpus import corpus_address
from sparklm.text.prepare import check_corpus, is_unchanged, prepare
from sparklm.text.shards import Dataset, Manifest, is_dataset, open_dataset
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.device import replica_threads
from sparklm.training.fit import FitResult, fit
from sparklm.training.heartbeat import clear_beats
from sparklm.training.metrics import METRICS, EpochRecord
from sparklm.training.run import (
    CONFIG,
    LEAST_SYNCS,
    MODEL,
    REPORT,
    SAMPLE_TEXT,
    Run,
    check_same_run,
    create_run,
    decide_replicas,
    make_plan,
    read_run,
)
from sparklm.training.tasks import ModelOrder, write_model_task
from sparklm.wording import count, size

_OWN_DATASET = "dataset"  # in the run folder, where the run made it itself


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What the job made."""

    records: Sequence[EpochRecord]
    model_record: EpochRecord
    sample: str
    files: Sequence[str]


def train(config: Config, folder: Folder, start: Start, watcher: Watcher, *, keep_text: bool = False) -> JobResult:
    """Run every stage that is still to do.

    Everything that can be checked is checked before the placement is started. A run that has begun goes on with the
    tokens it began with. If the text has changed since, that is refused, unless `keep_text` says that the old text is
    meant.
    """
    run = check(config, folder)
    with start(watcher) as placement:
        began = time.monotonic()
        if run is None:
            run, dataset, plan = _begin(config, folder, placement)
        else:
            run = run.with_settings(config)
            dataset = _reopen(run, placement, keep_text)
            plan = make_plan(run.config, dataset)
        identified = identify(run=run.run_id)
        with exporting(run, watcher.warn) as exporters:
            result, sample = _train(run, dataset, plan, placement, exporters, time.monotonic() - began)
        files = _copy_outputs(folder, config)
        forget(identified)  # not when something goes wrong: that is still to be logged
    return JobResult(records=result.records, model_record=result.model_record, sample=sample, files=files)


def _train(
    run: Run,
    dataset: Dataset,
    plan: WindowPlan,
    placement: Placement,
    exporters: Sequence[SafeExporter],
    seconds_before: float,
) -> tuple[FitResult, str]:
    """Train, and make everything that a trained model is shown by; returns also the text that it generates."""
    began, config, folder, watcher = time.monotonic(), run.config, run.folder, placement.watcher
    watcher.stage(
        f"Training in {placement.description}, {_replicas(config)}{count(plan.total_steps, 'step')}, "
        f"{count(run.threads, 'thread')}"
    )
    placement.prepare_training(run, dataset.manifest.vocab_size)
    result = fit(run, dataset, plan, placement, exporters)
    trained_at = time.monotonic()
    if result.stopped_early:
        watcher.note(f"stopped early after epoch {len(result.records)}: validation no longer improves")
    watcher.stage("Writing the model")
    clear_beats(folder)
    order = ModelOrder(run=run, step=result.model_step).model_dump_json()
    placement.run_tasks(write_model_task, [order], "sparklm: write the model")
    sample = _write_sample(run, load_model(folder.address(MODEL)), dataset, watcher)
    seconds = {"prepare": seconds_before, "train": trained_at - began, "finish": time.monotonic() - trained_at}
    if result.did_steps or not folder.exists(STATS_JSON):
        write_statistics(run, dataset.manifest, result, placement, seconds)
        _write_report(folder, watcher)
    return result, sample


def check(config: Config, folder: Folder) -> Run | None:
    """Refuse, before any work, what is seen to be wrong: another run, missing text, closed places, servers away.

    Returns the run that is there already, if one is.
    """
    local, run = folder.local_path(), None
    if local is not None and local.exists() and not local.is_dir():
        raise UserError(f"--run {folder} is a file; a run needs a folder of its own")
    if folder.exists(CONFIG):
        run = read_run(folder)
        check_same_run(run, config)
    else:
        others = set(folder.names()) - {_OWN_DATASET, EMBEDDINGS, WORD2VEC_ROUNDS, STATUS}
        if others:
            raise UserError(f"{folder} is not empty and holds no run ({min(others)} is there); choose another --run")
        if config.data.corpus is None or not is_dataset(config.data.corpus):
            check_corpus(config.data)
    folder.check_writable()
    for _, target, _ in _output_targets(config):
        target.check_writable()
    check_exporters(config.output)
    return run


def _reopen(run: Run, placement: Placement, keep_text: bool) -> Dataset:
    """The dataset of a run that goes on: it is all the text that the run needs."""
    config, dataset = run.config, run.open_dataset()
    may_change = keep_text or run.dataset != _OWN_DATASET
    if not may_change and not is_unchanged(config.data, config.cleaning, dataset.manifest, placement):
        raise UserError(
            f"the text of {corpus_address(config.data)} has changed since {run.folder} began; choose another --run to "
            "train on the new text, or add --resume to go on with the old"
        )
    if latest_step(run.folder) == 0:
        placement.watcher.note("this run has no checkpoint yet: training starts from the beginning")
    return dataset


def _begin(config: Config, folder: Folder, placement: Placement) -> tuple[Run, Dataset, WindowPlan]:
    """Find or make the dataset and fix the settings; a new run folder is removed again when the text is no good."""
    corpus, watcher = config.data.corpus, placement.watcher
    is_new = not set(folder.names()) - {STATUS}
    try:
        if corpus is not None and is_dataset(corpus):
            place, name = Folder(corpus).absolute(), Folder(corpus).absolute().url
            watcher.note(f"using the dataset {corpus} with its own tokenizer and split")
        else:
            place, name = folder / _OWN_DATASET, _OWN_DATASET
            watcher.stage("Preparing the text")
            prepare(config.data, config.cleaning, place, placement)
        dataset = open_dataset(place)
        for note in describe_counts(dataset.manifest):
            watcher.note(note)
        config = _with_replicas(config, dataset, placement)
        plan = make_plan(config, dataset)  # which refuses what is too short
        _note_short_documents(config, dataset, watcher)
        if config.data.embeddings is not None:
            _write_embeddings(config.data.embeddings, config, dataset, folder, placement)
        run = create_run(folder, config, name, dataset.manifest, replica_threads(config, placement))
        return run, dataset, plan
    except UserError:
        if is_new:
            folder.remove()
        raise


def _with_replicas(config: Config, dataset: Dataset, placement: Placement) -> Config:
    """Decide how many replicas there are, where the settings leave that to the slots; the run keeps the number."""
    if config.distributed.replicas != 0:
        return config
    slots, windows = placement.slots, dataset.windows(dataset.train, config.data, config.data.window_stride)
    replicas = decide_replicas(config, windows.num_windows, slots)
    why = f"{placement.description} has {count(slots, 'slot')}"
    if replicas < slots:
        why += f", but for more there is too little text to sync {LEAST_SYNCS} times an epoch"
    pin = "--set distributed.replicas=N sets another number"
    placement.watcher.note(f"{count(replicas, 'replica')}: {why}; {pin}")
    return config.with_replicas(replicas)


def _note_short_documents(config: Config, dataset: Dataset, watcher: Watcher) -> None:
    windows = dataset.windows(dataset.train, config.data, config.data.window_stride)
    if windows.num_short:
        needed = config.data.window_size + 1
        watcher.note(f"{count(windows.num_short, 'document')} shorter than a window ({needed} tokens): not trained on")


def _write_embeddings(kind: str, config: Config, dataset: Dataset, folder: Folder, placement: Placement) -> None:
    """Make the embeddings that the config asks for, and see that they fit the network."""
    placement.watcher.stage("Training Word2Vec" if kind == "word2vec" else "Making the embeddings")
    size = config.model.embedding_size or config.model.width
    embeddings = make_embeddings(kind, size, config, dataset, folder, placement.run_tasks)
    check_embeddings(embeddings.vectors.shape, config, dataset.manifest.vocab_size)
    for note in embeddings.notes:
        placement.watcher.note(note)
    write_embeddings(folder, EMBEDDINGS, embeddings.vectors)


def describe_counts(manifest: Manifest) -> list[str]:
    """What was read, and what was repaired or left out, a line each."""
    counts = manifest.counts
    lines = [
        f"{count(counts.documents, 'document')}, {size(counts.text_bytes)} of text, "
        f"{manifest.num_tokens('train'):,} training and {manifest.num_tokens('validation'):,} validation tokens, "
        f"vocabulary {manifest.vocab_size:,}",
        *manifest.notes,
    ]
    if counts.repaired_sequences:
        lines.append(
            f"repaired {count(counts.repaired_sequences, 'invalid UTF-8 sequence')} in "
            f"{count(counts.repaired_documents, 'document')}"
        )
    if counts.normalised_bytes:
        lines.append(f"normalised the Unicode of {size(counts.normalised_bytes)}")
    if counts.licence_blocks:
        lines.append(f"cut off {count(counts.licence_blocks, 'licence block')}, {size(counts.licence_bytes)} in all")
    for kind, number, num_bytes in (
        ("empty document", counts.empty_documents, counts.empty_bytes),
        ("short document", counts.short_documents, counts.short_bytes),
        ("duplicate document", counts.duplicate_documents, counts.duplicate_bytes),
    ):
        if number:
            lines.append(f"left out {count(number, kind)} ({size(num_bytes)})")
    return lines


def _replicas(config: Config) -> str:
    distributed = config.distributed
    if distributed.replicas == 1:
        return ""
    every = distributed.sync_every_steps
    when = "every step" if every == 1 else f"every {every} steps"
    return f"{distributed.replicas} replicas that sync {when} ({distributed.strategy}), "


def _write_report(run: Folder, watcher: Watcher) -> None:
    try:
        from sparklm.report.page import write_report  # with a library of charts, which machines that train may lack

        write_report(run)
    except Exception as error:  # noqa: BLE001 (no report is worth a run)
        watcher.warn(f"the report could not be written: {type(error).__name__}: {error}")


def _write_sample(run: Run, trained: TrainedModel, dataset: Dataset, watcher: Watcher) -> str:
    generation = run.config.generation
    prompt = prompt_of(generation, dataset)
    generated = generate_text(trained, prompt, generation.max_new_tokens, Sampling.of(generation))
    if generated.note is not None:
        watcher.note(generated.note)
    run.folder.write_text(SAMPLE_TEXT, generated.text + "\n")
    return generated.text


def _output_targets(config: Config) -> list[tuple[str, Folder, str]]:
    """List the copies that the config asks for: what, into which folder, under which name."""
    output = config.output
    wanted = {MODEL: output.model, METRICS: output.metrics, STATS_TEXT: output.statistics, SAMPLE_TEXT: output.text}
    targets = []
    for name, address in wanted.items():
        if address is not None:
            local = Folder(address).local_path()
            is_folder = address.endswith("/") or (local is not None and local.is_dir())
            targets.append((name, Folder(address), name) if is_folder else (name, *split_address(address)))
    return targets


def _copy_outputs(run: Folder, config: Config) -> list[str]:
    """Copy results to the places that the config names; list every file that is worth looking at."""
    names = (MODEL, REPORT, METRICS, STATS_TEXT, SAMPLE_TEXT, CONFIG)
    files = [run.address(name) for name in names if run.exists(name)]
    for name, folder, target in _output_targets(config):
        if name == STATS_TEXT and target.endswith(".csv"):
            folder.write_text(target, statistics_csv(run.read_json(STATS_JSON)))
        else:
            folder.write_bytes(target, run.read_bytes(name))
        files.append(folder.address(target))
    return files
