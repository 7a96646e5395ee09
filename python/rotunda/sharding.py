"""Who owns which tokens, and moving tensors between the whole sequence and this rank's rows."""

import torch
import torch.distributed as dist

from . import _core
from .group import Group
from .ops import balanced_for


class Sharding:
    """Which tokens of a sequence each rank of a group owns, and in which order.

    seqlen: tokens of the whole sequence (or of the packed batch, then cu_seqlens' last number).
    cu_seqlens: offsets of packed documents. dual_chunk_doc and balanced go by them.
    kind: "dual_chunk" (zigzag), "dual_chunk_doc", "contiguous", "striped", "balanced".
    window: for balanced alone. It shares out the work of causal attention within the documents, here within a window of
        this many keys to the left too, whatever the masks of the single layers are.
    """

    def __init__(self, seqlen=None, group=None, *, kind="dual_chunk", cu_seqlens=None, chunk_size=0, window=None):
        self.group = Group.of(group)
        self.kind, self.chunk_size, self.window = kind, chunk_size, window
        self.cu_seqlens = None
        if cu_seqlens is not None:
            self.cu_seqlens = torch.as_tensor(cu_seqlens, dtype=torch.int64).cpu()
            seqlen = int(self.cu_seqlens[-1])
        if seqlen is None:
            raise ValueError("a Sharding needs seqlen, or the cu_seqlens of a packed batch")
        self.seqlen = int(seqlen)
        self._map = _core.token_map(self._problem(), kind, self.group.size, chunk_size)
        self._tokens = {}

    def _problem(self):
        values = {"s_q": self.seqlen}
        if self.cu_seqlens is not None:
            values = {"layout": "thd", "cu_q": ",".join(map(str, self.cu_seqlens.tolist()))}
        return balanced_for(values, self.window)

    @property
    def rows(self):
        """Rows that this rank owns."""
        return self._map.rows(self.group.rank)

    def tokens(self, rank=None):
        """Tokens of a rank (default: this one) in the order of its rows: their positions in the whole sequence."""
        rank = self.group.rank if rank is None else rank
        if rank not in self._tokens:
            stride = self._map.stride
            runs = [torch.arange(token, token + n * stride, stride) for token, n in self._map.runs(rank)]
            self._tokens[rank] = torch.cat(runs) if runs else torch.empty(0, dtype=torch.int64)
        return self._tokens[rank]

    def position_ids(self, device=None):
        """Position of each of this rank's tokens within its document (or the sequence) [1, rows]."""
        tokens = self.tokens()
        if self.cu_seqlens is not None:
            document = torch.searchsorted(self.cu_seqlens, tokens, right=True) - 1
            tokens = tokens - self.cu_seqlens[document]
        return tokens.unsqueeze(0).to(device)

    def shard(self, tensor, dim=1):
        """This rank's rows of a whole tensor. Its gradient is zero in the rows of others."""
        if tensor.shape[dim] != self.seqlen:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} has {tensor.shape[dim]} rows in axis {dim}; the sharding is "
                f"of {self.seqlen}"
            )
        return tensor.index_select(dim, self.tokens().to(tensor.device))

    def unshard(self, tensor, dim=1):
        """The whole tensor from all ranks' rows (collective). Differentiable for what every rank does with the whole
        alike: the gradient of this rank's rows is taken from its own."""
        if tensor.shape[dim] != self.rows:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} has {tensor.shape[dim]} rows in axis {dim}; rank "
                f"{self.group.rank} owns {self.rows}"
            )
        return _Unshard.apply(tensor, self, dim % tensor.dim())


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, sharding, dim):
        ctx.sharding, ctx.dim = sharding, dim
        group = sharding.group
        if group.size == 1:
            return tensor.clone()
        local = tensor.movedim(dim, 0).contiguous()
        most = max(sharding._map.rows(rank) for rank in range(group.size))
        padded = local.new_zeros((most, *local.shape[1:]))
        padded[: local.shape[0]] = local
        parts = [torch.empty_like(padded) for _ in range(group.size)]
        dist.all_gather(parts, padded, group=group.process_group)
        whole = local.new_empty((sharding.seqlen, *local.shape[1:]))
        for rank, part in enumerate(parts):
            tokens = sharding.tokens(rank).to(tensor.device)
            whole[tokens] = part[: len(tokens)]
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx, gradient):
        tokens = ctx.sharding.tokens().to(gradient.device)
        return gradient.index_select(ctx.dim, tokens), None, None


def shard(tensor, *, dim=1, group=None, kind="dual_chunk", cu_seqlens=None, chunk_size=0):
    """This rank's rows of a tensor that every rank has whole. For several tensors make one Sharding."""
    sharding = Sharding(tensor.shape[dim], group, kind=kind, cu_seqlens=cu_seqlens, chunk_size=chunk_size)
    return sharding.shard(tensor, dim)


def unshard(tensor, seqlen, *, dim=1, group=None, kind="dual_chunk", cu_seqlens=None, chunk_size=0):
    """The whole tensor from all ranks' rows (collective)."""
    return Sharding(seqlen, group, kind=kind, cu_seqlens=cu_seqlens, chunk_size=chunk_size).unshard(tensor, dim)


def document_offsets(position_ids):
    """cu_seqlens of a packed batch from its position ids [1, s] or [s]: a 0 begins a document. int64, on the CPU."""
    positions = position_ids.flatten().cpu()
    begins = torch.nonzero(positions == 0).flatten()
    if positions.numel() == 0 or positions[0] != 0:
        begins = torch.cat([torch.zeros(1, dtype=torch.int64), begins])
    return torch.cat([begins, torch.tensor([positions.numel()])])


def shift_labels(labels, cu_seqlens=None, ignore_index=-100):
    """What each token of [b, s] has to predict: the label after it; nothing at the end of a sequence or document.

    Labels must be shifted before they are sharded, since the next token may be another rank's."""
    shifted = torch.full_like(labels, ignore_index)
    shifted[:, :-1] = labels[:, 1:]
    if cu_seqlens is not None:
        ends = torch.as_tensor(cu_seqlens, device=labels.device)[1:] - 1
        shifted[:, ends[ends >= 0]] = ignore_index
    return shifted
