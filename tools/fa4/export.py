#!/usr/bin/env python3
"""Exports FlashAttention-4's kernels for Hopper as object files with a C interface. Needs no GPU.

  export.py --list SET         names of the kernels of a set (small, default, full): a line for those to export at once
  export.py FOLDER NAME…       writes FOLDER/NAME.o, its header NAME.h, and NAME.inc, its line in the table of kernels
"""

import os
import re
import sys
import time

import torch_stub

os.environ.update(FLASH_ATTENTION_ARCH="sm_90", CUTE_DSL_ARCH="sm_90a", FLASH_ATTENTION_NUM_SMS="132",
                  CUDA_VISIBLE_DEVICES="")

WIDTHS = {"d64": (64, 64), "d96": (96, 96), "d128": (128, 128), "d192v128": (192, 128), "d256": (256, 256)}


# Kinds of kernels (src/kernel/fa4/exported.hpp). Those in ONE exist a second time, for one slice of every batch entry.
KINDS = ("forward", "backward", "direct", "deterministic")
ONE = ("forward", "backward", "direct")
SMALL = ("forward", "backward")


def groups(kernel_set):
    widths = [w for w in WIDTHS if kernel_set != "small" or w in ("d64", "d128")]
    kinds = SMALL if kernel_set == "small" else KINDS + tuple("one_" + kind for kind in ONE)
    return [[f"fa4_{kind}_{dtype}_{width}" for kind in kinds] for dtype in ("bf16", "fp16") for width in widths]


def parsed(name):
    """(kind, one, dtype, width)"""
    *kind, dtype, width = name.split("_")[1:]
    return kind[-1], kind[0] == "one", dtype, width


def build(name):
    import kernels  # traces nothing yet, but takes a second

    kind, one, dtype, width = parsed(name)
    if kind == "forward":
        return kernels.forward(dtype, *WIDTHS[width], one=one)
    return kernels.backward(dtype, *WIDTHS[width], deterministic=kind == "deterministic", direct=kind == "direct",
                            one=one)


def accumulator(tile, groups, groups_of_rows, turned):
    """How warp groups share a tile of sums: those along its rows and along its columns, as the product that makes it
    has them; `turned` where that is the transposed one."""
    shared = (groups_of_rows, groups // groups_of_rows)
    return f"{tile}, {', '.join(map(str, shared[::-1] if turned else shared))}, {str(turned).lower()}"


def table_line(name, entry):
    """An X-macro line; src/kernel/fa4/exported.cpp says what its fields are."""
    import tiles

    kind, one, dtype, width = parsed(name)
    fields = f"{name}, {entry}, {str(one).lower()}"
    d, d_v = WIDTHS[width]
    if kind == "forward":
        tile = tiles.forward(d, d_v)
        return f"FA4_FORWARD({fields}, {dtype}, {d}, {d_v}, {tile.m_block_size})\n"
    tile = tiles.backward(d, d_v)
    groups_dq = 1 if tile.dQ_single_wg else tile.num_wg
    dq = accumulator(tile.m_block_size, groups_dq, tile.AtomLayoutMdQ, tile.dQ_swapAB)
    dkv = accumulator(tile.n_block_size, tile.num_wg, tile.AtomLayoutNdKV, tile.dKV_swapAB)
    return f"FA4_BACKWARD({fields}, {kind}, {dtype}, {d}, {d_v}, {dq}, {dkv})\n"


def main():
    if sys.argv[1] == "--list":
        print("\n".join(" ".join(names) for names in groups(sys.argv[2])))
        return
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    torch_stub.install()
    for name in sys.argv[2:]:
        begin = time.time()
        build(name).export_to_c(folder, name, name)
        with open(f"{folder}/{name}.h") as header:
            entry = re.search(r"^void (_mlir_\w*__mlir_ciface_\w+)\(void \*\*args", header.read(), re.M).group(1)
        with open(f"{folder}/{name}.inc", "w") as line:
            line.write(table_line(name, entry))
        print(f"{name}: {time.time() - begin:.1f} s, {os.path.getsize(f'{folder}/{name}.o')} bytes", flush=True)


if __name__ == "__main__":
    main()
