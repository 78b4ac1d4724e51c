"""The file itself: read strictly, written all or nothing, the same bytes for the same plan."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import jax
import msgspec
import pytest

from planner import Plan, PlanError, load, plan
from planner.files import plan_file as planfile
from planner.files.plan_file import FILE_VERSION
from planner.files.program_plan import decisions_of, rows_of
from tests.planner.programs import PARAMS, X, mlp, struct
from tests.planner.sealing import resealed, with_program


def infer(params: Any, x: Any) -> Any:
    return mlp(params, x)


@pytest.fixture(name="made", scope="module")
def _made() -> Plan:
    return plan(infer, PARAMS, X, cluster="8xhost", mesh=(2, 4), pins=(("x", "[x,-]"),),
                baselines=False)  # fmt: skip


@pytest.fixture(name="saved")
def _saved(made: Plan, tmp_path: Path) -> Path:
    made.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def refused(path: Path, *words: str) -> None:
    with pytest.raises(PlanError) as found:
        load(path)
    error = found.value
    assert error.kind == "plan-file"
    assert error.where == str(path)
    assert error.remedy
    assert len(str(error)) < 500
    for word in words:
        assert word in str(error)


def changed(path: Path, **keys: object) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return path


# --- form --------------------------------------------------------------------------------------


def test_the_file_is_json_with_sorted_decisions(made: Plan, saved: Path) -> None:
    raw = json.loads(saved.read_text())
    assert raw["format"] == "meshwright-plan"
    assert raw["version"] == FILE_VERSION
    assert raw["pipeline"] is None
    (stage,), (program,) = raw["stages"], raw["programs"]
    assert stage["devices"] == [0, 8]
    assert program["mesh"] == [["x", 2], ["y", 4]]
    assert program["ops"] == sorted(program["ops"])
    assert [row[:2] for row in program["values"]] == sorted(row[:2] for row in program["values"])
    assert program["cluster"]["name"] == "8xhost"
    assert saved.read_bytes().endswith(b"\n")


def test_what_is_read_is_what_was_written(made: Plan, saved: Path) -> None:
    found = planfile.read(saved)
    assert msgspec.json.encode(found, order="deterministic") == msgspec.json.encode(
        made.file, order="deterministic"
    )
    assert found.programs[0].ops == made.program.ops
    assert found.programs[0].values == made.program.values


def test_decisions_become_rows_and_back(made: Plan) -> None:
    found = decisions_of(made.program, "here")
    assert rows_of(found) == (made.program.ops, made.program.values)
    assert found.mesh == made.mesh


# --- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated(saved: Path, part: float) -> None:
    data = saved.read_bytes().rstrip()
    saved.write_bytes(data[: int(len(data) * part)])
    refused(saved, "cut short")


@pytest.mark.parametrize(
    "data",
    [b"\xff\xfe\x00", b"null", b"3", b"[]", b'"plan"', b"{}x", b"[" * 100_000, b'{"a":' * 100_000,
     b"{'format': 1}", b"\x80\x04K\x01."],
    ids=["binary", "null", "number", "list", "text", "tail", "deep lists", "deep maps", "python",
         "pickle"],
)  # fmt: skip
def test_not_a_plan(saved: Path, data: bytes) -> None:
    saved.write_bytes(data)
    refused(saved)


def test_another_format(saved: Path) -> None:
    refused(changed(saved, format="alpa-plan"), "alpa-plan", "meshwright plan -o")
    saved.write_text("{}")
    refused(saved, "format ''")
    refused(changed(saved, format="x" * 10_000))


def test_another_version(saved: Path) -> None:
    refused(changed(saved, version=FILE_VERSION + 1, planner="9.9"), f"version {FILE_VERSION}")
    refused(changed(saved, version=FILE_VERSION + 1, planner="9.9"), "'9.9'")
    refused(changed(saved, version="1"), "version")
    refused(changed(saved, version=10**400))


@pytest.mark.parametrize("form", ["meshwright-plan", "meshwright-pipeline"])
def test_an_older_version_names_the_command_that_makes_it_anew(saved: Path, form: str) -> None:
    old = {"format": form, "version": 3, "planner": "0.1", "name": "step", "cluster":
           {"name": "my machine.yaml"}}  # fmt: skip
    saved.write_text(json.dumps(old))
    command = f"meshwright plan FILE.py:step --cluster 'my machine.yaml' -o {saved}"
    refused(saved, "plan-file version 3", command)


def test_unknown_and_missing_keys(saved: Path) -> None:
    refused(changed(saved, extra=1), "unknown field `extra`")
    raw = json.loads(saved.read_text())
    del raw["extra"]
    for key in raw:
        saved.write_text(json.dumps({k: v for k, v in raw.items() if k != key}))
        refused(saved)


def test_what_was_changed_since_it_was_written_is_refused(saved: Path) -> None:
    """Also where all is in order: figures and decisions are those that were written together."""
    raw = json.loads(saved.read_text())
    for key in ("step_s", "lower_bound_s", "peak_bytes", "argument_bytes", "limit_bytes"):
        saved.write_text(json.dumps(with_program(raw, **{key: raw["programs"][0][key] * 1.01})))
        refused(saved, "changed after it was written")
    others: dict[str, Any] = {"name": "g", "origin": "fsdp", "warnings": ["w"], "baselines": {}}
    for key, value in others.items():
        if raw["programs"][0][key] != value:
            saved.write_text(json.dumps(with_program(raw, **{key: value})))
            refused(saved, "changed after it was written")
    saved.write_text(json.dumps(raw))
    for key, value in {"planner": "9", "jax": "9", "stages": 2 * raw["stages"], "seal": ""}.items():
        refused(changed(saved, **{key: value}), "changed after it was written")
        saved.write_text(json.dumps(raw))
    assert planfile.encoded(planfile.read(saved)) == planfile.encoded(planfile.decoded(
        json.dumps(dict(reversed(raw.items())), indent=3).encode(), "here"
    ))  # fmt: skip


def test_invalid_text_is_refused(saved: Path) -> None:
    data = saved.read_bytes()
    for place in (b'"shard_map"', b'"8xhost"', b'"OPTIMAL"', b'"planner"'):
        assert place in data
        saved.write_bytes(data.replace(place, place[:3] + b"\xff" + place[4:], 1))
        refused(saved)


def test_figures_that_contradict_each_other_are_refused(saved: Path) -> None:
    """Though sealed: the parts of a sum, a step and its bound."""
    raw = json.loads(saved.read_text())
    (program,) = raw["programs"]
    step_s = program["step_s"]
    for keys, words in (
        ({"step_s": 2 * step_s}, "its parts take"),
        ({"communication_s": 1.0}, "that communication takes"),
        ({"exposed_s": 1.0, "step_s": program["compute_s"] + 1.0}, "exposed communication takes"),
        ({"peak_bytes": 1.0}, "its peak is"),
        ({"lower_bound_s": 2 * step_s}, "below its bound"),
        ({"lower_bound_s": 0.5 * step_s, "stop": "OPTIMAL"}, "not proved"),
        ({"decided_ops": 1000}, "decides 1000 of"),
    ):
        saved.write_text(json.dumps(resealed(with_program(raw, **keys))))
        with pytest.raises(PlanError, match=words):
            load(saved)


def test_hidden_seconds_without_overlap_are_refused(tmp_path: Path) -> None:
    def products(x: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x @ a, x @ b

    x = struct(4096, 4096)
    made = plan(products, x, x, x, cluster="8xh100", mesh=(8,),
                pins=(("x", "[x,-]"), ("a", "[-,x]"), ("b", "[-,x]")))  # fmt: skip
    assert made.program.exposed_s < made.program.communication_s
    made.save(tmp_path / "plan.json")
    raw = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(resealed(with_program(raw, overlap=False))))
    with pytest.raises(PlanError, match="nothing runs beside compute"):
        load(tmp_path / "plan.json")


def test_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "missing.json", "No such file")
    refused(tmp_path, "folder")
    refused(tmp_path / ("x" * 300))
    refused(tmp_path / "nul\0byte.json")


def test_not_a_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a plain file")


def test_larger_than_any_plan(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planfile, "LARGEST_BYTES", 100)
    refused(saved, "more than any plan")


# --- writing -----------------------------------------------------------------------------------


def unwritable(made: Plan, path: Path, *words: str) -> None:
    with pytest.raises(PlanError) as found:
        made.save(path)
    assert found.value.kind == "plan-file"
    assert found.value.where == str(path)
    assert found.value.remedy
    for word in words:
        assert word in str(found.value)


def test_unwritable_targets_leave_nothing_behind(made: Plan, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    unwritable(made, tmp_path / "missing" / "plan.json", "No such file")
    unwritable(made, tmp_path / "folder", "folder")
    unwritable(made, tmp_path / "pipe", "not a plain file")
    unwritable(made, tmp_path / "file" / "plan.json")
    unwritable(made, tmp_path / ("x" * 300))
    unwritable(made, tmp_path / "nul\0byte.json")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_interrupted_write_leaves_the_old_plan(
    made: Plan, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    unwritable(made, saved, "No space left")
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(made: Plan, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        unwritable(made, tmp_path / "plan.json", "Permission denied")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_the_mesh_line_says_which_axes_leave_a_host() -> None:
    for cluster, axes, words in (
        ("16xh100", {"a": 2, "b": 8}, "(from: search; a between hosts, b within one)"),
        ("8xh100", {"a": 2, "b": 4}, "(from: search)"),
    ):
        found = plan(infer, PARAMS, X, cluster=cluster, mesh=axes, baselines=False)
        (line,) = (row for row in str(found).splitlines() if row.startswith("  mesh "))
        assert line.endswith(words)
