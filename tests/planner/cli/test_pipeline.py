"""`meshwright pipeline`: the answer's keys, exit statuses, wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.cli.runner import Run
from tests.planner.pipeline.published.helpers import DATA

BERT = DATA / "piper_bert32a100.json.gz"
VGG = DATA / "dapple_vgg-19-pbs-32.txt.gz"
MACHINE = ("--devices", "8", "--memory", "8GiB", "--bandwidth", "25GiB")
KEYS = {
    "planner", "feasible", "seconds_per_sample", "step_s", "stages", "schedule", "microbatches",
    "convention", "search_s",
}  # fmt: skip
STAGE = {"nodes", "devices", "data_parallel", "tensor_parallel", "recompute", "peak_bytes"}


def test_answers_with_the_keys_of_the_contract(run: Run) -> None:
    done = run("pipeline", BERT, *MACHINE, "--batch", "1920", "--json")
    assert done.status == 0
    found = json.loads(done.out)
    assert found.keys() >= KEYS
    assert found["planner"] == "ours"
    assert found["convention"] == "piper"
    assert found["seconds_per_sample"] == pytest.approx(0.165856, abs=6e-7)
    assert found["step_s"] == pytest.approx(1920 * found["seconds_per_sample"])
    layers = sorted(v for stage in found["stages"] for v in stage["nodes"])
    assert layers == list(range(37))
    for stage in found["stages"]:
        assert stage.keys() >= STAGE
        assert stage["devices"] == stage["data_parallel"] * stage["tensor_parallel"]
        assert stage["peak_bytes"] <= 8 << 30
        assert stage["recompute"] in ("none", "selective", "full")
    assert sum(stage["devices"] for stage in found["stages"]) <= 8


def test_same_question_same_answer(run: Run) -> None:
    words = ("pipeline", VGG, "-n", "4", "--memory", "16GB", "--bandwidth", "3GB", "--batch", "128")
    answers = [json.loads(run(*words, "--json").out) for _ in range(2)]
    for answer in answers:
        del answer["search_s"]
    assert answers[0] == answers[1]


def test_what_does_not_fit_says_by_how_much(run: Run) -> None:
    rest = ("--devices", "2", "--bandwidth", "3GB", "--batch", "64")
    done = run("pipeline", VGG, *rest, "--memory", "500MB", "--json")
    assert done.status == 1
    found = json.loads(done.out)
    assert not found["feasible"]
    assert found["stages"] == []
    assert found["needed_bytes"] > 500e6
    assert any(note.startswith("would help") for note in found["notes"])
    enough = str(int(found["needed_bytes"]) + 1)
    again = run("pipeline", VGG, *rest, "--memory", enough, "--json")
    assert again.status == 0


def test_idle_devices_are_named(run: Run) -> None:
    words = ("--devices", "32", "--memory", "16GB", "--bandwidth", "3GB", "--batch", "32")
    done = run("pipeline", VGG, *words, "--stages", "1", "--convention", "flush")
    assert done.status == 0
    assert "step" in done.out


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--planner", "magic"), "--planner"),
        (("--convention", "magic"), "--convention"),
        (("--stages", "99"), "--stages"),
        (("--microbatches", "7"), "--microbatches"),
        (("--per-host", "3"), "--per-host"),
        (("--per-host", "0"), "--per-host"),
        (("--devices", "0"), "--devices"),
        (("--devices", "1000000"), "--devices"),
        (("--model", "gpt"), "--model"),
        (("--batch", "0"), "--batch"),
        (("--memory", "lots"), "--memory"),
    ],
)
def test_wrong_use_is_one_error(run: Run, words: tuple[str, ...], where: str) -> None:
    usual = [*MACHINE, "--batch", "1920"]
    if words[0] in usual:
        at = usual.index(words[0])
        del usual[at : at + 2]
    done = run("pipeline", BERT, *usual, *words, "--json")
    assert done.status == 2
    error = json.loads(done.out)["error"]
    assert error["where"].startswith(where)
    assert error["remedy"]


def test_missing_options_and_files_are_named(run: Run, tmp_path: Path) -> None:
    done = run("pipeline", BERT, "--devices", "8", "--memory", "8GiB", "--json")
    assert done.status == 2
    assert json.loads(done.out)["error"]["where"] == "--bandwidth"
    done = run("pipeline", tmp_path / "none.txt", *MACHINE, "--batch", "8", "--json")
    assert done.status == 2
    assert json.loads(done.out)["error"]["kind"] == "bad-profile"


def test_unlike_hosts_from_a_file(run: Run, tmp_path: Path) -> None:
    hosts = [
        {"devices": 2, "memory_bytes": 16e9, "intra_bytes_per_s": 21e9,
         "inter_bytes_per_s": 1.25e9, "kind": "P3"},
        {"devices": 2, "memory_bytes": 16e9, "intra_bytes_per_s": 6e9,
         "inter_bytes_per_s": 6e9, "kind": "G4"},
    ]  # fmt: skip
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps(hosts))
    done = run(
        "pipeline", DATA / "gpt2_P3_1.npy", "--hosts", path, "--batch", "8", "--microbatches", "4",
        "--convention", "flush", "--json",
    )  # fmt: skip
    assert done.status == 0
    found = json.loads(done.out)
    for stage in found["stages"]:
        assert sum(stage["shares"]) == pytest.approx(1)
    hosts[0]["kind"] = "other"
    path.write_text(json.dumps(hosts))
    done = run("pipeline", DATA / "gpt2_P3_1.npy", "--hosts", path, "--batch", "8", "--json")
    assert done.status == 2
