"""Tile sizes, read from FA4's own heuristics (flash_attn/cute/interface.py).

interface.py imports the kernels of every architecture; only these definitions are wanted, so they are taken from its
syntax tree. A change of theirs fails the build here.
"""

import ast
import os
from dataclasses import dataclass
from typing import Optional

import flash_attn.cute.flash_fwd_sm90 as _anchor

_WANTED = {"FwdConfig", "BwdConfig", "_tile_size_fwd_sm90", "_tile_size_bwd_sm90"}


def _definitions():
    path = os.path.join(os.path.dirname(_anchor.__file__), "interface.py")
    with open(path) as file:
        tree = ast.parse(file.read())
    body = [node for node in tree.body if getattr(node, "name", None) in _WANTED]
    if {node.name for node in body} != _WANTED:
        raise RuntimeError(f"{path} no longer defines {sorted(_WANTED)}")
    names = {"dataclass": dataclass, "Optional": Optional, "__name__": __name__}
    exec(compile(ast.Module(body, []), path, "exec"), names)
    return names


_names = _definitions()


def forward(d, d_v):
    """As for causal masks: FA4 makes tiles narrower for windows, which slices don't need."""
    return _names["_tile_size_fwd_sm90"](d, d_v, True, False)


def backward(d, d_v):
    """As for causal masks, but for d 128: the wider tiles of dense calls are faster with slices' masks, too."""
    return _names["_tile_size_bwd_sm90"](d, d_v, d != 128, False)
