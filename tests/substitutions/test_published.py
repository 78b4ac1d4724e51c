"""Readers of rule files: all rules of the published sets, and no hostile file."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pytest

from substitutions import RuleError, read_rules
from tests.substitutions.published import (
    EQUATIONS,
    FILES,
    FLEXFLOW,
    FOLDER,
    PUBLISHED_COUNTS,
    TASO,
    rules,
)


def content(name: str) -> bytes:
    return gzip.decompress((FOLDER / name).read_bytes())


@pytest.mark.parametrize("name", PUBLISHED_COUNTS)
def test_reads_as_many_rules_as_the_authors_say(name: str) -> None:
    assert len(rules(name)) == PUBLISHED_COUNTS[name]


@pytest.mark.parametrize("name", FILES)
def test_content_decides_the_format(name: str, tmp_path: Path) -> None:
    plain = tmp_path / name.removesuffix(".gz")
    plain.write_bytes(content(name))
    assert read_rules(plain) == rules(name)


def test_both_texts_of_the_multi_rules_agree() -> None:
    pairs = zip(rules("multi_rules.txt.gz"), rules("converted_multi.txt.gz"), strict=True)
    assert all(str(a) == str(b) for a, b in pairs)


def test_the_same_rules_are_among_the_equations() -> None:
    """TENSAT's equations hold TASO's published rules of one output, as text."""
    texts = {str(rule).partition(" where ")[0] for rule in rules(EQUATIONS)}
    adds = [r for r in rules(TASO) if {op.kind for op in (*r.source, *r.target)} == {"add"}]
    assert adds
    assert sum(str(rule).partition(" where ")[0] in texts for rule in adds) > 0


@pytest.mark.parametrize("name", [FLEXFLOW, TASO, EQUATIONS])
@pytest.mark.parametrize("share", [0.01, 0.37, 0.73, 0.999])
def test_a_file_cut_short_is_refused_or_shorter(name: str, share: float, tmp_path: Path) -> None:
    data = content(name)
    path = tmp_path / name.removesuffix(".gz")
    path.write_bytes(data[: int(len(data) * share)])
    found = ()
    with contextlib.suppress(RuleError):
        found = read_rules(path)
    assert found == rules(name)[: len(found)]


MAPPED = {"_t": "MapOutput", "srcOpId": 0, "srcTsId": 0, "dstOpId": 0, "dstTsId": 0}
RULE = {"_t": "Rule", "name": "r", "dstOp": [], "mappedOutput": [MAPPED]}


def with_op(**changes: object) -> bytes:
    op = {"_t": "Operator", "type": "OP_RELU", "para": [], "input": [
        {"_t": "Tensor", "opId": -1, "tsId": 0}]} | changes  # fmt: skip
    rule = RULE | {"srcOp": [op], "dstOp": [op]}
    return json.dumps({"_t": "RuleCollection", "rule": [rule]}).encode()


HOSTILE = {
    "empty.json": b"",
    "blank.json": b"  \n",
    "deep.json": b'{"rule": ' + b"[" * 100_000,
    "other.json": b'{"rule": []}',
    "list.json": b'{"_t": "RuleCollection", "rule": 7}',
    "unknown.json": with_op(type="OP_FFT"),
    "number.json": with_op(type=3),
    "array.json": b"[1, 2]",
    "name.json": with_op().replace(b'"name": "r"', b'"name": "\\u001b[31m"'),
    "outputs.json": with_op().replace(
        b'"mappedOutput": [', b'"mappedOutput": [' + 20 * (json.dumps(MAPPED) + ",").encode()
    ),
    "self.json": with_op(input=[{"_t": "Tensor", "opId": 0, "tsId": 0}]),
    "later.json": with_op(input=[{"_t": "Tensor", "opId": 9, "tsId": 0}]),
    "huge.json": with_op(input=[{"_t": "Tensor", "opId": -1, "tsId": 10**30}]),
    "many.json": with_op(input=[{"_t": "Tensor", "opId": -1, "tsId": 0}] * 9),
    "stranger.json": with_op(input=[{"_t": "Tensor", "opId": -77, "tsId": 0}]),
    "degree.json": with_op(type="OP_PARTITION", para=[
        {"_t": "Parameter", "key": "PM_PARALLEL_DIM", "value": 1},
        {"_t": "Parameter", "key": "PM_PARALLEL_DEGREE", "value": 10**8}]),
    "varint.pb": b"\x0a" + b"\xff" * 20,
    "length.pb": b"\x0a\xff\xff\xff\x7f",
    "wire.pb": b"\x0b\x00",
    "optype.pb": b"\x0a\x04\x0a\x02\x08\x63",
    "deep.txt": b"relu(" * 200 + b"input_1" + b")" * 200 + b"==input_1",
    "unknown.txt": b"fft(input_1)==input_1",
    "half.txt": b"relu(input_1)==",
    "input.txt": b"relu(input_99)==relu(input_1)",
    "bytes.txt": b"relu(\xff\xfe)==x",
    "no-tensor.txt": b"relu(3)==input_1",
    "torn.pb.gz": gzip.compress(b"\x0a\x00" * 1000)[:20],
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_clear_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(HOSTILE[name])
    with pytest.raises(RuleError) as caught:
        read_rules(path)
    assert name in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * (40 * 2**20)))
    with pytest.raises(RuleError, match="larger than"):
        read_rules(path)
