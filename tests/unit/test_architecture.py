"""Imports point downwards, the core loads no driver, sync and async do not drift apart, the public face is recorded."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import AsyncHeld, AsyncLocks, Held, Locks

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "holdfast"

# From the bottom up. A module may import from its own layer and from those before it.
LAYERS = [
    ["errors", "fork", "prometheus", "pause"],
    ["keys", "deadline"],
    ["claims"],
    ["owner"],
    ["flow"],
    ["ticket", "token"],
    ["order", "reentry"],
    ["engines"],
    ["schema"],
    ["options"],
    ["client"],
    ["template"],
    ["_sync", "_async"],
    ["settings"],
    ["advisory", "session"],
    ["__init__"],
    ["scheduler", "agents"],
    ["embedded"],
    ["hooks"],
    ["server"],
    ["testing", "cli"],
    ["__main__"],
]


def layer_of(module: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if module in names)


def imported_modules(path: Path) -> set[str]:
    """The top-level modules of holdfast that a file imports when it runs (not just for type checking)."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    package = parts[:-1]
    found: set[str] = set()

    class Imports(ast.NodeVisitor):
        def visit_If(self, node: ast.If) -> None:
            if ast.unparse(node.test) != "TYPE_CHECKING":
                self.generic_visit(node)

        def visit_Import(self, node: ast.Import) -> None:
            found.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("holdfast."))

        def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
            if node.level:
                base = list(package[: len(package) - node.level + 1])
                target = base + (node.module.split(".") if node.module else [])
                names = [target[0]] if target else [alias.name for alias in node.names]
                found.update(name if any(name in layer for layer in LAYERS) else "__init__" for name in names)
            elif node.module == "holdfast":
                found.add("__init__")
            elif (node.module or "").startswith("holdfast."):
                found.add((node.module or "").split(".")[1])

    Imports().visit(ast.parse(path.read_text()))
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    above = {module for module in imported_modules(path) if layer_of(module) > layer_of(own)}
    assert not above, f"{own} imports {above}, which stand above it"


def test_files_stay_small_enough_to_see_through() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert not {str(path): length for path, length in lengths.items() if length > 350}


def test_no_lock_of_this_process_guards_what_is_in_the_database() -> None:
    """Another process would not know of it. What agents and the server lock, they lock where all can see it."""
    for folder in ("agents", "server"):
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
                assert name not in ("Lock", "RLock", "Condition"), f"{path}: {ast.unparse(node)}"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_holdfast_loads_no_driver_and_no_asyncio() -> None:
    loaded = {name.partition(".")[0] for name in loaded_by("import holdfast")}
    assert "holdfast" in loaded
    assert not loaded & {"psycopg", "redis", "sqlalchemy", "fastapi", "asyncio", "logging", "pytest", "inspect", "json"}


def test_claims_load_no_driver_either() -> None:
    loaded = {name.partition(".")[0] for name in loaded_by("import holdfast; holdfast.claim; holdfast.claim_row")}
    assert "holdfast" in loaded
    assert not loaded & {"psycopg", "sqlalchemy", "asyncpg", "asyncio"}


def test_session_locks_load_no_driver_before_they_are_given_one() -> None:
    loaded = {name.partition(".")[0] for name in loaded_by("import holdfast; holdfast.SessionLock")}
    assert "asyncio" in loaded
    assert not loaded & {"redis", "hiredis", "psycopg"}


def test_using_the_sync_client_loads_no_asyncio() -> None:
    statement = "import holdfast\nwith holdfast.Locks.from_url('memory://').hold('a'): pass"
    assert "asyncio" not in loaded_by(f"exec({statement!r})")


def test_the_sync_client_is_the_mirror_of_the_async_one() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "mirror.py"), "--check"]
    outcome = subprocess.run(check, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def public_face(kind: type) -> dict[str, list[tuple[str, str, str]]]:
    """Methods with the names, kinds and defaults of their parameters."""
    return {
        name.replace("__aenter__", "__enter__").replace("__aexit__", "__exit__"): [
            (parameter.name, str(parameter.kind), repr(parameter.default))
            for parameter in inspect.signature(member).parameters.values()
        ]
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_") or name in ("__init__", "__enter__", "__exit__", "__aenter__", "__aexit__")
    }


@pytest.mark.parametrize(("sync", "asynchronous"), [(Locks, AsyncLocks), (Held, AsyncHeld)])
def test_sync_and_async_have_one_face(sync: type, asynchronous: type) -> None:
    assert public_face(sync) == public_face(asynchronous)


def describe_public_names() -> str:
    lines = []
    for name in sorted(holdfast.__all__):
        value = getattr(holdfast, name)
        if not inspect.isclass(value):
            lines.append(f"{name}{inspect.signature(value) if callable(value) else ''}")
            continue
        lines.append(f"class {name}({', '.join(base.__name__ for base in value.__bases__)})")
        for member, definition in sorted(vars(value).items()):
            if member.startswith("_") or issubclass(value, BaseException):
                continue
            function = inspect.unwrap(getattr(definition, "__func__", definition))
            lines.append(f"    {member}{inspect.signature(function) if inspect.isfunction(function) else ''}")
    return "\n".join(lines) + "\n"


def test_the_public_face_is_the_recorded_one() -> None:
    recorded = ROOT / "tests" / "golden" / "public-face.txt"
    found = describe_public_names()
    assert found == recorded.read_text(), "the public face changed; if that is meant: make public-face"


def test_every_public_name_is_there_and_unknown_ones_are_not() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert set(dir(holdfast)) == set(holdfast.__all__)
    with pytest.raises(AttributeError):
        _ = holdfast.Lock  # type: ignore[attr-defined]


if __name__ == "__main__":
    (ROOT / "tests" / "golden" / "public-face.txt").write_text(describe_public_names())
