"""The whole job, stage after stage: text → dataset → training → model.zip → a sample of what it says.

Each stage leaves its artifact in the run folder; started again with the same settings, the job does only what is
still missing.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparklm.baseline import Baseline, measure_baseline
from sparklm.config import Config
from sparklm.cores import BUSY_CORES, OtherLoad
from sparklm.embeddings.files import EMBEDDINGS, WORD2VEC_ROUNDS
from sparklm.embeddings.make import make_embeddings, write_embeddings
from sparklm.errors import UserError
from sparklm.inference.generate import generate_text
from sparklm.inference.prompts import prompt_of
from sparklm.inference.sampling import Sampling
from sparklm.logs import forget, identify
from sparklm.models.build import count_parameters
from sparklm.models.model_zip import TrainedModel, load_model
from sparklm.models.shape import check_embeddings
from sparklm.placement.protocol import Placement, turns_of
from sparklm.placement.start import Start
from sparklm.planning.decide import chooses_sizes, describe_length, plan_training, set_length, steps_in
from sparklm.planning.decide import describe as describe_plan
from sparklm.planning.measure import MEASURING
from sparklm.planning.retime import Retiming
from sparklm.progress.status import STATUS
from sparklm.progress.watcher import Watcher
from sparklm.report.copies import open_copies, write_copies
from sparklm.report.exporters.base import SafeExporter, check_exporters, exporting
from sparklm.report.statistics import STATS_TEXT, write_statistics
from sparklm.storage import Claim, Folder, is_bookkeeping, owning, undoing
from sparklm.text.corpus import corpus_name
from sparklm.text.prepare import check_corpus, is_unchanged, prepare
from sparklm.text.shards import Dataset, Manifest, dataset_address, open_dataset
from sparklm.text.tokenizer_kinds import make_tokenizer
from sparklm.text.validation import describe_validation
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.commit import CHECKPOINTS, latest_step
from sparklm.training.device import choose_device, replica_threads
from sparklm.training.evaluations import EvaluationPlan
from sparklm.training.extend import LENGTH_KEYS, longer_run, make_longer
from sparklm.training.fit import fit
from sparklm.training.heartbeat import PROGRESS, clear_beats
from sparklm.training.memory import refuse_too_large
from sparklm.training.metrics import METRICS, EpochRecord
from sparklm.training.origin import write_first_state
from sparklm.training.records import EVALUATIONS, SAMPLES, STEPS, TASKS
from sparklm.training.run import (
    CONFIG,
    INIT,
    LEAST_SYNCS,
    MODEL,
    REPORT,
    SAMPLE_TEXT,
    STATS_JSON,
    Planned,
    Run,
    changed_settings,
    decide_replicas,
    make_plan,
    new_run,
    read_model_step,
    read_run,
    write_run,
)
from sparklm.training.stopping import StopRequest
from sparklm.training.tasks import MeasureOrder, ModelOrder, measure_steps, slowest, write_model_task
from sparklm.wording import amount, count, duration, size

_MADE_BY_TRAINING = (METRICS, STEPS, EVALUATIONS, SAMPLES, TASKS, CHECKPOINTS, PROGRESS, "tensorboard")
TEXTS = "texts.jsonl"  # texts that were given as such
_OWN_DATASET = "dataset"  # in the run folder, where the run made it itself
_MADE_BEFORE_TRAINING = (_OWN_DATASET, EMBEDDINGS, INIT, WORD2VEC_ROUNDS, MEASURING)


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What the job made."""

    records: Sequence[EpochRecord]
    model_record: EpochRecord
    baseline: Baseline | None  # None = there is no validation text
    prompt: str
    sample: str  # begins with the prompt
    files: Sequence[str]


