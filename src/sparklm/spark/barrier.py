"""The collective exchange: one barrier stage an epoch, in which every task is a replica and all run at once."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from pydantic import BaseModel

from sparklm.logs import log_context
from sparklm.storage import Folder
from sparklm.training.sync.rounds import Round


class RankOrder(BaseModel):
    """What every task of a barrier stage is told."""

    run_url: str
    rounds: Sequence[Round]
    num_replicas: int
    keep_checkpoints: int
    protect: int | None
    timeout_seconds: float


def rank_task(text: str) -> str:
    """Be one replica of a barrier stage, from the rendezvous to the end of the epoch."""
    import torch
    from pyspark import BarrierTaskContext

    from sparklm.training.heartbeat import Heartbeat
    from sparklm.training.run import latest_step, read_run
    from sparklm.training.sync.collective import Whereabouts, hold_port, joined_group
    from sparklm.training.sync.in_memory import train_together

    order, context = RankOrder.model_validate_json(text), BarrierTaskContext.get()
    rank, run = context.partitionId(), Folder(order.run_url)
    heartbeat = Heartbeat(run, rank, order.rounds[0].start)
    with log_context(replica=rank), heartbeat.telling_failures():
        own_host = socket.gethostbyname(context.getTaskInfos()[rank].address.partition(":")[0])
        listener = hold_port(own_host) if rank == 0 else None
        here = Whereabouts(
            step=latest_step(run),
            host=own_host,
            port=listener.getsockname()[1] if listener is not None else 0,
            gpus=torch.cuda.device_count() if read_run(run).config.training.device != "cpu" else 0,
        )
        everyone = [Whereabouts.model_validate_json(text) for text in context.allGather(here.model_dump_json())]
        # Spark may have begun this stage anew by itself: all go on from the checkpoint that the first one sees.
        rounds = [round_ for round_ in order.rounds if round_.start >= everyone[0].step]
        with joined_group(rank, everyone, listener, order.timeout_seconds) as group:
            train_together(
                run,
                rounds,
                group,
                keep_checkpoints=order.keep_checkpoints,
                protect=order.protect,
                on_step=heartbeat.step,
            )
    return ""
