"""A run made longer: wherever the longer run would have done the steps so far in the same way."""

from __future__ import annotations

import shlex

from sparklm.config import Config, SparkConfig
from sparklm.errors import UserError
from sparklm.training.checkpoint.commit import committed_steps, remove_later
from sparklm.training.run import Run, make_plan, write_run
from sparklm.training.schedule import count_warmup_steps, learning_rate

LENGTH_KEYS = {"training.epochs", "training.max_steps"}


def longer_run(run: Run, config: Config, name: str) -> tuple[Run, int]:
    """The run with another length, and the step to go on from; what would not be exact is refused.

    The rate rises in as many steps as it did. The step is that of the newest checkpoint up to which the rates are those
    of the longer run; the steps after it are done anew. `name` is what the user calls the run.
    """
    dataset = run.open_dataset()
    before = make_plan(run.config, dataset)
    warmup = count_warmup_steps(before.total_steps, run.config.training)
    config = run.decided(config).with_training(warmup_steps=warmup)
    plan = make_plan(config, dataset)
    saved = committed_steps(run.folder)
    if plan.total_steps < saved[-1]:
        raise UserError(
            f"{name} has done {saved[-1]} steps, which is more than the {plan.total_steps} that are asked for"
        )
    if plan.total_steps == before.total_steps:
        raise UserError(
            f"{name} would be no longer: training.max_steps={config.training.max_steps} ends it at step "
            f"{plan.total_steps}; set that as well"
        )

    def is_same(step: int) -> bool:
        old, new = (
            learning_rate(step, each.total_steps, settings.training)
            for each, settings in ((before, run.config), (plan, config))
        )
        return old == new

    same = next((step for step in range(saved[-1]) if not is_same(step)), saved[-1])
    branches = [step for step in saved if step <= same]
    if not branches:
        data = run.config.data
        text = ["--table", data.table] if data.table else data.places
        command = ["sparklm", "train", *text, "--init-from", name, "--run", f"{name}-longer"]
        command += ["--epochs", str(max(1, config.training.epochs - run.config.training.epochs))]
        if config.spark.master != SparkConfig().master:
            command += ["--master", config.spark.master]
        raise UserError(
            f"{name} cannot be made longer: its learning rate (training.schedule={config.training.schedule}) has "
            f"been falling since step {same} so as to end at step {before.total_steps}. Begin a new run from its "
            f"model: {shlex.join(command)}"
        )
    return run.model_copy(update={"config": config}), branches[-1]


def make_longer(run: Run, step: int) -> None:
    """Make the run longer, from the checkpoint at a step on; a crash in between leaves it as it was, or shorter."""
    remove_later(run.folder, step)
    write_run(run)
