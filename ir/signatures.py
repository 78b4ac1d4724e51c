"""Number and element types of an op's operands and results, which factors do not determine.

A signature such as `"T T -> bool"` names the element type of each operand and result:

    T, U    a type that is the same at all of its places
    bool    that type
    _       any type
    X*      any number of operands or results from here on, each as X
    each    on both sides: every result is of the type of the operand in its place
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .errors import IRError
from .graph import Node
from .types import DTYPES, TensorType

_BY_SIGNATURE: Mapping[str, str] = {
    "T -> T": """
        acos acosh asin asinh atan atanh bessel_i0e bessel_i1e broadcast_in_dim cbrt ceil cholesky
        clz copy cos cosh cumlogsumexp cummax cummin cumprod cumsum device_put digamma erf erf_inv
        erfc exp exp2 expm1 floor from_host integer_pow lgamma log log1p log2 logistic name neg not
        one_minus_square population_count random_clone random_split reduce_and reduce_max
        reduce_min reduce_or reduce_precision reduce_prod reduce_sum reduce_window_max
        reduce_window_min reduce_window_sum reduce_xor reshape reshard rev round rsqrt
        sharding_constraint shift sign sin sinh slice sqrt square squeeze stop_gradient tan tanh
        tile to_host transpose
    """,
    "T T -> T": """
        add add_any and atan2 div igamma igamma_grad_a igammac max min mul mulhi nextafter or pad
        polygamma rem select_and_gather_add select_and_scatter_add shift_left
        shift_right_arithmetic shift_right_logical sub triangular_solve xor zeta
    """,
    "T T -> bool": "eq eq_to ge gt le le_to lt lt_to ne",
    "T T T -> T": "clamp regularized_incomplete_beta",
    "T T T T -> T T": "threefry2x32",
    "T T -> _": "complex",
    "_ -> bool": "is_finite",
    "_ -> _": """
        abs argmax argmin bitcast_convert_type conj convert_element_type imag random_bits
        random_seed random_unwrap random_wrap real
    """,
    "_ _ -> _": "conv_general_dilated dot_general",
    "_ _ _* -> _": "ragged_dot_general",
    "_ _ _ _ -> _": "scaled_dot scaled_matmul_wrapper",
    "T T T _ _ _ _ _ _ _ -> T float32*": "dot_product_attention_fwd_wrapper",
    "T T T _ _ _ _ _ _ _ float32 T T -> T T T _*": "dot_product_attention_bwd_wrapper",
    "T _ -> T": "gather pow random_fold_in",
    "T _ T -> T": "scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub",
    "T _* -> T": "dynamic_slice",
    "T T _* -> T": "dynamic_update_slice",
    "_ T T* -> T": "select_n",
    "T T* -> T": "concatenate polynomial stack",
    "T -> T*": "split unstack",
    "T -> T _": "top_k",
    "each -> each": "optimization_barrier sort",
    "-> _": "constant iota",
}

SIGNATURES: Mapping[str, str] = {
    op: signature for signature, ops in _BY_SIGNATURE.items() for op in ops.split()
}


# Attributes that are the element type of the result; without them, it is that of the operands.
_GIVEN: Mapping[str, str] = {
    "argmax": "index_dtype",
    "argmin": "index_dtype",
    "bitcast_convert_type": "new_dtype",
    "conv_general_dilated": "preferred_element_type",
    "convert_element_type": "new_dtype",
    "dot_general": "preferred_element_type",
    "scaled_dot": "preferred_element_type",
    "scaled_matmul_wrapper": "preferred_element_type",
    "iota": "dtype",
    "mul": "out_dtype",
}


def check_signature(node: Node, operands: Sequence[TensorType]) -> None:
    """Compares numbers and element types of operands and results; an unknown op may have any.

    Raises:
        IRError: if they do not follow the op's signature.
    """
    signature = SIGNATURES.get(node.op)
    if signature is None:
        return
    left, _, right = signature.partition("->")
    if left.strip() == "each":
        if tuple(operands) != node.outputs:
            raise IRError(
                f"{node.op}: it makes {_list(node.outputs)} of {_list(operands)}, expected equals"
            )
        return
    given = dict(node.attrs).get(_GIVEN[node.op]) if node.op in _GIVEN else None
    if given is not None:
        right = str(given)
    elif node.op in _GIVEN and len({type_.dtype for type_ in operands}) == 1:
        right = operands[0].dtype
    expected = f"{left.strip()} -> {right.strip()}"
    bound: dict[str, str] = {}
    sides = (("operands", left.split(), operands), ("results", right.split(), node.outputs))
    for side, words, types in sides:
        names = _spread(words, len(types))
        if len(names) != len(types):
            raise IRError(f"{node.op}: it has {len(types)} {side}, expected '{expected}'")
        if not all(_fits(n, t.dtype, bound) for n, t in zip(names, types, strict=True)):
            raise IRError(f"{node.op}: its {side} are {_list(types)}, expected '{expected}'")


def _spread(words: Sequence[str], count: int) -> list[str]:
    """The words with a final `X*` repeated to make up `count`."""
    if words and words[-1].endswith("*"):
        head = list(words[:-1])
        return head + [words[-1][:-1]] * (count - len(head))
    return list(words)


def _fits(name: str, dtype: str, bound: dict[str, str]) -> bool:
    if name in DTYPES:
        return dtype == name
    return name == "_" or bound.setdefault(name, dtype) == dtype


def _list(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "none"