def train(
    config: Config,
    folder: Folder,
    start: Start,
    watcher: Watcher,
    *,
    resume: bool = False,
    stop: StopRequest | None = None,
    came: float | None = None,
) -> JobResult:
    """Run every stage that is still to do.

    Everything that can be checked is checked before the placement is started. A run that has begun goes on with the
    tokens it began with: text that has changed since is refused, unless `resume` says that this run is meant. It may
    then also be made longer. A training that is asked to stop saves a checkpoint and raises KeyboardInterrupt.
    The folder belongs to this process meanwhile: where another one is at work in it, it is refused. `came` is when it
    was asked for, on the clock of `time.monotonic`, if that was before; its minutes count from then.
    """
    came, load = came or time.monotonic(), OtherLoad()
    check(config, folder, resume=resume)
    with owning(folder, watcher.note, config.storage.lease_seconds) as claim, start(watcher) as placement:
        began, copies = time.monotonic(), open_copies(folder, config)
        found = _find_run(folder, config, resume)  # once more: it may have been another's until now
        if found is None:
            run, dataset, plan = _begin(config, folder, claim, placement, came)
        else:
            run = found.run.model_copy(update={"claim": claim})
            if found.branch is not None:
                _make_longer(run, found.branch, watcher)
            dataset = _reopen(run, placement, resume)
            plan = make_plan(run.config, dataset)
        if run.threads > 1 and _is_here(config):
            _warn_of_load(load.read(), run.threads, watcher)
        identified = identify(run=run.run_id)
        with exporting(run, watcher.warn) as exporters:
            minutes = run.config.plan.minutes if found is None else None
            ends_at = None if minutes is None else came + 60 * minutes
            trained = _train(run, dataset, plan, placement, exporters, time.monotonic() - began, stop, ends_at)
        run.check_owned()
        files = write_copies(folder, copies)
        forget(identified)  # not when something goes wrong: that is still to be logged
    return replace(trained, files=files)


def _train(
    run: Run,
    dataset: Dataset,
    plan: WindowPlan,
    placement: Placement,
    exporters: Sequence[SafeExporter],
    seconds_before: float,
    stop: StopRequest | None,
    ends_at: float | None,
) -> JobResult:
    """Train, and make everything that a trained model is shown by; the list of files is left to be filled."""
    began, config, folder, watcher = time.monotonic(), run.config, run.folder, placement.watcher
    watcher.stage(f"Training in {placement.description}{_replicas(config)}")
    vocab_size = run.vocab_size(dataset.manifest.vocab_size)
    watcher.note(describe_work(run, plan, vocab_size))
    placement.prepare_training(run, vocab_size)
    retiming = None
    if ends_at is not None and run.planned is not None and run.planned.fills_time:
        retiming = Retiming(dataset=dataset, ends_at=ends_at, note=watcher.note)
    result = fit(run, dataset, plan, placement, exporters, stop, retiming)
    run, trained_at = result.run, time.monotonic()
    if result.stopped_early:
        watcher.note(
            f"stopped early in epoch {len(result.records)}: validation no longer improves; the model is that of step "
            f"{result.model_step}"
        )
    clear_beats(folder)

    def is_due(*names: str) -> bool:
        """Whether a result is yet to be written: an earlier session may have ended before it."""
        return result.did_steps or not all(folder.exists(name) for name in names)

    run.check_owned()
    if is_due(MODEL):
        watcher.stage("Writing the model")
        order = ModelOrder(run=run, step=result.model_step).model_dump_json()
        placement.run_tasks(write_model_task, [order], "sparklm: write the model")
    trained = load_model(folder.address(MODEL))
    prompt, sample = _write_sample(run, trained, dataset, watcher)
    baseline = measure_baseline(dataset, trained.model)
    if is_due(STATS_JSON, STATS_TEXT):
        seconds = {"prepare": seconds_before, "train": trained_at - began, "finish": time.monotonic() - trained_at}
        write_statistics(run, dataset.manifest, result, baseline, placement, seconds)
        folder.remove(REPORT)  # which shows them
    if is_due(REPORT):
        _write_report(folder, watcher)
    return JobResult(
        records=result.records,
        model_record=result.model_record,
        baseline=baseline,
        prompt=prompt,
        sample=sample,
        files=(),
    )


