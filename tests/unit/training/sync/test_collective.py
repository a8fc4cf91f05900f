"""Processes that sync by collective operations: the mean of all, in order, with the bits of one process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparklm.training.sync.codec import BLOCK, Codec, ordered_mean
from sparklm.training.sync.collective import Endpoint
from tests.conftest import STRATEGIES, run_job, tiny_config
from tests.placements import ByProcesses

PROGRAM = """
import hashlib, json, sys, torch
from sparklm.training.sync.collective import Endpoint, process_group
from sparklm.training.sync.mesh import hold_port
from sparklm.training.phases import PhaseClock
from sparklm.training.sync.codec import Codec
rank, lossy, length = map(int, sys.argv[1:])
listener = hold_port("127.0.0.1")
print(Endpoint(host="127.0.0.1", port=listener.getsockname()[1], gpus=0).model_dump_json(), flush=True)
endpoints = [Endpoint.model_validate(each) for each in json.loads(sys.stdin.readline())]
vector = torch.randn(length, generator=torch.Generator().manual_seed(rank))
with process_group(rank, endpoints, listener, 60) as group:
    results = []
    for wire_dtype in ("none", "int8"):
        codec = Codec(wire_dtype=wire_dtype, num_lossy=lossy)
        results.append(hashlib.sha256(group.mean([codec.round_trip(vector)], codec, PhaseClock()).numpy()).hexdigest())
    texts = group.gather([f"replica {rank}" * rank])
    flags = group.agree([rank == 2, False])
print(json.dumps({"means": results, "texts": texts, "flags": flags}))
"""


@pytest.mark.process
@pytest.mark.parametrize(("length", "lossy"), [(5 * BLOCK + 7, 3 * BLOCK + 1), (10, 10)])
def test_three_processes_have_the_mean_and_the_texts_of_all(length: int, lossy: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(lossy), str(length)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    endpoints = [json.loads(process.stdout.readline()) for process in processes]
    assert len({endpoint["secret"] for endpoint in endpoints}) == 3
    for process in processes:
        process.stdin.write(json.dumps(endpoints) + "\n")
        process.stdin.flush()
    vectors = [torch.randn(length, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    expected = []
    for wire_dtype in ("none", "int8"):
        codec = Codec(wire_dtype=wire_dtype, num_lossy=lossy)
        mean = ordered_mean([codec.round_trip(vector) for vector in vectors])
        expected.append(hashlib.sha256(mean.numpy()).hexdigest())
    for process in processes:
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        answer = json.loads(output)
        assert answer["means"] == expected
        assert answer["texts"] == [f"replica {rank}" * rank for rank in range(3)]
        assert answer["flags"] == [True, False]


def test_the_secret_of_a_group_is_not_shown_by_accident() -> None:
    endpoint = Endpoint(host="127.0.0.1", port=1, gpus=0)
    assert endpoint.secret not in repr(endpoint)


@pytest.mark.process
def test_a_process_for_each_replica_gives_the_bytes_of_one_for_all(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *STRATEGIES["allreduce"])
    for name, placement in (("one", None), ("processes", ByProcesses())):
        run_job(config, tmp_path / name, placement)
    assert (tmp_path / "one" / "model.zip").read_bytes() == (tmp_path / "processes" / "model.zip").read_bytes()
