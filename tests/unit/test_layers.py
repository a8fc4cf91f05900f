"""The layers of docs/architecture.md: imports point down, never in a circle, and only spark/ knows Spark."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
# From the bottom up. A module may import from its own package and from layers below its own.
LAYERS = (
    ("config_reader", "errors", "redaction", "usable_memory", "wording"),
    ("threads",),
    ("cores", "logs", "storage"),
    ("archive", "disk_cache"),
    ("models.registry", "training.optim", "training.schedule", "text.formats", "text.readers", "text.token_files"),
    ("config",),
    ("text",),
    ("embeddings", "models"),
    ("baseline", "evaluation", "inference"),
    ("placement.protocol", "progress.watcher"),
    ("training",),
    ("planning",),
    ("lake",),
    ("placement", "progress"),
    ("report",),
    ("spark",),
    ("placement.start",),
    ("job",),
    ("signals",),
    ("api",),
    ("spark.ml",),
    ("submit",),
    ("cli",),
    ("__main__", "submit.entry.run_sparklm"),
)
MODULES = {
    ".".join(path.relative_to(SOURCE / "sparklm").with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "sparklm").rglob("*.py")
    if path != SOURCE / "sparklm" / "__init__.py"
}


def imports(path: Path, *, at_start_only: bool) -> Iterator[str]:
    """The modules that a module imports when it runs: not those that only a type checker reads."""

    def walk(nodes: list[ast.stmt]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            elif not (at_start_only and isinstance(node, ast.FunctionDef | ast.ClassDef)):
                for _, value in ast.iter_fields(node):
                    if isinstance(value, list) and value and isinstance(value[0], ast.stmt | ast.excepthandler):
                        yield from walk(value)

    return walk(ast.parse(path.read_text()).body)


def own_imports(path: Path, *, at_start_only: bool) -> set[str]:
    """The modules of sparklm among them."""
    found = set()
    for name in imports(path, at_start_only=at_start_only):
        inner = name.removeprefix("sparklm.")
        if inner != name:
            found |= {candidate for candidate in (inner, inner.rpartition(".")[0]) if candidate in MODULES}
    return found


def layer_of(module: str) -> int:
    """The layer of a module: that of the longest name that it begins with."""
    fitting = [
        (len(name), number)
        for number, names in enumerate(LAYERS)
        for name in names
        if f"{module}.".startswith(f"{name}.")
    ]
    assert fitting, f"{module} belongs to no layer"
    return max(fitting)[1]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_its_own_package_and_lower_layers(module: str) -> None:
    package = module.partition(".")[0]
    above = [
        other
        for other in own_imports(MODULES[module], at_start_only=False)
        if other.partition(".")[0] != package and layer_of(other) >= layer_of(module)
    ]
    assert above == []


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: own_imports(path, at_start_only=True) - {module} for module, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " imports ".join((*path, module))
        if module not in done:
            for other in graph[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_only_the_spark_package_imports_pyspark() -> None:
    users = {
        module
        for module, path in MODULES.items()
        if any(name.partition(".")[0] in ("pyspark", "py4j") for name in imports(path, at_start_only=False))
    }
    assert {module.partition(".")[0] for module in users} == {"spark"}
