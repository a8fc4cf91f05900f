"""`sparklm submit`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklm.cli.options import RUN, SHOWN
from sparklm.cli.pack import Extra, Torch, Without, WithPython
from sparklm.errors import UserError

if TYPE_CHECKING:
    from sparklm.submit.contents import Contents
    from sparklm.submit.job import Ending
    from sparklm.submit.protocol import Submission

# A test holds these to the table; importing it would load pydantic for every --help.
TARGET_NAMES = "standalone, yarn, emr, emr-serverless, k8s"
NO_ARCHIVE = "none"
# The parameters of commands that are addresses of files and folders.
_PLACES = ("corpus", "validation", "dataset", "model", "run", "out", "text_out", "init_from", "event_log", "prompts")


def submit(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="A command of sparklm: train CORPUS --run DIR …")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help=f"Where it runs: {TARGET_NAMES}.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="An option of the target, such as master=spark://host:7077; may be given many times.",
        ),
    ] = None,
    list_options: Annotated[bool, typer.Option("--options", help="List the target's options.")] = False,
    deploy_mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="client: the driver runs here; cluster: on the cluster.",
            show_default="client; cluster where the target has nothing else",
            rich_help_panel=RUN,
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf", metavar="KEY=VALUE", help="A property of Spark; may be given many times.", rich_help_panel=RUN
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="KEY=VALUE",
            help="An environment variable for driver and executors; may be given many times.",
            rich_help_panel=RUN,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What the job is called there.", show_default="sparklm COMMAND", rich_help_panel=RUN
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"An environment from 'sparklm pack', here or there; {NO_ARCHIVE!r}: the nodes have sparklm.",
            show_default="packed now; none for k8s, whose image has it",
        ),
    ] = None,
    without: Without = None,
    extra: Extra = None,
    torch: Torch = None,
    with_python: WithPython = False,
    staging: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where what the job needs is uploaded to, once.",
            show_default=".sparklm beside the run",
            rich_help_panel=RUN,
        ),
    ] = None,
    fetch: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where a remote run's model, report and records are brought; 'none': nowhere.",
            show_default="runs/ and the run's name",
            rich_help_panel=RUN,
        ),
    ] = None,
    on_interrupt: Annotated[
        str,
        typer.Option(metavar="WHAT", help="In cluster mode, leave or kill the job at Ctrl-C.", rich_help_panel=RUN),
    ] = "leave",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the call, and do nothing.", rich_help_panel=SHOWN)
    ] = False,
    policy: Annotated[
        bool,
        typer.Option(
            "--policy", help="Print the least that AWS must allow you, as an IAM policy.", rich_help_panel=SHOWN
        ),
    ] = False,
    job_policy: Annotated[
        bool,
        typer.Option("--job-policy", help="Print the least that AWS must allow the job's role.", rich_help_panel=SHOWN),
    ] = False,
    entry: Annotated[
        bool,
        typer.Option("--entry", help="Print the path of the script for spark-submit.", rich_help_panel=SHOWN),
    ] = False,
) -> None:
    """Run a command of sparklm on a cluster that has nothing of it.

    What the job needs is packed and uploaded, the job is followed to its end, its model and report are brought home.
    The exit code is the job's.

    \b
    sparklm submit --target yarn -- train hdfs:///corpus --run hdfs:///runs/a
    sparklm submit --target standalone --option master=spark://host:7077 \\
        --deploy-mode cluster --torch cpu --with-python -- \\
        train s3://bucket/corpus --run s3://bucket/runs/a
    sparklm submit --target emr --torch cpu --with-python -- \\
        train s3://bucket/corpus --run s3://bucket/runs/a
    spark-submit --master yarn "$(sparklm submit --entry)" train …
    """
    if entry:
        from sparklm.submit.entry import ENTRY_SCRIPT

        print(ENTRY_SCRIPT)
        return
    from sparklm.submit.protocol import GuardedTarget, deploy_modes, has_environment, open_target, option_lines

    if target is None:
        raise UserError(f"--target is missing: say where the command is to run ({TARGET_NAMES})")
    if list_options:
        print("\n".join(option_lines(target)))
        return
    if not command:
        raise UserError("there is no command to submit; give it after --, such as: -- train CORPUS --run DIR")
    place = open_target(target, _pairs("--option", options))
    modes = deploy_modes(target)
    archive = archive or (NO_ARCHIVE if has_environment(target) else None)
    contents = None if archive is not None or policy or job_policy else _contents(without, extra, torch, with_python)
    submission = _submission(
        command,
        deploy_mode=_one_of("--deploy-mode", deploy_mode or modes[0], modes),
        properties=_pairs("--conf", conf),
        environment=_pairs("--env", env),
        name=name,
        staging=staging,
        archive=archive,
        contents=contents,
    )
    interrupt: Any = _one_of("--on-interrupt", on_interrupt, ("leave", "kill"))
    if policy or job_policy:
        if not isinstance(place, GuardedTarget):
            raise UserError(f"target {target} has no policy; emr and emr-serverless have")
        print(place.policy(submission, of_job=job_policy))
        return
    if dry_run:
        print(place.describe(submission))
        return
    if contents is not None:
        _pack(contents)
    from rich.console import Console

    from sparklm.progress.status import View
    from sparklm.progress.terminal import console_view
    from sparklm.submit.job import run_submission

    view = View() if submission.deploy_mode == "client" else console_view(Console(stderr=True))
    ending = run_submission(place, submission, view, interrupt)
    _tell(ending, submission)
    if ending.exit_code == 0 and fetch != "none":
        _fetch(submission, fetch)
    raise typer.Exit(ending.exit_code)


def _contents(without: list[str] | None, extra: list[str] | None, torch: str | None, with_python: bool) -> Contents:
    from sparklm.submit.contents import choose_contents

    return choose_contents(without=without or (), extras=extra or (), torch_build=torch, with_python=with_python)


def _pack(contents: Contents) -> None:
    from sparklm.submit.pack import pack
    from sparklm.wording import size

    path = pack(contents)
    print(f"{len(contents.packages) + 1} packages in {size(path.stat().st_size)}", file=sys.stderr)


def _submission(
    command: list[str],
    *,
    deploy_mode: Any,
    properties: Mapping[str, str],
    environment: Mapping[str, str],
    name: str | None,
    staging: str | None,
    archive: str | None,
    contents: Contents | None,
) -> Submission:
    """The command as it is given to the target: checked here, with files and addresses that hold there."""
    from pathlib import Path

    from sparklm.disk_cache import archive_path
    from sparklm.submit.job import check_addresses, with_outcome
    from sparklm.submit.protocol import Submission
    from sparklm.submit.staging import default_staging

    values = _read_command(command)
    arguments, files = list(command), []
    run = values.get("run")
    if deploy_mode == "cluster":
        check_addresses(command[0], [(_label(key), values.get(key)) for key in _PLACES])
        if command[0] == "train" and run is None:
            raise UserError("in cluster mode, train needs --run ADDRESS: a run folder that this machine reaches, too")
        config = values.get("config")
        if config is not None and "://" not in config:
            if not Path(config).is_file():
                raise UserError(f"--config {config}: no such file")
            files.append(Path(config).absolute())
            arguments = [part.replace(config, Path(config).name) if part.endswith(config) else part for part in command]
    packed = archive_path(contents.key) if contents is not None else archive
    _check_archive(archive)
    return with_outcome(
        Submission(
            name=name or f"sparklm {command[0]}",
            arguments=arguments,
            deploy_mode=deploy_mode,
            archive=None if packed == NO_ARCHIVE else str(packed),
            files=files,
            properties=properties,
            environment=environment,
            run=run,
            staging=staging or default_staging(run),
        )
    )


def _check_archive(archive: str | None) -> None:
    from pathlib import Path

    from sparklm.submit.pack import ENDINGS

    if archive is None or archive == NO_ARCHIVE:
        return
    if not archive.endswith(ENDINGS):
        raise UserError(f"--archive {archive}: Spark unpacks an archive by its ending; use {' or '.join(ENDINGS)}")
    if "://" not in archive and not Path(archive).is_file():
        raise UserError(f"--archive {archive}: no such file; make it with: sparklm pack --out {shlex.quote(archive)}")


def _label(key: str) -> str:
    """How a place is given: by an option, or as an argument, which has no name."""
    return "" if key in ("corpus", "dataset", "model") else f"--{key.replace('_', '-')} "


def _read_command(command: list[str]) -> Mapping[str, Any]:
    """The values of a command's parameters; what is wrong with it is found here, before anything is uploaded."""
    from typer.main import get_command

    from sparklm.cli import app

    known: Any = get_command(app)
    able = [name for name, each in known.commands.items() if any(part.name == "master" for part in each.params)]
    if command[0] not in able:
        raise UserError(f"{command[0]!r} cannot be submitted; these can: {', '.join(able)}")
    values: Mapping[str, Any] = known.commands[command[0]].make_context(f"sparklm {command[0]}", command[1:]).params
    if values.get("master") is not None:
        raise UserError(f"--master {values['master']}: the target decides where a submitted command runs; leave it out")
    return values


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise UserError(f"{option} {text}: give it as KEY=VALUE")
        pairs[key] = value
    return pairs


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UserError(f"{option} {value}: use {' or '.join(known)}")
    return value


def _tell(ending: Ending, submission: Submission) -> None:
    if ending.was_left:
        follow = f"; follow it with: sparklm watch {shlex.quote(submission.run)}" if submission.run else ""
        print(f"the job goes on there{follow}", file=sys.stderr)
    elif ending.outcome is not None:
        print(ending.outcome.output, end="")
        if ending.exit_code != 0:
            print(ending.outcome.errors, file=sys.stderr, end="")
    elif ending.exit_code != 0 and submission.deploy_mode == "cluster":
        print(
            f"sparklm: the job ended as {ending.state.name}: {ending.state.reason or 'no reason given'}",
            file=sys.stderr,
        )


def _fetch(submission: Submission, folder: str | None) -> None:
    from pathlib import Path

    from sparklm.storage import split_url
    from sparklm.submit.staging import fetch_files

    if submission.run is None or (folder is None and split_url(submission.run)[0] == "file"):
        return
    place = Path(folder) if folder is not None else Path("runs") / submission.run.rstrip("/").rpartition("/")[2]
    for path in fetch_files(submission.run, place):
        print(f"  {path}")
