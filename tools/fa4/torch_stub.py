"""Stands in for torch while kernels are exported, so that a build needs no torch.

FlashAttention-4 names torch's types in annotations and as keys; tracing calls nothing of it. The packages' own __init__
files import every kernel that they have, so bare package objects replace those too.
"""

import importlib
import importlib.util
import sys
import types


class _Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def _bare(name):
    """Registers package `name` without running its __init__."""
    parent, _, leaf = name.rpartition(".")
    if parent:
        paths = [f"{path}/{leaf}" for path in sys.modules[parent].__path__]
    else:
        paths = list(importlib.util.find_spec(name).submodule_search_locations)
    package = types.ModuleType(name)
    package.__path__ = paths
    sys.modules[name] = package


def install():
    for name in ("tvm_ffi", "cutlass"):  # before the stub: they look for a real torch
        importlib.import_module(name)
    for name in ("torch", "torch._subclasses", "torch._subclasses.fake_tensor"):
        sys.modules[name] = _Stub(name)
    sys.modules["torch"].__version__ = "0"
    for name in ("quack", "flash_attn", "flash_attn.cute"):
        _bare(name)
    importlib.import_module("quack.dsl")  # what quack's __init__ is needed for: indexing of tensors
