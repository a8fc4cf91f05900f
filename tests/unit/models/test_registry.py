"""The tables of architectures and optimizers: a new entry is all that the rest of the program needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from sparklm.config import TrainingConfig
from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.inference.generate import generate_text
from sparklm.inference.sampling import Sampling
from sparklm.models.build import build_model, count_parameters
from sparklm.models.model_zip import load_model
from sparklm.training.memory import estimate_replica_bytes
from sparklm.training.optim import build_optimizer
from tests.conftest import run_job, tiny_config
from tests.toys import ENTRIES, SETTINGS, Bigram, SignDescent


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for table, name, entry in ENTRIES:
        monkeypatch.setitem(table, name, entry)


@pytest.mark.usefixtures("toys")
def test_a_new_architecture_and_a_new_optimizer_are_checked_built_and_estimated() -> None:
    config = tiny_config(None, *SETTINGS)
    model = build_model(config, 257)
    assert isinstance(model, Bigram)
    assert count_parameters(config, 257) == sum(parameter.numel() for parameter in model.parameters())
    (part,) = build_optimizer(model, config.training).parts
    assert isinstance(part, SignDescent)
    found = estimate_replica_bytes(config, 257, 0)
    assert found.parts["optimizer"] == 2 * found.parts["weights"]
    longer = estimate_replica_bytes(tiny_config(None, *SETTINGS, "training.batch_size=100"), 257, 0)
    activations = "activations of a batch"
    assert longer.parts[activations] - found.parts[activations] > 4 * 1000 * 16 * 50
    notes = resolve(assignments=[*SETTINGS, "model.num_heads=2", "model.feedforward_size=3"]).notes
    assert notes == [
        "model.feedforward_size is not used: bigram has none",
        "model.num_heads is not used: bigram has no attention",
    ]
    with pytest.raises(UserError, match="embedding does not go with bigram; use lstm, dense, attention or rnn"):
        resolve(assignments=[*SETTINGS, "training.objective=embedding", "data.embeddings=random"])


@pytest.mark.usefixtures("toys")
def test_a_new_architecture_and_a_new_optimizer_train_and_generate(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *SETTINGS, "training.learning_rate=0.003")
    result = run_job(config, tmp_path / "run")
    assert result.records[-1].ValidationLoss < result.records[0].ValidationLoss
    trained = load_model(str(tmp_path / "run"))
    assert isinstance(trained.model, Bigram)
    assert generate_text(trained, "The", 5, Sampling(temperature=0)).text.startswith("The")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.architecture=bigram", "should be 'gpt', 'lstm', 'dense', 'attention' or 'rnn'"),
        ("training.optimizer=sign", "should be 'sgd', 'nesterov', 'adam', 'adamw' or 'muon'"),
        ("training.schedule=linear", "should be 'constant', 'cosine', 'stable' or 'step'"),
    ],
)
def test_a_name_that_is_in_no_table_is_refused_with_those_that_are(assignment: str, message: str) -> None:
    key, _, value = assignment.partition("=")
    with pytest.raises(UserError, match=f"{key} = '{value}' .--set.: {message}"):
        resolve(assignments=[assignment])


def test_an_optimizer_that_is_in_no_table_never_becomes_another() -> None:
    training = TrainingConfig.model_construct(**TrainingConfig().model_dump() | {"optimizer": "sign"})
    with pytest.raises(KeyError, match="sign"):
        build_optimizer(nn.Linear(2, 2), training)


@pytest.mark.process
def test_settings_are_read_without_torch() -> None:
    program = "import sys, sparklm.config.resolve; sparklm.config.resolve.resolve(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
