"""docs/emr.md and docs/kubernetes.md: what they tell to type can be typed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import botocore.session
import jsonschema
import pytest
import yaml
from botocore import xform_name

from tests.commands import run_command
from tests.submit.kubernetes_server import openapi

DOCUMENTS = Path(__file__).parents[2] / "docs"
PAGES = ["emr.md", "kubernetes.md"]
# Commands of the AWS CLI's own, which no service has.
OWN_COMMANDS = {("emr", "create-default-roles"), ("emr", "ssh"), ("emr", "terminate-clusters")}
OWN_OPTIONS = {("emr", "list-clusters"): {"--active"}}


def blocks(page: str, language: str) -> list[str]:
    text = (DOCUMENTS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def lines(page: str, program: str) -> list[list[str]]:
    text = "\n".join(blocks(page, "sh")).replace("$BUCKET", "bucket").replace("$AWS_REGION", "us-east-1")
    return [shlex.split(line.partition(" > ")[0]) for line in text.splitlines() if line.startswith(f"{program} ")]


@pytest.mark.parametrize("page", PAGES)
def test_every_submission_can_be_typed(page: str, tmp_path: Path) -> None:
    found = [line for line in lines(page, "sparklm") if line[1] == "submit"]
    assert len(found) >= 3
    for _, *arguments in found:
        asked = {"--dry-run", "--policy", "--job-policy", "--options"} & set(arguments)
        place = arguments.index("--") if "--" in arguments else len(arguments)
        result = run_command(*arguments[:place], *([] if asked else ["--dry-run"]), *arguments[place:], cwd=tmp_path)
        assert result.returncode == 0, f"{arguments}\n{result.stderr}"
        if asked & {"--policy", "--job-policy"}:
            assert json.loads(result.stdout)["Version"] == "2012-10-17"


def test_every_command_of_aws_exists_with_its_options() -> None:
    session: Any = botocore.session.get_session()
    found = lines("emr.md", "aws")
    assert len(found) > 20
    for _, service, name, *arguments in found:
        if service == "s3" or (service, name) in OWN_COMMANDS:
            continue
        model = session.get_service_model("s3" if service == "s3api" else service)
        operations = {xform_name(each, "-"): each for each in model.operation_names}
        assert name in operations, f"aws {service} {name}"
        members = {f"--{xform_name(each, '-')}" for each in model.operation_model(operations[name]).input_shape.members}
        options = {argument for argument in arguments if argument.startswith("--")}
        assert options <= members | OWN_OPTIONS.get((service, name), set()), f"aws {service} {name}"


def test_every_json_is_valid_and_a_policy_or_a_rule() -> None:
    found = [json.loads(block) for block in blocks("emr.md", "json")]
    assert len(found) == 3
    assert all("Statement" in each or "Rules" in each for each in found)


@pytest.mark.process
def test_every_yaml_has_the_form_that_kubernetes_publishes() -> None:
    schema = {"$ref": "#/definitions/io.k8s.api.core.v1.PersistentVolumeClaim", "definitions": openapi()["definitions"]}
    (block,) = blocks("kubernetes.md", "yaml")
    jsonschema.Draft4Validator(schema).validate(yaml.safe_load(block))