@dataclass(frozen=True)
class FoundRun:
    """The run that is there already, with this session's settings."""

    run: Run
    branch: int | None = None  # the step from which it is made longer


def check(config: Config, folder: Folder, *, resume: bool = False) -> None:
    """Refuse, before any work, what is seen to be wrong: another run, missing text, closed places, servers away."""
    local = folder.local_path()
    if local is not None and local.exists() and not local.is_dir():
        raise UserError(f"--run {folder} is a file; a run needs a folder of its own")
    origin = config.training.init_from
    if origin is not None and not resume and Folder(origin).absolute() == folder.absolute():
        raise UserError(f"--run {folder} is the run to begin from (--init-from); give the new one a folder of its own")
    if folder.exists(CONFIG):
        _find_run(folder, config, resume)
    else:
        others = {name for name in folder.names() if not is_bookkeeping(name)} - {*_MADE_BEFORE_TRAINING, TEXTS, STATUS}
        if others:
            raise UserError(f"{folder} is not empty and holds no run ({min(others)} is there); choose another --run")
        prepared = dataset_address(config.data)
        if prepared is None:
            check_corpus(config.data)
        elif config.data.has_own_validation:
            raise UserError(
                f"{prepared} is a prepared dataset, which has its own validation text; leave out data.validation, or "
                "give it to 'sparklm prepare'"
            )
        else:
            _check_tokenizer(config, Dataset(Folder(prepared)))
    folder.check_writable()
    for copy in open_copies(folder, config):
        copy.check()
    check_exporters(config.output)


def _find_run(folder: Folder, config: Config, resume: bool) -> FoundRun | None:
    """The run that is there as it goes on, if these are its settings, or make it longer.

    None where there is none, or one without a checkpoint, which begins anew.
    """
    if not folder.exists(CONFIG):
        return None
    run = read_run(folder)
    changes = changed_settings(run, config)
    if not changes:
        return FoundRun(run.with_settings(config))
    if latest_step(run.folder) == 0:
        return None
    is_length = changes.keys() <= LENGTH_KEYS
    if is_length and resume:
        return FoundRun(*longer_run(run, config, str(folder)))
    lines = [f"  {key}: {_shown(there)} there, {_shown(here)} here" for key, (there, here) in changes.items()]
    listing = "\n".join(lines)
    if resume:
        raise UserError(f"{folder} has begun, and these of its settings cannot change any more:\n{listing}")
    remedy = "Choose another --run"
    if is_length:
        with contextlib.suppress(UserError):
            longer_run(run, config, str(folder))
            remedy += ", or add --resume to make that run longer"
    raise UserError(f"{folder} holds another run, with other settings:\n{listing}\n{remedy}")


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _make_longer(run: Run, step: int, watcher: Watcher) -> None:
    """Make the run longer from a step on; the model that it had is kept beside."""
    folder, last = run.folder, latest_step(run.folder)
    if folder.exists(MODEL):
        folder.write_bytes(f"model-step-{read_model_step(folder) or last}.zip", folder.read_bytes(MODEL))
    for name in (MODEL, SAMPLE_TEXT, STATS_JSON, STATS_TEXT, REPORT):
        folder.remove(name)
    if step < last:
        watcher.note(f"steps {step + 1} to {last} are done anew: there the rate was falling already")
    make_longer(run, step)


def _reopen(run: Run, placement: Placement, resume: bool) -> Dataset:
    """The dataset of a run that goes on: it is all the text that the run needs."""
    config, dataset = run.config, run.open_dataset()
    may_change = resume or run.dataset != _OWN_DATASET
    if not may_change and not is_unchanged(config.data, config.cleaning, dataset, placement):
        raise UserError(
            f"the text of {corpus_name(config.data)} has changed since {run.folder} began; choose another --run to "
            "train on the new text, or add --resume to go on with the old"
        )
    if latest_step(run.folder) == 0:
        placement.watcher.note("this run has no checkpoint yet: training starts from the beginning")
    return dataset


