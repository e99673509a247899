"""Compile a kernel for sm_90, without a GPU, as a call with these constants would; print what came of it as JSON.

A program of its own, since Triton's interpreter, which the other tests may use, replaces the compiler. In: one JSON
list of [kernel, dtype, options of the compiler, constants]. Out: one JSON list of counts of instructions and of
registers.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

os.environ.pop("TRITON_INTERPRET", None)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

from softmax_exp.kernels import backward, cluster, forward, long_rows_held, long_rows_shared, two_pass

TOOLS = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
KERNELS = {
    "tile_forward": forward.tile_forward,
    "tile_backward": backward.tile_backward,
    "two_pass_forward": two_pass.two_pass_forward,
    "two_pass_backward": two_pass.two_pass_backward,
    "shared_forward": long_rows_shared.shared_forward,
    "shared_backward": long_rows_shared.shared_backward,
    "partial_forward": long_rows_shared.partial_forward,
    "finish_forward": long_rows_shared.finish_forward,
    "held_forward": long_rows_held.held_forward,
    "cluster_forward": cluster.cluster_forward,
    "cluster_backward": cluster.cluster_backward,
}
DEFAULTS = dict(
    REST=0, PACKED=False, ROTATED=False, READS="evict_last", WIDE=False, SPLIT="none", CAUSAL=False, MASK="none",
    MASK_ACCESS="scalar", QUERIES=0, SCALED=False, SAFE=False, EXACT=False, OVERLAP=True,
)  # fmt: skip


def compile_one(kernel: str, dtype: str, options: dict, constants: dict) -> dict:
    """Counts of one kernel's LDG and STG (wide: 8 bytes and more), its local and shared accesses, and its registers.

    Also of barriers of a cluster (UCGABAR) and of stores to other programs' shared memory (STAS).
    """
    function = KERNELS[kernel]
    constants = DEFAULTS | constants
    if "PROGRAMS" in constants:
        lying = constants["PROGRAMS"], constants["VECTOR"], options["num_warps"]
        constants["LAYOUT"], constants["WORDS"] = cluster.layouts_of(*lying)
    signature, constexprs, attributes = {}, {}, {}
    for index, parameter in enumerate(function.params):
        name = parameter.name
        if name in constants or (name == "mask_ptr" and constants["MASK"] == "none"):
            signature[name], constexprs[(index,)] = "constexpr", constants.get(name)
        elif name.endswith("_ptr"):
            others = {"words_ptr": "*i64"} | ({"mask_ptr": "*i1"} if constants["MASK"] == "boolean" else {})
            signature[name] = others.get(name, f"*{dtype}")
            if name not in ("x_ptr", "dy_ptr"):
                attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if name.endswith("scale") else "i32"
    source = GluonASTSource if isinstance(function, GluonJITFunction) else ASTSource
    compiled = triton.compile(
        source(function, signature, constexprs, attributes),
        target=GPUTarget("cuda", 90, 32),
        options={"num_stages": 1} | options,
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        sass = subprocess.run([f"{TOOLS}/nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
        usage = subprocess.run([f"{TOOLS}/cuobjdump", "-res-usage", file.name], capture_output=True, text=True)
    registers = re.search(r"REG:(\d+)", usage.stdout + usage.stderr)
    operations = re.findall(r"\b(LDG|STG|LDL|STL|LDS|STS|LDSM|BAR|UCGABAR_ARV|UCGABAR_WAIT|STAS)\b([\w.]*)", sass)
    counts: dict[str, int] = {"registers": int(registers[1]) if registers else 0}
    for operation, suffix in operations:
        key = operation + (".wide" if operation in ("LDG", "STG") and re.search(r"\.(64|128)", suffix) else "")
        counts[key] = counts.get(key, 0) + 1
    return counts


if __name__ == "__main__":
    print(json.dumps([compile_one(*case) for case in json.loads(sys.argv[1])]))
