"""Imports point downwards only, and the floors below `runtime` know no clock, no socket, no environment and no chance.

The floors are those of ARCHITECTURE.md. The check reads the syntax trees, so imports inside functions count as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "netreduce"
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))

BASE = {"compiled", "units", "errors", "quantities"}
DATA_PATH = BASE | {"wire", "trace"}
MODEL = DATA_PATH | {"nic", "switch", "fabric", "collectives"}
ALLOWED: dict[str, set[str]] = {
    "units": set(),
    "errors": set(),
    "quantities": {"errors"},
    "toml_files": {"errors"},
    "compiled": {"units", "errors"},
    "wire": BASE,
    "trace": BASE | {"wire"},
    "nic": DATA_PATH,
    "switch": DATA_PATH,
    "fabric": DATA_PATH | {"nic", "switch"},
    "collectives": DATA_PATH | {"nic.verbs"},
    "control": DATA_PATH | {"switch", "fabric", "toml_files"},
    "rivals": MODEL,
    "flowsim": MODEL | {"toml_files"},
    "soak": MODEL | {"control"},
    "testbed": MODEL | {"flowsim", "toml_files"},
    "runtime": MODEL | {"control", "rivals", "flowsim", "toml_files"},
    "torch": MODEL | {"runtime"},
    "viewer": MODEL | {"rivals", "flowsim", "runtime"},
    "cli": MODEL | {"control", "rivals", "flowsim", "soak", "testbed", "runtime", "torch", "viewer"},
    "__init__": MODEL | {"runtime"},
    "__main__": {"cli"},
}
"""For each floor, the floors that it may import besides itself; all may import the package's `__version__`."""

PURE = sorted(set(ALLOWED) - {"compiled", "runtime", "torch", "viewer", "cli", "__init__", "__main__"})
IMPURE_MODULES = {
    "asyncio", "multiprocessing", "os", "secrets", "select", "selectors", "signal", "socket", "subprocess", "tempfile",
    "threading", "time", "uuid",
}  # fmt: skip
SEEDABLE = {"default_rng", "Random", "SeedSequence", "PCG64", "Philox", "Generator"}
IMPURE_CALLS = {"now", "utcnow", "today", "getenv", "urandom"}


def floor_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file of the package imports; relative imports are resolved."""
    package = ["netreduce", *path.with_suffix("").parts][:-1]
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def may_import(floor: str, name: str) -> bool:
    """Whether a file on `floor` may import the dotted `name`."""
    parts = name.split(".")
    if parts[0] != "netreduce" or name == "netreduce.__version__":
        return True
    target = ".".join(parts[1:])
    return any(target == allowed or target.startswith(allowed + ".") for allowed in {floor, *ALLOWED[floor]})


def test_every_folder_has_its_floor() -> None:
    assert {floor_of(path) for path in FILES} <= set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_point_downwards(path: Path) -> None:
    wrong = [f"line {line}: {name}" for line, name in imported_names(path) if not may_import(floor_of(path), name)]
    assert not wrong, f"{path} stands on floor {floor_of(path)!r} and must not import {wrong}"


def impure_calls(path: Path) -> Iterator[str]:
    """Calls that read a clock or draw unseeded chance. `random` may also name a generator that was handed in."""
    module_imported = any(name.split(".")[0] == "random" for _, name in imported_names(path))
    chance = ("np.random.", "numpy.random.", *(["random."] if module_imported else []))
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(), str(path))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            text, attribute = ast.unparse(node.func), node.func.attr
            unseeded = attribute in SEEDABLE and not node.args and not node.keywords
            if unseeded or attribute in IMPURE_CALLS or (text.startswith(chance) and attribute not in SEEDABLE):
                yield f"line {node.lineno}: {text}()"


@pytest.mark.parametrize("path", [path for path in FILES if floor_of(path) in PURE], ids=str)
def test_the_floors_below_runtime_are_pure(path: Path) -> None:
    wrong = [f"line {line}: {name}" for line, name in imported_names(path) if name.split(".")[0] in IMPURE_MODULES]
    wrong += impure_calls(path)
    assert not wrong, f"{path}: time and chance come in as arguments, but here are {wrong}"


def test_the_check_sees_what_it_must() -> None:
    assert not may_import("nic", "netreduce.switch.Switch")
    assert not may_import("nic", "netreduce.wirebreaker")
    assert not may_import("collectives", "netreduce.nic.Nic")
    assert may_import("collectives", "netreduce.nic.verbs.QP")
    assert not may_import("wire", "netreduce.Communicator")
    assert may_import("wire", "numpy")
