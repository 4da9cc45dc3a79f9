"""What a machine can check of the house rules: direction of imports, plain sources, nothing dead, nothing forgotten."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "adloco_p2p"
GENERATED = PACKAGE / "v1"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())

SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if GENERATED not in path.parents)
SCRIPTS = sorted(
    path for folder in ("tests", "benchmarks", "examples", "proto") for path in (REPOSITORY / folder).rglob("*.py")
)
BENCHMARKS = [path for path in SCRIPTS if REPOSITORY / "benchmarks" in path.parents]
PROSE = sorted(
    path
    for pattern in ("*.md", "*.toml", "*.yaml", "*.proto")
    for path in REPOSITORY.rglob(pattern)
    if not any(part.startswith(".") for part in path.relative_to(REPOSITORY).parts)  # environments lie in hidden folders
)
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
PURE = {
    "__future__",
    "abc",
    "annotated_types",
    "base64",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "struct",
} | {
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "statistics",
    "types",
    "typing",
    "weakref",
}
"""What the core may import besides itself and the errors."""
LONGEST_FUNCTION = 60
"""Lines of a function, signature and body without the docstring: one screen."""
GREATEST_COMPLEXITY = 15
"""Paths through a function (McCabe), as ruff counts them."""
LONGER_FUNCTIONS: frozenset[str] = frozenset()
"""Exceptions, as `path:name`. It is empty; where it has to grow it may only shrink again."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def modules_of(path: Path) -> Iterator[str]:
    """Absolute names of what a file imports, anywhere in it; for `from a import b` both `a` and `a.b`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def name_of(path: Path) -> str:
    """Dotted name of a module of the package."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def shown(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def calls_of(path: Path) -> Iterator[str]:
    """Dotted names of what a file calls, as written."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def test_imports_go_in_one_direction() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_files_are_plain_and_finished() -> None:
    for path in [*SOURCES, *SCRIPTS, *PROSE]:
        content = path.read_bytes()
        assert content.isascii(), f"{shown(path)}: not ASCII"
        assert b"\r" not in content and b"\t" not in content, f"{shown(path)}: carriage return or tab"
        found = UNFINISHED.search(content.decode("ascii"))
        assert found is None, f"{shown(path)}: {found}"


@pytest.mark.parametrize("path", [*SOURCES, *SCRIPTS], ids=shown)
def test_no_shortcuts(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        where = f"{shown(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{where}: bare except"
        if isinstance(node, ast.Assert):
            assert not isinstance(node.test, ast.Constant), f"{where}: an assertion that decides nothing"
        if isinstance(node, ast.ImportFrom):
            assert all(name.name != "*" for name in node.names), f"{where}: import *"


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the `def` to the end, without those of the docstring; decorators are not counted."""
    assert function.end_lineno is not None
    first = function.body[0]
    docstring = 0
    if ast.get_docstring(function, clean=False) is not None:
        assert first.end_lineno is not None
        docstring = first.end_lineno - first.lineno + 1
    return function.end_lineno - function.lineno + 1 - docstring


def test_lines_are_counted_without_docstring_and_decorators() -> None:
    tree = ast.parse('@cache\ndef f(\n    a,\n):\n    """One.\n\n    Two."""\n\n    return a\n\n\nasync def g(): ...\n')
    assert {function.name: lines_of(function) for function in functions_of(tree)} == {"f": 5, "g": 1}


def test_no_function_is_longer_than_a_screen() -> None:
    functions = [(shown(path), function) for path in SOURCES for function in functions_of(tree_of(path))]
    longer = {f"{path}:{function.name}" for path, function in functions if lines_of(function) > LONGEST_FUNCTION}
    assert longer == LONGER_FUNCTIONS, sorted(longer ^ LONGER_FUNCTIONS)


