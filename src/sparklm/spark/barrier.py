"""The collective exchange: one barrier stage an epoch, in which every task is a replica and all run at once."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from pydantic import BaseModel

from sparklm.logs import log_context
from sparklm.training.run import Run
from sparklm.training.sync.rounds import Round, rounds_after


class RankOrder(BaseModel):
    """The order for every task of a barrier stage."""

    run: Run
    rounds: Sequence[Round]
    protect: Sequence[int]


def rank_task(text: str) -> str:
    """Be one replica of a barrier stage, from the rendezvous to the end of the epoch."""
    import torch
    from pyspark import BarrierTaskContext

    from sparklm.training.checkpoint.commit import latest_step
    from sparklm.training.heartbeat import Heartbeat
    from sparklm.training.sync.collective import Endpoint, process_group
    from sparklm.training.sync.in_memory import train_in_memory
    from sparklm.training.sync.mesh import hold_port

    order, context = RankOrder.model_validate_json(text), BarrierTaskContext.get()
    run, config, rank = order.run, order.run.config, context.partitionId()
    heartbeat = Heartbeat(run.folder, rank, order.rounds[0].start)
    with log_context(replica=rank), heartbeat.reporting_failures():
        own_host = socket.gethostbyname(context.getTaskInfos()[rank].address.partition(":")[0])
        listener = hold_port(own_host)
        endpoint = Endpoint(
            step=latest_step(run.folder),
            host=own_host,
            port=listener.getsockname()[1],
            gpus=torch.cuda.device_count() if config.training.device != "cpu" else 0,
        )
        # By way of Spark's driver: the secret is as safe as Spark's own traffic (see spark.authenticate).
        endpoints = [Endpoint.model_validate_json(text) for text in context.allGather(endpoint.model_dump_json())]
        # Spark may have begun this stage anew by itself: all go on from the checkpoint that the first one sees.
        rounds = rounds_after(endpoints[0].step, order.rounds)
        with process_group(rank, endpoints, listener, config.distributed.timeout_seconds) as group:
            train_in_memory(
                run,
                rounds,
                group,
                protect=order.protect,
                on_step=heartbeat.step,
                is_to_stop=lambda: heartbeat.is_to_stop,
            )
    return ""
