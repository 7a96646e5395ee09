"""Exact attention, forward and backward, over sequences that are split across ranks (context parallelism).

    import rotunda

    sharding = rotunda.Sharding(seqlen=8192, group=group)          # who owns which tokens
    q, k, v = (sharding.shard(x, dim=1) for x in (q, k, v))        # this rank's rows
    out = rotunda.attention(q, k, v, mask="causal", shard=sharding)

Models: rotunda.context_parallel (Hugging Face transformers), rotunda.megatron. docs/python.md has the whole story.
"""

try:
    import torch as _torch
except ModuleNotFoundError as error:
    raise ImportError(
        "rotunda needs PyTorch 2.4 or later, and there is none in this environment: install it first, as "
        "https://pytorch.org/get-started says (pip install torch)"
    ) from error
if not hasattr(_torch.library, "register_fake"):
    raise ImportError(f"rotunda needs PyTorch 2.4 or later, and this is {_torch.__version__}")

from ._core import (
    BadInputError,
    DeviceError,
    Error,
    InternalError,
    TransportError,
    UnsupportedError,
    components,
)
from ._core import version as _version
from .functional import attention, explain
from .group import Group
from .huggingface import context_parallel
from .sharding import Sharding, document_offsets, shard, shift_labels, unshard

__version__ = _version()

__all__ = [
    "BadInputError",
    "DeviceError",
    "Error",
    "Group",
    "InternalError",
    "Sharding",
    "TransportError",
    "UnsupportedError",
    "attention",
    "components",
    "context_parallel",
    "document_offsets",
    "explain",
    "shard",
    "shift_labels",
    "unshard",
]
