"""Processes that sync by collective operations: the mean of all, in order, with the bits of one process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
import torch

from sparklm.errors import JobError
from sparklm.training.sync.codec import BLOCK, Codec, ordered_mean
from sparklm.training.sync.collective import Endpoint, hold_port, interface_of, process_group

PROGRAM = """
import hashlib, json, sys, torch
from sparklm.training.sync.collective import Endpoint, process_group, hold_port
from sparklm.training.phases import PhaseClock
from sparklm.training.sync.codec import Codec
rank, lossy, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
listener = None
if rank == 0:
    listener = hold_port("127.0.0.1")
    port = listener.getsockname()[1]
    print(port, flush=True)
endpoints = [Endpoint(host="127.0.0.1", port=port, gpus=0)] * 3
vector = torch.randn(int(sys.argv[4]), generator=torch.Generator().manual_seed(rank))
with process_group(rank, endpoints, listener, 60) as group:
    results = []
    for wire_dtype in ("none", "int8"):
        codec = Codec(wire_dtype=wire_dtype, num_lossy=lossy)
        results.append(hashlib.sha256(group.mean([codec.round_trip(vector)], codec, PhaseClock()).numpy()).hexdigest())
    texts = group.gather([f"replica {rank}" * (rank + 1)])
print(json.dumps({"means": results, "texts": texts}))
"""


@pytest.mark.process
@pytest.mark.parametrize(("length", "lossy"), [(5 * BLOCK + 7, 3 * BLOCK + 1), (10, 10)])
def test_three_processes_have_the_mean_and_the_texts_of_all(length: int, lossy: int) -> None:
    def start(rank: int, port: int) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", PROGRAM, str(rank), str(lossy), str(port), str(length)]
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    first = start(0, 0)
    port = int(first.stdout.readline())
    processes = [first, start(1, port), start(2, port)]
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
        assert answer["texts"] == [f"replica {rank}" * (rank + 1) for rank in range(3)]


def test_a_process_that_never_arrives_is_waited_for_only_so_long() -> None:
    listener = hold_port("127.0.0.1")
    endpoints = [Endpoint(host="127.0.0.1", port=listener.getsockname()[1], gpus=0)] * 2
    failing = pytest.raises(JobError, match=r"replica 0 did not join all others at 127.0.0.1:\d+ within 1 s")
    with failing, process_group(0, endpoints, listener, 1.0):
        pass


def test_an_address_of_nobody_here_has_no_interface() -> None:
    with pytest.raises(JobError, match=r"no network interface of this machine has the address 203\.0\.113\.7"):
        interface_of("203.0.113.7")
