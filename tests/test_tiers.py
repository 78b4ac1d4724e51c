"""The architecture as a test: who imports whom, where JAX may appear, how long a file may be."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parents[1]

TIERS: Mapping[str, frozenset[str]] = {
    "ir": frozenset(),
    "profiles": frozenset(),
    "costmodel": frozenset({"ir", "profiles"}),
    "substitutions": frozenset({"ir"}),
    "planner": frozenset({"costmodel", "ir", "profiles", "substitutions"}),
    "meshwright": frozenset({"planner"}),
}

# Rooms of the planner, lowest first; those of one floor do not import each other.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("common",), ("training", "files", "solver"), ("sharding",), ("pipeline",),
    ("emit", "inspect"), ("result",), ("api",), ("__init__",), ("cli",),
)  # fmt: skip
MAX_ENTRIES = 12

# Packages inside of others that have a surface of their own.
SURFACES = ("costmodel.compiler", "ir.analysis")

# Modules of other tiers that may be named by path: they import JAX and are not re-exported.
DOORS = (
    *("ir.evaluate", "ir.evaluate_regions", "ir.high_words", "ir.inlined", "ir.jax_internals"),
    "ir.threefry",
    *("ir.host_kernels", "ir.jax_compilers", "ir.ordered_attention", "ir.registered_calls"),
    *("ir.attention_kernels", "ir.shifts", "ir.trace", "planner.emit", "profiles.measure"),
)

# The only places of the five packages that may import JAX or a library built on it.
JAX_FAMILY = frozenset({"equinox", "flax", "haiku", "jax", "jaxlib", "optax"})
JAX_EDGES = (
    *("ir/batched_while.py", "ir/carried.py", "ir/custom_partitioning.py", "ir/evaluate.py"),
    *("ir/evaluate_regions.py", "ir/high_words.py", "ir/host_kernels.py", "ir/inplace.py"),
    *("ir/registered_calls.py", "ir/shifts.py", "ir/arranged_attention.py"),
    *("ir/attention_kernels.py", "ir/compact_values.py", "ir/inlined.py"),
    *("ir/jax_compilers.py", "ir/jax_internals.py", "ir/jaxpr.py", "ir/ordered_attention.py"),
    *("ir/threefry.py", "ir/trace.py"),
    *("planner/emit/", "planner/pipeline/cut/", "planner/training/", "profiles/measure"),
)
# The files that read what differs between versions of JAX, and that of the tests.
JAX_INTERNALS = ("ir/jax_compilers.py", "ir/jax_internals.py", "tests/helpers_internals.py")
# Other files of the planner that take the user's function.
PLANNER_FRONT: tuple[str, ...] = (
    "planner/api/call_parts.py",
    "planner/api/check_ops.py",
    *("planner/api/frameworks/arrays.py", "planner/api/frameworks/equinox.py"),
    *("planner/api/frameworks/nnx.py", "planner/api/frameworks/opened.py"),
    "planner/api/parallelize.py",
    "planner/api/plan.py",
    "planner/cli/platforms.py",
    "planner/inspect/export/loaders/jax_module.py",  # copied into an export
    "planner/inspect/export/loaders/jax_shardings.py",  # copied beside an export
    "planner/inspect/export/loaders/nnx_metadata.py",  # copied into an export
    "planner/pipeline/one_or_stages.py",
    "planner/result/bind.py",
    "planner/result/plan.py",
    "planner/result/restore.py",
    *("planner/sharding/ordering/nodes.py", "planner/sharding/padding/moved_nodes.py"),
    "planner/sharding/padding/nodes.py",
    "planner/sharding/rewrite/retrace.py",
    "planner/sharding/sorted_rows/nodes.py",
)

MAX_LINES = 400

# Files of the packages at the edge of an untyped library, checked by pyright in its basic mode.
# Examples, benchmarks and tests talk to JAX all the time and may choose for themselves.
BASIC: tuple[str, ...] = (
    *("ir/arranged_attention.py", "ir/attention_kernels.py", "ir/batched_while.py"),
    *("ir/carried.py", "ir/compact_values.py"),
    "ir/custom_partitioning.py",
    "ir/evaluate.py",
    "ir/evaluate_regions.py",
    "ir/high_words.py",
    "ir/host_kernels.py",
    *("ir/inlined.py", "ir/inplace.py", "ir/iota_lookups.py"),
    *("ir/jax_compilers.py", "ir/jax_internals.py", "ir/jaxpr.py", "ir/ordered_attention.py"),
    "ir/registered_calls.py",
    "ir/shifts.py",
    "ir/threefry.py",
    *("ir/trace.py", "ir/written_attention.py", "ir/written_scores.py", "ir/written_softmax.py"),
    "planner/api/call_parts.py",
    "planner/api/check_ops.py",
    *("planner/api/frameworks/arrays.py", "planner/api/frameworks/equinox.py"),
    *("planner/api/frameworks/nnx.py", "planner/api/frameworks/opened.py"),
    "planner/api/parallelize.py",
    "planner/api/plan.py",
    "planner/cli/platforms.py",
    "planner/emit/attention.py",
    *("planner/emit/attention_blocks.py", "planner/emit/attention_merged.py"),
    "planner/emit/attention_window.py",
    "planner/emit/collective_matmul.py",
    "planner/emit/compilers.py",
    "planner/emit/constraints.py",
    "planner/emit/context.py",
    "planner/emit/effects.py",
    *("planner/emit/exchange_in_chunks.py", "planner/emit/exchanged_rows.py"),
    "planner/emit/given.py",
    "planner/emit/group_tiles.py",
    "planner/emit/grouped.py",
    "planner/emit/halo.py",
    "planner/emit/index.py",
    "planner/emit/jit.py",
    "planner/emit/local.py",
    "planner/emit/local_op.py",
    "planner/emit/mapped.py",
    "planner/emit/pipeline/build.py",
    "planner/emit/pipeline/feed.py",
    *("planner/emit/pipeline/holdings.py", "planner/emit/pipeline/initial.py"),
    "planner/emit/pipeline/layout.py",
    "planner/emit/pipeline/prepared.py",
    "planner/emit/pipeline/processes.py",
    "planner/emit/pipeline/programs.py",
    "planner/emit/pipeline/runtime.py",
    "planner/emit/pipeline/scan/branches.py",
    "planner/emit/pipeline/scan/layout.py",
    "planner/emit/pipeline/scan/local_rounds.py",
    "planner/emit/pipeline/scan/local_stage.py",
    "planner/emit/pipeline/scan/pipeline.py",
    "planner/emit/pipeline/transfer.py",
    "planner/emit/pipeline/update.py",
    "planner/emit/near_groups.py",
    *("planner/emit/pencils.py", "planner/emit/positions.py"),
    "planner/emit/registered.py",
    "planner/emit/row_exchange.py",
    *("planner/emit/run.py", "planner/emit/running.py"),
    "planner/emit/serialize.py",
    "planner/emit/slices.py",
    *("planner/emit/stacked_loop.py", "planner/emit/steps.py"),
    "planner/emit/values.py",
    "planner/inspect/export/loaders/jax_module.py",
    "planner/inspect/export/loaders/jax_shardings.py",
    "planner/inspect/export/loaders/nnx_metadata.py",
    "planner/inspect/export/loaders/torch_plan.py",
    *("planner/pipeline/cut/entries.py", "planner/pipeline/cut/equations.py"),
    *("planner/pipeline/cut/layers.py", "planner/pipeline/cut/opened_loss.py"),
    *("planner/pipeline/cut/outline.py", "planner/pipeline/cut/replaced.py"),
    *("planner/pipeline/cut/scaled.py", "planner/pipeline/cut/solved_stage.py"),
    "planner/pipeline/cut/stage.py",
    "planner/pipeline/cut/stage_gradient.py",
    "planner/pipeline/cut/stage_steps.py",
    "planner/pipeline/cut/stage_training_step.py",
    *("planner/pipeline/cut/uses.py", "planner/pipeline/cut/weights.py"),
    "planner/pipeline/one_or_stages.py",
    "planner/pipeline/rewrite_stages.py",
    *("planner/pipeline/search.py", "planner/pipeline/stage_planner.py"),
    "planner/pipeline/trials.py",
    "planner/result/bind.py",
    "planner/result/bind_stages.py",
    "planner/result/plan.py",
    "planner/result/restore.py",
    "planner/result/verify/stages.py",
    "planner/sharding/nested_maps.py",
    *("planner/sharding/plan_program.py", "planner/sharding/plan_rewritten.py"),
    "planner/sharding/recompute/frontier.py",
    "planner/sharding/rewrite/replay.py",
    *("planner/sharding/ordering/nodes.py", "planner/sharding/padding/moved_nodes.py"),
    "planner/sharding/padding/nodes.py",
    "planner/sharding/rewrite/retrace.py",
    "planner/sharding/sorted_rows/nodes.py",
    "planner/sharding/sorted_rows/pointwise.py",
    "planner/solver/exact/highs.py",
    "planner/solver/numba_jit.py",
    "planner/training/custom_derivatives.py",
    "planner/training/derivative_rules.py",
    "planner/training/equation_list.py",
    "planner/training/loss_in_parts.py",
    "planner/training/loss_parts.py",
    "planner/training/microbatch.py",
    "planner/training/random_draws.py",
    "planner/training/sliced_program.py",
    "planner/training/step.py",
    "planner/training/step_call.py",
    "profiles/measure.py",
    "profiles/measure_cases.py",
    "substitutions/extraction/ilp.py",
    "substitutions/symbolic/smt.py",
    "substitutions/verify/saturate.py",
)

PACKAGES = tuple(sorted(TIERS))
FOLDERS = (*PACKAGES, "benchmarks", "examples", "tests")


def sources(*folders: str) -> list[str]:
    """Python files under `folders`, relative to the repository, sorted."""
    files = itertools.chain.from_iterable((ROOT / folder).rglob("*.py") for folder in folders)
    return sorted(file.relative_to(ROOT).as_posix() for file in files)


PACKAGE_FILES = sources(*PACKAGES)
ALL_FILES = sources(*FOLDERS)


@functools.cache
def parsed(file: str) -> ast.Module:
    """The file, and what its stub file imports: names that a package loads when they are used."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"), filename=file)
    stub = (ROOT / file).with_suffix(".pyi")
    if file == "planner/__init__.py":
        tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
        stub = ROOT / "meshwright/__init__.pyi"  # has the names of both
    if stub.exists():
        tree.body += ast.parse(stub.read_text(encoding="utf-8"), filename=str(stub)).body
    return tree


