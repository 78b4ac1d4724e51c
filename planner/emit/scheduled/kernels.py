"""Seconds of the kernels of a compiled program, by the formulas that price ops of a plan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from costmodel import ComputeModel
from ir import pairs

from .instructions import Computation, HloProgram, Instruction, Tensor

# Instructions without a kernel.
FREE = frozenset({
    "add-dependency", "after-all", "bitcast", "constant", "domain", "get-dimension-size",
    "get-tuple-element", "opt-barrier", "parameter", "partition-id", "replica-id", "tuple",
})  # fmt: skip
_VIEWS = ("bitcast", "reshape", "copy", "convert", "transpose")
_SLICES = ("dynamic-slice", "gather", "slice")
_TRANSCENDENTAL = frozenset({
    "atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log",
    "log-plus-one", "logistic", "power", "rsqrt", "sine", "sqrt", "tan", "tanh",
})  # fmt: skip
_NO_ARITHMETIC = FREE | {
    "broadcast", "concatenate", "convolution", "copy", "custom-call", "dot", "dynamic-slice",
    "dynamic-update-slice", "gather", "iota", "pad", "reshape", "reverse", "slice", "transpose",
}  # fmt: skip
_DIMS = re.compile(r'(lhs|rhs)_(batch|contracting)_dim(?:s|ensions)"?[=:]\s*[{\[]([^}\]]*)[}\]]')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_SCORES = re.compile(r'"intermediate_tensor_shape".*?"dimensions": ?\[([^\]]*)\]')
_WINDOW = re.compile(r'"sliding_window_length": ?(\d+)')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# XLA's element types whose names do not begin as those of NumPy.
_NAMES = {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128"}
_LETTERS = {"f": "float", "s": "int", "u": "uint"}


def dtype_name(dtype: str) -> str:
    """The name that NumPy and the cost model give an element type of XLA."""
    if dtype in _NAMES:
        return _NAMES[dtype]
    name = _LETTERS.get(dtype[0], dtype[0]) + dtype[1:]
    return name.replace("e", "_e", 1) if name.startswith("float") and "e" in dtype else name


@dataclass(frozen=True, slots=True)
class KernelPrices:
    """Prices kernels by the products in them, their arithmetic and their memory traffic.

        seconds = max(products + arithmetic / rate, bytes / bandwidth) + launch

    Where a product is there, its launch is part of its price.
    """

    program: HloProgram
    compute: ComputeModel

    def seconds(self, kernel: Instruction, at: Computation) -> float:
        """Seconds of an instruction that is one kernel; 0 of one that has none.

        Args:
            kernel: not a loop, a conditional, a call or a collective.
            at: the computation that it is in.
        """
        if kernel.opcode in FREE:
            return 0.0
        fused = self.program.computations.get(kernel.called) if kernel.opcode == "fusion" else None
        inside = at if fused is None else fused
        parts = [kernel] if fused is None else list(self._flat(fused))
        products = sum(self._product_s(part, inside) for part in parts)
        moved = self._plain_bytes(kernel, at) if fused is None else self._fused_bytes(fused)
        memory = float(self.compute.memory_s(moved))
        busy = max(products + self._arithmetic_s(parts, inside), memory)
        return busy if products else busy + self.compute.launch_s

    def _flat(self, fused: Computation) -> Iterator[Instruction]:
        """Instructions of a fusion and of those inside it."""
        for part in fused.instructions.values():
            inner = self.program.computations.get(part.called) if part.opcode == "fusion" else None
            yield from [part] if inner is None else self._flat(inner)

    # --- products ----------------------------------------------------------------------------

    def _product_s(self, part: Instruction, at: Computation) -> float:
        target = _TARGET.search(part.line) if part.opcode == "custom-call" else None
        called = "" if target is None else target.group(1)
        operands = [i.results[0] for i in at.operands(part) if i.results]
        if len(operands) < 2:
            return 0.0
        if "cudnn$fmha" in called:
            return self._attention_s(part, called, operands)
        if part.opcode in ("dot", "scaled-dot") or "cublas" in called:
            return self._dot_s(part.line, operands[0], operands[1])
        if part.opcode == "convolution" or "cudnn$conv" in called:
            return self._convolution_s(part, called, operands)
        return 0.0

    def _dot_s(self, line: str, left: Tensor, right: Tensor) -> float:
        dims = {
            (side, what): [int(n) for n in re.findall(r"\d+", listed)]
            for side, what, listed in _DIMS.findall(line)
        }
        batch = math.prod(left.sizes[n] for n in dims.get(("lhs", "batch"), ()))
        depth = math.prod(left.sizes[n] for n in dims.get(("lhs", "contracting"), ()))
        each = max(batch * depth, 1)
        m, n = left.elements / each, right.elements / each
        return float(self.compute.gemm_s(batch, m, n, depth, dtype_name(left.dtype)))

    def _convolution_s(
        self, part: Instruction, called: str, operands: list[Tensor]
    ) -> float:  # fmt: skip
        """2 |output| |kernel| / output channels operations, whichever of the three it computes."""
        labels = _LABELS.search(part.line)
        if labels is None:
            return 0.0
        output, kernel = part.results[0], operands[1]
        if "BackwardInput" in called:
            output, kernel = operands[0], operands[1]
        elif "BackwardFilter" in called:
            output, kernel = operands[1], part.results[0]
        channels = max(kernel.sizes[labels.group(2).index("o")], 1)
        positions, window = output.elements / channels, kernel.elements / channels
        dtype = dtype_name(operands[0].dtype)
        return float(self.compute.convolution_s(1, positions, channels, window, dtype))

    def _attention_s(self, part: Instruction, called: str, operands: list[Tensor]) -> float:
        """A kernel of attention, by the sizes and the mask of its configuration."""
        shape = _SCORES.search(part.line)
        if shape is None:
            return 0.0
        batch, heads, queries, keys = map(int, re.findall(r"\d+", shape.group(1)))
        query, key = operands[:2]
        features = query.elements / max(batch * heads * queries, 1)
        key_heads = key.elements / max(keys * features, 1)
        window, causal = _WINDOW.search(part.line), "CAUSAL" in part.line
        each = pairs(
            queries, keys, causal=causal, window=int(window.group(1)) if window else None
        )  # fmt: skip
        last = min(queries, keys)  # query t sees keys up to t
        unequal = max(last - each / queries, 0.0) if causal and not window else 0.0
        return float(
            self.compute.attention_s(
                batch * heads, key_heads, each, keys, features, dtype_name(query.dtype),
                unequal=unequal, backward="Backward" in called,
            )
        )  # fmt: skip

    # --- the rest ----------------------------------------------------------------------------

    def _arithmetic_s(self, parts: list[Instruction], at: Computation) -> float:
        flops: dict[str, float] = {}
        for part in parts:
            if part.opcode in _NO_ARITHMETIC or not part.results:
                continue
            count = float(part.elements)
            if part.opcode in ("reduce", "reduce-window", "select-and-scatter"):
                count = float(max((i.elements for i in at.operands(part)), default=0))
            if part.opcode in _TRANSCENDENTAL:
                count *= self.compute.transcendental_flops
            dtype = part.results[0].dtype
            if dtype.startswith(("f", "bf", "c")):
                flops[dtype] = flops.get(dtype, 0.0) + count
        return sum(
            float(self.compute.flops_s(count, dtype_name(dtype))) for dtype, count in flops.items()
        )

    def _plain_bytes(self, kernel: Instruction, at: Computation) -> float:
        if kernel.opcode == "dynamic-update-slice":
            return 2.0 * next(at.operands(at.instructions[kernel.operands[1]]), kernel).nbytes
        if kernel.opcode in _SLICES:
            return 2.0 * kernel.nbytes
        written = kernel.results[:1] if kernel.opcode == "custom-call" else kernel.results
        # a library's other results are its work space
        return sum(t.nbytes for t in written) + sum(i.nbytes for i in at.operands(kernel))

    def _fused_bytes(self, fused: Computation) -> float:
        """Bytes that a fusion reads and writes; of what it slices or updates, the part."""
        moved = self._written(fused.root, fused)
        for part in fused.instructions.values():
            if part.opcode == "parameter":
                moved += self._read(part, fused)
        return moved

    def _written(self, part: Instruction, at: Computation) -> float:
        if part.opcode == "tuple":
            return sum(self._written(i, at) for i in at.operands(part))
        if part.opcode == "dynamic-update-slice":
            return at.instructions[part.operands[1]].nbytes
        if part.opcode in _VIEWS:
            source = next(at.operands(part), None)
            if source is not None and source.opcode == "dynamic-update-slice":
                return self._written(source, at)
        return part.nbytes

    def _read(self, part: Instruction, at: Computation) -> float:
        """Bytes of a parameter that are read, at most all of it."""
        total = 0.0
        for user in at.users(part.name):
            first = user.operands[0] == part.name
            if user.opcode in _SLICES and first:
                total += user.nbytes
            elif user.opcode in _VIEWS and user.elements == part.elements and not user.is_root:
                total += self._read(user, at) * part.nbytes / max(user.nbytes, 1)
            elif not (user.opcode == "dynamic-update-slice" and first):
                return float(part.nbytes)
        return min(total, float(part.nbytes))
