"""The plan for rows of 32,769 columns and more: which design, how many columns a program. Pure: no torch, no GPU.

In: the shape, element size, mode and alignment of a call, and the GPU's properties. Out: a `LongRowsPlan`, or None.
"""

from __future__ import annotations

from dataclasses import dataclass

from softmax_exp.kernels.gpu import H200, Gpu, next_power_of_2, reads_of

DESIGNS = ("shared", "held", "partial")
# A row's; the hash by which waiting programs share the missing ones leaves 11 bits to a chunk's number.
MAX_CHUNKS = 1024
_KIB, _MIB = 2**10, 2**20
_MOST_COLUMNS_A_PROGRAM = 32768


@dataclass(frozen=True)
class LongRowsPlan:
    """How long rows are computed.

    design: `shared`: a program holds its chunk of a row in registers, and waits for the sums of the row's other
    programs; `held`: the same, with half of the chunk in shared memory; `partial`: a kernel of sums, then one that
    reads again. chunk: columns a program, of n_chunks a row. tile: columns that its threads hold side by side.
    max_registers: a thread's, which sets how many programs run at once; None: the compiler's.
    spins: polls of a missing sum before a program computes it itself. access: `aligned`, `shifted`, `scalar`.
    reads: as of `Plan`.
    """

    design: str
    chunk: int
    tile: int
    n_chunks: int
    num_warps: int
    max_registers: int | None
    spins: int
    access: str
    reads: str


def choose(
    n_rows: int, n_cols: int, itemsize: int, mode: str = "forward", access: str = "aligned", gpu: Gpu = H200
) -> LongRowsPlan | None:
    """The plan for n_rows rows of n_cols elements of `itemsize` bytes (2 or 4); None if there is none: rows too long.

    mode: `forward` or `backward`. Numbers from sweeps on an H200: see docs/long_rows.md.
    """
    row_bytes = n_cols * itemsize
    if n_rows * row_bytes > 24 * _MIB:
        for design, chunk, registers in _candidates(row_bytes, itemsize, mode, access, gpu):
            # In backward, elements of 16 bits lost up to 2 % by it.
            last = mode == "forward" or (itemsize == 4 and row_bytes <= _MIB)
            reads = reads_of(n_rows * row_bytes, mode, gpu) if last else ""
            plan = _planned(design, chunk, 4, registers, n_cols, itemsize, access, reads)
            # With less than two rows at once the memory idles while programs wait: `partial` is faster then.
            if plan.n_chunks <= min(MAX_CHUNKS, 0.5 * resident_programs(plan, itemsize, gpu)):
                return plan
    # Few programs' worth of work, or rows longer than the chip holds: nothing is won by keeping chunks on chip.
    if n_cols > 512 * _MOST_COLUMNS_A_PROGRAM:
        return None
    chunk = min(max(2048, next_power_of_2(-(-n_cols // 256))), _MOST_COLUMNS_A_PROGRAM)
    return _planned("partial", chunk, max(4, chunk // 1024), None, n_cols, itemsize, access, "")


def _candidates(row_bytes: int, itemsize: int, mode: str, access: str, gpu: Gpu) -> list[tuple[str, int, int]]:
    """(design, columns a program, registers a thread), the best first."""
    if mode == "backward":
        if row_bytes > 2 * _MIB:
            return [("shared", 32 * _KIB // itemsize, 168)]
        if access == "shifted":
            return [("shared", 20 * _KIB // itemsize, 128)]  # with the ends of a row, threads spill from 24 KiB on
        if access == "scalar" and itemsize == 2:
            return [("shared", 8 * _KIB // itemsize, 96)]
        # Longer chunks of longer rows, or more programs: 1 to 2 % faster.
        if itemsize == 4 and 480 * _KIB <= row_bytes <= _MIB:
            return [("shared", 32 * _KIB // itemsize, 168)]
        if itemsize == 2 and 240 * _KIB <= row_bytes <= 512 * _KIB:
            return [("shared", 16 * _KIB // itemsize, 96)]
        return [("shared", 24 * _KIB // itemsize, 128)]
    if access == "scalar":
        return [("shared", 24 * _KIB // itemsize, 128), ("shared", 64 * _KIB // itemsize, 168)]
    in_registers = [("shared", 64 * _KIB // itemsize, 168), ("shared", 32 * _KIB // itemsize, 128)]
    if access == "shifted":
        return [("shared", (24 if itemsize == 4 else 32) * _KIB // itemsize, 96), *in_registers]
    # One or two programs a row of up to 64 KiB each would be unlike in size, or few: 2 to 8 % slower.
    if itemsize == 2 and row_bytes < 96 * _KIB:
        return [("shared", 48 * _KIB // itemsize, 128), *in_registers]
    if itemsize == 2 and row_bytes < 120 * _KIB:
        return [("shared", 32 * _KIB // itemsize, 96), *in_registers]
    if itemsize == 4 and row_bytes < _MIB:
        return in_registers[::-1]
    if row_bytes < 3 * _MIB // 2 or gpu.capability[0] not in (9, 10):
        return in_registers
    on_chip = [("held", 64 * _KIB // itemsize, 96), ("held", 128 * _KIB // itemsize, 168)]
    return on_chip if row_bytes <= 12 * _MIB else on_chip[::-1]


def resident_programs(plan: LongRowsPlan, itemsize: int, gpu: Gpu) -> int:
    """How many programs of `plan` the GPU runs at once, by registers and (228 KiB of) shared memory."""
    a_sm = gpu.registers_per_sm // (32 * plan.num_warps * (plan.max_registers or 128))
    if plan.design == "held":
        a_sm = min(a_sm, 228 * _KIB // (plan.chunk // 2 * itemsize + 2 * _KIB))
    return gpu.n_sms * a_sm


def _planned(
    design: str, most: int, num_warps: int, registers: int | None, n_cols: int, itemsize: int, access: str, reads: str
) -> LongRowsPlan:
    """The plan that gives programs of one row alike many columns, at most `most`."""
    tile = 1024 if design == "held" else num_warps * 512 // itemsize
    step = 2 * tile if design == "held" else tile
    # A shifted row begins up to a vector, less one element, into its first chunk.
    span = n_cols + (16 // itemsize - 1 if access == "shifted" else 0)
    chunk = -(-span // -(-span // most) // step) * step
    # About 0.7 us a poll: several times what the memory needs for a row, so that only programs that wait for one that
    # is not running run out of it.
    spins = 256 + n_cols * itemsize // 2**17
    return LongRowsPlan(design, chunk, tile, -(-span // chunk), num_warps, registers, spins, access, reads)
