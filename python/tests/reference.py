"""Attention in float64, written for clearness: nothing of it is shared with the package.

Tensors are [b, s, h, d]; a mask is a bool tensor [b, s_q, s_k]."""

import torch


def attention(q, k, v, seen, scale=None, sink=None):
    """(out, lse [b, h, s]); rows that see nothing give 0 and -inf."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    if sink is not None:
        column = sink.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse[..., None] == -torch.inf, 0.0, (scores - lse[..., None]).exp())
    weights = torch.where(scores == -torch.inf, 0.0, weights)[..., : k.shape[1]]
    return torch.einsum("bhij,bjhd->bihd", weights, v), lse


def band(s_q, s_k, left=None, right=None, shift=0, batch=1):
    """Row i sees columns i + shift - left .. i + shift + right."""
    distance = torch.arange(s_k)[None, :] - torch.arange(s_q)[:, None] - shift
    seen = torch.ones(s_q, s_k, dtype=torch.bool)
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    return seen.expand(batch, s_q, s_k)


def documents(cu_seqlens, left=None, right=None, used=None):
    """Packed sequences as one mask over the whole buffer."""
    total = cu_seqlens[-1]
    seen = torch.zeros(1, total, total, dtype=torch.bool)
    for i, (begin, end) in enumerate(zip(cu_seqlens, cu_seqlens[1:])):
        length = end - begin if used is None else used[i]
        seen[0, begin : begin + length, begin : begin + length] = band(length, length, left, right)[0]
    return seen


def naive_error(q, k, v, dout, seen, dtype):
    """Largest errors of a plain algorithm in a dtype against float64: of out, dq, dk, dv."""

    def run(to):
        leaves = [x.to(dtype).to(to).requires_grad_() for x in (q, k, v)]
        out, _ = attention(*leaves, seen)
        out.backward(dout.to(dtype).to(to))
        return [out.detach(), *(x.grad for x in leaves)]

    return [(a.double() - b).abs().max().item() for a, b in zip(run(dtype), run(torch.float64))]