def imports(file: str, tree: ast.AST) -> Iterator[str]:
    """Dotted names that `tree` imports, made absolute; for `from a import b` both a and a.b."""
    package = Path(file).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and _is_lazy(node.func):
            yield from (ast.literal_eval(name) for name in node.args)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_lazy(called: ast.expr) -> bool:
    """Whether a call is one of `lazy_loader.load`."""
    return (
        isinstance(called, ast.Attribute)
        and called.attr == "load"
        and ast.unparse(called) == "lazy_loader.load"
    )


@functools.cache
def imported(file: str) -> tuple[str, ...]:
    """Dotted names that a file imports."""
    return tuple(imports(file, parsed(file)))


def tier(name: str) -> str:
    return name.partition(".")[0]


def module_file(name: str) -> str | None:
    """The file of ours that module `name` is, or None for names and foreign modules."""
    path = name.replace(".", "/")
    return next(
        (file for file in (f"{path}.py", f"{path}/__init__.py") if (ROOT / file).exists()), None
    )


@functools.cache
def import_graph() -> nx.DiGraph[str]:
    """An edge for each file that a file names; a submodule named counts, its package does not."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(PACKAGE_FILES)
    for file in PACKAGE_FILES:
        for node in ast.walk(parsed(file)):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            base, *rest = imports(file, node)
            named = [target for target in map(module_file, rest) if target]
            whole = len(named) == len(rest) > 0
            own = module_file(base)
            targets = named if whole or own is None else [own, *named]
            graph.add_edges_from((file, target) for target in targets if target != file)
    return graph


def test_files_import_lower_tiers_only() -> None:
    upper: dict[str, set[str]] = {}
    for file in PACKAGE_FILES:
        own = tier(file.replace("/", "."))
        reached = {tier(name) for name in imported(file)} & TIERS.keys()
        upper[file] = reached - {own} - TIERS[own]
    assert not {file: names for file, names in upper.items() if names}


def test_files_import_other_tiers_through_their_surface() -> None:
    found = {file: past_surface(file) for file in PACKAGE_FILES}
    wrong = {file: names for file, names in found.items() if names}
    assert not wrong, "import these from the package, which re-exports them"


def past_surface(file: str) -> set[str]:
    """Modules of other tiers that a file imports by path, without need."""
    own = tier(file.replace("/", "."))
    if own == "meshwright":
        return set()
    inside = {
        name
        for name in imported(file)
        if tier(name) in TIERS.keys() - {own} and "." in name and module_file(name)
    }
    doors = {name for name in inside for door in DOORS if f"{name}.".startswith(f"{door}.")}
    inside -= {name for name in inside if name in exported(tier(name))}
    inside -= {*SURFACES, *(name for surface in SURFACES for name in exported(surface))}
    return inside - doors


@functools.cache
def exported(package: str) -> set[str]:
    """Names that a package hands on: `ir.check` is a function there, and the file of that name."""
    tree = parsed(f"{package.replace('.', '/')}/__init__.py")
    return {
        f"{package}.{alias.asname}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }


def test_nothing_is_imported_inside_a_function() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    indented = re.compile(r"^[ \t]+(?:from|import)\b", re.MULTILINE)
    nested = [
        f"{file}:{inner.lineno}"
        for file in ALL_FILES
        if indented.search((ROOT / file).read_text("utf-8"))
        for outer in ast.walk(parsed(file))
        if isinstance(outer, functions)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    assert not nested, "move these to the top of the file; a delayed import is a hidden cycle"


def test_file_graph_has_no_cycle() -> None:
    cycles = [sorted(group) for group in nx.strongly_connected_components(import_graph())]
    assert [cycle for cycle in cycles if len(cycle) > 1] == []


def room(file: str) -> str:
    """Entry of `planner/` that a file is in."""
    return file.split("/")[1].removesuffix(".py")


def test_the_planner_has_few_rooms() -> None:
    found = [path.name for path in (ROOT / "planner").iterdir() if path.name != "__pycache__"]
    assert {room(f"planner/{name}") for name in found} == {name for row in FLOORS for name in row}
    assert len(found) <= MAX_ENTRIES


def test_rooms_of_the_planner_import_downwards_only() -> None:
    floor = {name: height for height, names in enumerate(FLOORS) for name in names}
    back = [
        f"{importer} -> {imported}"
        for importer, imported in import_graph().edges
        if importer.startswith("planner/") and imported.startswith("planner/")
        if room(importer) != room(imported) and floor[room(importer)] <= floor[room(imported)]
    ]
    assert not back, "move what is imported down, or return a value to a room above"


def test_jax_is_imported_at_the_edges_only() -> None:
    users = {file for file in PACKAGE_FILES if {tier(name) for name in imported(file)} & JAX_FAMILY}
    inner = {file for file in users if not file.startswith(JAX_EDGES)}
    assert inner == set(PLANNER_FRONT), "keep JAX to the edges, and PLANNER_FRONT true"


def test_private_parts_of_jax_are_imported_in_one_file() -> None:
    words = re.compile("_src|extend|interpreters")  # of files with others nothing is parsed
    near = [file for file in ALL_FILES if words.search((ROOT / file).read_text("utf-8"))]
    private = ("jax._src", "jax.extend", "jax.interpreters")
    users = [file for file in near if any(name.startswith(private) for name in imported(file))]
    assert users == sorted(JAX_INTERNALS)


def test_lower_tiers_load_without_jax() -> None:
    lower = ", ".join(name for name in PACKAGES if name != "planner")
    program = f"import sys, {lower}; sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_files_stay_within_the_line_budget() -> None:
    lines = {file: len((ROOT / file).read_text("utf-8").splitlines()) for file in ALL_FILES}
    long = {file: count for file, count in lines.items() if count > MAX_LINES}
    assert not long, "a file holds one idea; split it"


def test_files_with_basic_types_are_listed() -> None:
    mark = "# pyright: basic"
    found = [file for file in PACKAGE_FILES if (ROOT / file).read_text("utf-8").startswith(mark)]
    assert found == sorted(BASIC), "keep the list BASIC true"