def _begin(
    config: Config, folder: Folder, claim: Claim, placement: Placement, came: float
) -> tuple[Run, Dataset, WindowPlan]:
    """Find or make the dataset and fix the settings; what was made for it is removed again when the text is no good.

    `came` is when the job began: its minutes count from then.
    """
    prepared, address, watcher = dataset_address(config.data), config.training.init_from, placement.watcher
    made_dataset = folder.exists(CONFIG) or folder.exists(STATUS)  # then one that is there is this folder's own
    if folder.exists(CONFIG):
        watcher.note("this run had no checkpoint yet: it begins anew, with these settings")
        for name in (*_MADE_BY_TRAINING, CONFIG):  # CONFIG last: until then, this is a run that begins anew
            folder.remove(name)
    with undoing(folder, _MADE_BEFORE_TRAINING):
        begun_from = None if address is None else write_first_state(address, config, folder)
        if begun_from is not None:
            watcher.note(f"begun from {begun_from.describe()}")
        planned = None if config.plan.minutes is None else _plan(config, folder, placement, time.monotonic() - came)
        if planned is not None:
            config = config.with_settings(planned.settings)
        if prepared is not None:
            place, name = Folder(prepared).absolute(), Folder(prepared).absolute().url
            watcher.note(f"using the dataset {prepared} with its own tokenizer and split")
        else:
            place, name = folder / _OWN_DATASET, _OWN_DATASET
            watcher.stage("Preparing the text")
            prepare(config.data, config.cleaning, place, placement, replace=made_dataset)
        dataset = open_dataset(place)
        _check_tokenizer(config, dataset)
        for note in describe_counts(dataset.manifest):
            watcher.note(note)
        config = _with_replicas(config, dataset, placement)
        plan = make_plan(config, dataset)  # which refuses what is too short
        _note_short_documents(config, dataset, watcher)
        if _is_here(config) and choose_device(config.training.device).type == "cpu":
            refuse_too_large(config, dataset.manifest.vocab_size)
        if config.data.embeddings is not None:
            _write_embeddings(config.data.embeddings, config, dataset, folder, placement)
        threads = replica_threads(config, placement)
        run = new_run(folder, config, name, dataset.manifest, threads, begun_from, planned)
        run = run.model_copy(update={"claim": claim})
        if planned is not None or config.training.max_minutes is not None:
            run = _limit_time(run, plan, dataset, placement, came)
            plan = make_plan(run.config, dataset)
        evaluation = EvaluationPlan.of(run.config, plan, has_validation=len(dataset.validation) > 0)
        run = run.model_copy(update={"evaluation": evaluation})
        write_run(run)
        return run, dataset, plan


def _plan(config: Config, folder: Folder, placement: Placement, elapsed: float) -> Planned:
    """Choose the sizes for the run's minutes, where they are not given."""
    minutes, watcher = config.plan.minutes, placement.watcher
    assert minutes is not None, "called for runs that have them"
    if not chooses_sizes(config):
        watcher.note("the sizes stay as they are: only those of gpt, trained from the beginning, are chosen")
        return Planned(settings={})
    watcher.stage("Measuring the machine")
    plan = plan_training(config, folder, placement, elapsed)
    watcher.note(describe_plan(plan, minutes))
    return plan.planned


def _limit_time(run: Run, plan: WindowPlan, dataset: Dataset, placement: Placement, came: float) -> Run:
    """Give a run as many steps as its minutes have room for, so that its learning rate ends with it.

    How long a step takes is measured where it will be done. The number is decided once, and recorded.
    """
    replicas, watcher = run.config.distributed.replicas, placement.watcher
    orders = [MeasureOrder(run=run, replica=replica) for replica in range(replicas)]
    step = slowest(measure_steps(orders, placement, "sparklm: measure a step"))
    step.seconds *= turns_of(replicas, placement)
    limit, room = run.config.training.max_minutes, math.inf
    if limit is not None:
        room = steps_in(60 * limit, run.config, plan, dataset, step)
        watcher.note(f"a step takes {step.seconds:.3g} s here: {duration(60 * limit)} have room for {room:,}")
    if run.planned is not None:
        run = set_length(run, plan, dataset, step, time.monotonic() - came)
        watcher.note(describe_length(run, step.seconds))
        plan = make_plan(run.config, dataset)
    if room >= plan.total_steps:
        return run
    return run.model_copy(update={"config": run.config.with_training(max_steps=room)})


