"""Where the rows of tensors lie in memory, as the kernels want it: three nested leading dimensions.

In: shapes and strides in elements (the softmax runs over the last dimension, whose stride is 1).
Out: sizes (outer, heads, queries) and each tensor's strides over them, and how wide a kernel may access them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """Sizes of the three leading dimensions, and one triple of strides a tensor."""

    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return math.prod(self.sizes)

    @property
    def flat(self) -> bool:
        """Whether one stride leads from each row to the next, in every tensor."""
        return self.sizes[:2] == (1, 1)

    def split(self, causal: bool, masked: bool) -> str:
        """Which rows' numbers must be split, as SPLIT of tile.py: for strides of `x`, of the `mask`, for the `query`.

        The first strides are x's. masked: whether there is a mask that does not depend on the query alone.
        """
        if self.flat:
            return "none"
        x_stride = self.strides[0]
        steps = (self.sizes[1] * self.sizes[2] * x_stride[2], self.sizes[2] * x_stride[2])
        if any(size > 1 and stride != step for size, stride, step in zip(self.sizes, x_stride, steps, strict=False)):
            return "x"
        return "mask" if masked else "query" if causal else "none"

    def last_offset(self, n_cols: int) -> int:
        """The largest offset of an element, in elements, in any of the tensors or in a contiguous one."""
        ends = [sum((n - 1) * step for n, step in zip(self.sizes, s, strict=True)) + n_cols for s in self.strides]
        return max(self.n_rows * n_cols, *ends)


def lay_out(leading: tuple[int, ...], strides: list[tuple[int, ...]], keep_last: bool) -> Rows | None:
    """Fold leading dimensions that follow one another in memory; None if more than three remain.

    keep_last: the last leading dimension (the queries of a mask) must stay by itself.
    """
    sizes: list[int] = []
    folded: list[list[int]] = [[] for _ in strides]
    for axis in reversed(range(len(leading))):
        size = leading[axis]
        if size == 1 and not (keep_last and axis == len(leading) - 1):
            continue
        steps = [0 if size == 1 else stride[axis] for stride in strides]
        follows = sizes and all(step == done[0] * sizes[0] for step, done in zip(steps, folded, strict=True))
        if follows and not (keep_last and len(sizes) == 1):
            sizes[0] *= size
        else:
            sizes.insert(0, size)
            for done, step in zip(folded, steps, strict=True):
                done.insert(0, step)
    if len(sizes) > 3:
        return None
    missing = 3 - len(sizes)
    full_sizes = (1,) * missing + tuple(sizes)
    full_strides = tuple((0,) * missing + tuple(done) for done in folded)
    return Rows(full_sizes, full_strides)  # type: ignore[arg-type]


def access_of(rows: Rows, n_cols: int, leads: list[int], vector: int) -> str:
    """`aligned`, `shifted` or `scalar`: how wide all tensors of `rows` and a contiguous output can be accessed.

    leads: elements between the 16-byte boundary before each tensor and its first element. `aligned` if every row
    begins at such a boundary and ends at one; `shifted` if the tensors' rows are alike in where they begin.
    """
    contiguous = (rows.sizes[1] * rows.sizes[2] * n_cols, rows.sizes[2] * n_cols, n_cols)
    used = [axis for axis in range(3) if rows.sizes[axis] > 1]
    starts = [[stride[axis] % vector for axis in used] for stride in rows.strides]
    if n_cols % vector == 0 and not any(leads) and not any(map(any, starts)):
        return "aligned"
    if not any(leads) and all(start == [contiguous[axis] % vector for axis in used] for start in starts):
        return "shifted"
    return "scalar"