def test_no_function_is_more_complex_than_the_limit() -> None:
    """Ruff counts, with its settings as they are for everybody: on for the whole package, and nowhere switched off."""
    settings = PROJECT["tool"]["ruff"]["lint"]
    assert "C90" in settings["select"] and settings["mccabe"]["max-complexity"] == GREATEST_COMPLEXITY
    rule = ["check", "--no-cache", "--ignore-noqa", "--select", "C901", str(PACKAGE)]
    checked = subprocess.run(
        [str(Path(sys.executable).with_name("ruff")), *rule],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_core_is_pure() -> None:
    for path in sorted((PACKAGE / "core").rglob("*.py")):
        for module in modules_of(path):
            root = module.partition(".")[0]
            is_own = module.startswith(("adloco_p2p.core", "adloco_p2p.errors"))
            assert is_own or root in PURE, f"{shown(path)}: imports {module}"
        for call in calls_of(path):
            assert call not in ("open", "print", "input", "hash"), f"{shown(path)}: calls {call}"


def test_no_call_that_a_room_may_not_make() -> None:
    for path in SOURCES:
        room = path.relative_to(PACKAGE).parts[0]
        for call in calls_of(path):
            assert call not in ("eval", "exec", "pickle.load", "pickle.loads", "os.system"), f"{shown(path)}: {call}"
            if call == "time.time":
                assert room in ("runtime", "swarm", "views"), f"{shown(path)}: the wall clock is read by the shell only"
            if call.startswith("random.") and "random" in modules_of(path) and room != "sim":
                assert call in ("random.Random", "random.SystemRandom"), f"{shown(path)}: {call} draws from a global state"
            if call == "torch.load" and shown(path) != "adloco_p2p/training/state_dict.py":  # there without code: weights_only
                raise AssertionError(f"{shown(path)}: tensors are read with safetensors")


def test_every_package_is_in_the_wheel() -> None:
    folders = {name_of(path) for path in PACKAGE.rglob("__init__.py")}
    assert folders | {"adloco_p2p.configs"} == set(PROJECT["tool"]["setuptools"]["packages"])
    with_code = {path.parent for path in PACKAGE.rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in with_code)


def command_line() -> str:
    return "".join(path.read_text() for path in sorted((PACKAGE / "cli").glob("*.py")))


def test_every_module_is_used() -> None:
    """Imported by another one, named by the command line, or an entry point. Tests do not count: what they alone use is a test
    oracle, and belongs to them."""
    imported = {module for path in [*SOURCES, *BENCHMARKS] for module in modules_of(path)}
    verbs = re.findall(r'verb="(\w+):\w+"', command_line())
    entries = {f"adloco_p2p.commands.{verb}" for verb in verbs} | {"adloco_p2p.__main__"}
    packages = {name_of(path) for path in PACKAGE.rglob("__init__.py")}
    unused = {name_of(path) for path in SOURCES} - imported - entries - packages
    assert not unused, sorted(unused)


def test_every_verb_has_its_function() -> None:
    """The command line imports them by name, when the verb is given."""
    verbs = re.findall(r'verb="(\w+):(\w+)"', command_line())
    assert verbs
    for module, function in verbs:
        path = PACKAGE / "commands" / f"{module}.py"
        assert path.exists(), f"{module}:{function}"
        names = {node.name for node in tree_of(path).body if isinstance(node, ast.FunctionDef)}
        assert function in names, f"{module}:{function}"


def test_every_import_is_required() -> None:
    names = {"grpcio": "grpc", "protobuf": "google", "pyyaml": "yaml"}
    extras = PROJECT["project"]["optional-dependencies"]
    entries = [*PROJECT["project"]["dependencies"], *(entry for extra in extras if extra != "dev" for entry in extras[extra])]
    required = {re.split(r"[<>=[]", entry)[0] for entry in entries}
    modules = {names.get(name, name.replace("-", "_")) for name in required}
    imported = {module.partition(".")[0] for path in [*SOURCES, *sorted(GENERATED.glob("*.py"))] for module in modules_of(path)}
    assert imported - set(sys.stdlib_module_names) - {"adloco_p2p"} <= modules


def test_files_of_one_name_are_collected_in_one_run() -> None:
    """By `pytest -m heavy` or `pytest -k WORD` without a folder."""
    same = sorted((REPOSITORY / "tests").rglob("test_upgrade.py"))
    assert len(same) > 1
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-m", "", *map(str, same)]
    collected = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert collected.returncode == 0, collected.stdout