def _check_tokenizer(config: Config, dataset: Dataset) -> None:
    """Refuse tokens that mean something else to the model that training is to begin from."""
    if config.training.init_from is None:
        return
    if make_tokenizer(config.data.tokenizer, [], 0).fingerprint != dataset.tokenizer.fingerprint:
        raise UserError(
            f"{dataset.folder} was made with another tokenizer than the model {config.training.init_from}; give the "
            "text itself, or prepare it with the model's: sparklm prepare CORPUS --set "
            f"data.tokenizer={shlex.quote(config.data.tokenizer)}"
        )


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
    validation = describe_validation(manifest)
    if validation is not None:
        lines.append(f"validation: {validation}")
    if counts.crlf_line_ends:
        lines.append(f"turned {count(counts.crlf_line_ends, 'CRLF line end')} into LF")
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


def _is_here(config: Config) -> bool:
    """Whether all work is done on this machine."""
    return config.spark.master == "none" or config.spark.master.startswith("local")


def _replicas(config: Config) -> str:
    distributed = config.distributed
    if distributed.replicas == 1:
        return ""
    every = distributed.sync_every_steps
    when = "every step" if every == 1 else f"every {every} steps"
    return f", {distributed.replicas} replicas that sync {when} ({distributed.strategy})"


def _warn_of_load(busy_cores: float, threads: int, watcher: Watcher) -> None:
    """Say that others want the cores: steps take longer, and an estimate of the time is too short."""
    if busy_cores < BUSY_CORES:
        return
    num_cores = os.cpu_count() or 1
    free = max(1, num_cores - round(busy_cores))
    remedy = f"; beside them, a run begun with training.threads={free} is quicker" if threads > free else ""
    watcher.warn(
        f"other programs keep {busy_cores:.1f} of {num_cores} cores busy: steps take longer than they might{remedy}"
    )


def describe_work(run: Run, plan: WindowPlan, vocab_size: int) -> str:
    """How much there is to train, on what: all that is known before the first step."""
    training, data = run.config.training, run.config.data
    device = choose_device(training.device).type if _is_here(run.config) else training.device
    limit = " (training.max_steps)" if plan.total_steps == training.max_steps else ""
    if run.planned is not None:
        limit = ""
    elif training.max_minutes is not None:
        limit = f" (at most {duration(60 * training.max_minutes)})"
    return (
        f"{amount(count_parameters(run.config, vocab_size))} parameters on {device} ({count(run.threads, 'thread')}), "
        f"{plan.global_batch_size * data.window_size:,} tokens a step, {count(plan.total_steps, 'step')} in "
        f"{count(plan.num_epochs, 'epoch')}{limit}"
    )


def _write_report(run: Folder, watcher: Watcher) -> None:
    try:
        from sparklm.report.page import write_report  # with a library of charts, which machines that train may lack

        write_report(run)
    except Exception as error:  # noqa: BLE001 (no report is worth a run)
        watcher.warn(f"the report could not be written: {type(error).__name__}: {error}")


def _write_sample(run: Run, trained: TrainedModel, dataset: Dataset, watcher: Watcher) -> tuple[str, str]:
    """Write what the model generates; returns the prompt, and the text that begins with it."""
    generation = run.config.generation
    prompt = prompt_of(generation, dataset)
    generated = generate_text(trained, prompt, generation.max_new_tokens, Sampling.of(generation))
    if generated.note is not None:
        watcher.note(generated.note)
    run.folder.write_text(SAMPLE_TEXT, generated.text + "\n")
    return prompt, generated.text
