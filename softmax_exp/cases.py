"""A case: one softmax problem, described without torch.

In: the shape, dtype, mode, mask, scale, distribution, layout, seed and device of a config.
Out: `Case`, with its row and column counts, the least bytes that must move, and a stable identity.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
DTYPE_ALIASES = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
}
MODES = ("forward", "backward", "full")
MASKS = ("none", "causal", "additive", "boolean")
DISTRIBUTIONS = (
    "normal",  # standard normal
    "large",  # normal, size 1e4
    "constant",  # every element 1
    "one_hot",  # one element of a row 50 above the others
    "shifted",  # normal + 1e7 and, in every second row, - 1e7 (1e4 in float16, which holds no more)
    "ties",  # rounded to integers: many equal maxima
    "tiny",  # differences of 1e-3
    "denormal",  # results that reach the dtype's subnormal numbers
    "causal",  # -inf right of the diagonal, which ends in the last column: as scores that were masked before
    "padded",  # the last quarter of each row -inf, every eighth row wholly -inf
    "nan",  # a NaN in every fourth row, beside a -inf in every eighth
    "inf",  # a +inf in every fourth row, two in every eighth
)
LAYOUTS = (
    "contiguous",
    "transposed",  # the last two dimensions swapped in memory
    "expanded",  # the first dimension has stride 0
    "offset",  # starts one element into its storage
    "padded",  # rows eight elements apart beyond their length
    "far",  # the first and the last row 2^31 elements apart or more: offsets overflow 32 bits; takes 4 GiB and up
)


@dataclass(frozen=True)
class Case:
    """One softmax over the last dimension of a tensor.

    `shape` is (batch, heads, seq_q, seq) for `workload="attention"` and (rows, cols) for `workload="matrix"`;
    a shape given directly may have any number of dimensions. `device` is the wish (`auto`, `cpu`, `cuda`, `cuda:1`);
    the measuring process resolves `auto`. `scale` multiplies x before the softmax; None means that none is applied.
    """

    shape: tuple[int, ...]
    dtype: str = "float16"
    mode: str = "forward"
    mask: str = "none"
    scale: float | None = None
    distribution: str = "normal"
    layout: str = "contiguous"
    seed: int = 0
    device: str = "auto"
    workload: str = "attention"

    @property
    def n_cols(self) -> int:
        """Length of a row: the size of the dimension that the softmax runs over."""
        return self.shape[-1] if self.shape else 1

    @property
    def n_rows(self) -> int:
        """Number of rows: the product of all other dimensions."""
        return math.prod(self.shape[:-1])

    @property
    def numel(self) -> int:
        """Number of elements of x."""
        return math.prod(self.shape)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of x."""
        return self.numel * ITEMSIZE[self.dtype]

    @property
    def mask_shape(self) -> tuple[int, ...] | None:
        """Shape of the mask tensor, (seq_q, seq) broadcast over batch and heads; None where there is no tensor."""
        if self.mask not in ("additive", "boolean"):
            return None
        return (1,) * (len(self.shape) - 2) + self.shape[-2:]

    @property
    def attended(self) -> int:
        """Elements of x that take part: all of them, or those on and below the diagonal of a causal mask.

        A causal mask is aligned to the last column, as in decoding: query i of q sees keys 0 to n_cols - q + i.
        """
        if self.mask != "causal":
            return self.numel
        n_queries, n_cols = self.shape[-2], self.n_cols
        per_matrix = sum(min(n_cols, max(0, n_cols - n_queries + i + 1)) for i in range(n_queries))
        return math.prod(self.shape[:-2]) * per_matrix

    @property
    def bytes_read(self) -> int:
        """Fewest bytes that one call must read: each input element that takes part, once.

        Forward reads x, whose elements stand in memory once even where the layout repeats them, and the mask; backward
        reads the output and its gradient; full does both, one after the other.
        """
        itemsize = ITEMSIZE[self.dtype]
        repeats = self.shape[0] if self.layout == "expanded" and len(self.shape) > 1 and self.shape[0] else 1
        forward = self.attended // repeats * itemsize
        if self.mask_shape is not None:
            forward += math.prod(self.mask_shape) * (1 if self.mask == "boolean" else itemsize)
        backward = 2 * self.attended * itemsize
        return {"forward": forward, "backward": backward, "full": forward + backward}[self.mode]

    @property
    def bytes_written(self) -> int:
        """Fewest bytes that one call must write: every element of each result, masked ones (zeros) included."""
        return self.tensor_bytes * (2 if self.mode == "full" else 1)

    @property
    def least_bytes(self) -> int:
        """Fewest bytes that one call must move: read + written."""
        return self.bytes_read + self.bytes_written

    @property
    def named_sizes(self) -> dict[str, int]:
        """The sizes that people sort by: n_rows, n_cols and, for attention, batch, heads, seq_q, seq."""
        sizes = {"n_rows": self.n_rows, "n_cols": self.n_cols}
        if self.workload == "attention" and len(self.shape) == 4:
            sizes |= dict(zip(("batch", "heads", "seq_q", "seq"), self.shape, strict=True))
        return sizes

    @property
    def title(self) -> str:
        """The case in words, e.g. `8x12x512x512 float16 forward`; what differs from the default is added."""
        words = ["x".join(map(str, self.shape)), self.dtype, self.mode]
        words += [f"{self.mask} mask"] if self.mask != "none" else []
        words += [f"scale {self.scale:g}"] if self.scale is not None else []
        words += [word for word, usual in ((self.distribution, "normal"), (self.layout, "contiguous")) if word != usual]
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return dataclasses.asdict(self) | {"shape": list(self.shape)}

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Case:
        """The case that `to_dict` described."""
        values: dict[str, Any] = {**fields, "shape": tuple(fields["shape"])}
        return Case(**values)


def stable_hash(value: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of a JSON value with sorted keys: the same in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def finite(value: Any) -> Any:
    """A JSON value with null in place of every NaN and infinity, which JSON has no words for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
