"""rotunda.attention."""

import torch

from . import _core, ops
from .group import Group
from .sharding import Sharding

_FLOAT8 = tuple(getattr(torch, name) for name in dir(torch) if name.startswith("float8"))
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# What others call it: here it is …
_OTHER_NAMES = {
    "causal": 'mask="causal" (or "causal_bottom_right", which is what flash-attn does where lengths differ)',
    "attn_mask_type": "mask",
    "softmax_scale": "scale",
    "window_size": "window",
    "sliding_window": "window=(sliding_window - 1, 0)",
    "cu_seqlens": "cu_seqlens_q and cu_seqlens_k",
    "cu_seqlens_kv": "cu_seqlens_k",
    "max_seqlen_q": "not needed",
    "max_seqlen_k": "not needed",
    "max_seqlen_kv": "not needed",
    "enable_gqa": "not needed: fewer KV heads are groups",
    "return_attn_probs": "return_lse",
    "qkv_format": "layout",
    "softmax_offset": "sink",
    "s_aux": "sink",
    "cp_group": "group",
    "cp_comm_type": "schedule",
    "block_table": "not supported: there are no paged caches",
    "qv": "not supported",
}


def attention(
    q,
    k,
    v,
    *,
    mask="none",
    window=None,
    align=None,
    prefix=0,
    chunk=0,
    slices=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    seqlen_q=None,
    seqlen_k=None,
    scale=None,
    sink=None,
    layout=None,
    group=None,
    shard="dual_chunk",
    chunk_size=0,
    schedule="auto",
    backward_schedule=None,
    inner=None,
    kernel="auto",
    deterministic=False,
    return_lse=False,
    return_max_logit=False,
    is_causal=None,
    dropout_p=0.0,
    attn_mask=None,
    alibi_slopes=None,
    softcap=0.0,
    **unknown,
):
    """Exact attention of this rank's queries over the keys of all ranks of a group.

    q, k, v hold this rank's rows, in the order that the shard gives; all lengths and offsets are the whole sequence's.
    Everything but the tensors must be the same on every rank: ranks that disagree all get an error.

    q [b, s, h_q, d], k [b, s_k, h_kv, d], v [b, s_k, h_kv, d_v]: bfloat16 or float16, on CPUs float32 too, any
        strides; h_q is a multiple of h_kv. layout: the order of their axes, "bshd", "sbhd", "bhsd", or "thd" [t, h, d]
        for packed sequences. Default: bshd, or thd where there are three axes.
    mask: "none", "causal", or "causal_bottom_right"; is_causal=True is PyTorch's word for "causal".
    window: (left, right): row i sees keys i - left .. i + right. None or -1 is no bound, as flash-attn's window_size.
    align: "top_left" or "bottom_right", where the diagonal of a rectangle begins.
    prefix: that many keys at the start of each sequence are seen by all of its rows.
    chunk: rows see only keys of their own chunk of this many.
    slices: any mask, as an int64 tensor [n, 9] of batch, q_begin, q_len, k_begin, k_len, q_pos, k_pos, left, right
        (docs/problem.md); 2^63 - 1 is no bound.
    cu_seqlens_q, cu_seqlens_k: offsets of packed sequences (thd), as lists or tensors; a tensor on a CUDA device costs
        a synchronisation when it is new or an operator of PyTorch's has written to it (what a kernel of your own writes
        goes unseen: make a new tensor).
    seqused_q, seqused_k: visible length of each sequence or batch entry; what is beyond is padding.
    seqlen_q, seqlen_k: rows of the whole sequence (not thd). Default: this rank's rows times the ranks, and seqlen_q
        for seqlen_k where that is given.
    scale: of the scores before the softmax. Default: 1/sqrt(d).
    sink: a learnable logit a query head [h_q], or "zero" for one more logit of 0. Its gradient is this rank's rows'
        part, to be summed over the group like that of any parameter.
    group: a ProcessGroup, DeviceMesh, pair of groups (a2a, p2p), rotunda.Group, or "self" (this process alone).
        Default: the default group of torch.distributed, or "self" where there is none.
    shard: "dual_chunk" (zigzag, the default), "dual_chunk_doc", "contiguous", "striped", "balanced" (with chunk_size),
        or a rotunda.Sharding, which brings its group, lengths and offsets too.
    schedule, backward_schedule: "auto", "p2p", "all_gather", "a2a", "a2a_p2p" (with inner: ranks of an a2a group).
    kernel: "auto" or a name of rotunda.components().
    deterministic: the same bits every time.
    return_lse: also the log-sum-exp of every row, float32 [b, h_q, s] or [h_q, t], which may be differentiated.
    return_max_logit: also the greatest logit of each head over the whole group, float32 [h_q].

    Returns out [b, s, h_q, d_v] (in the layout, with q's dtype), or a tuple of what was asked for. Known and refused:
    dropout_p, attn_mask (a bias), alibi_slopes, softcap, float8, and double backward. Names that others have for an
    argument are errors that say ours.

    Errors reach every rank: BadInputError (a ValueError) for shapes, dtypes, values, and ranks that differ;
    UnsupportedError (a NotImplementedError), with every reason, for what nothing here can serve; TransportError (a
    ConnectionError) for a peer that is late, has died or has failed; DeviceError.
    """
    if unknown:
        name = next(iter(unknown))
        hint = f"; here it is {_OTHER_NAMES[name]}" if name in _OTHER_NAMES else ""
        raise TypeError(f"rotunda.attention has no argument '{name}'{hint}")
    balance_window = None
    if isinstance(shard, Sharding):
        group = shard.group if group is None else group
        seqlen_q = shard.seqlen if seqlen_q is None else seqlen_q
        cu_seqlens_q = shard.cu_seqlens if cu_seqlens_q is None else cu_seqlens_q
        balance_window = shard.window
        shard, chunk_size = shard.kind, shard.chunk_size
    group = Group.of(group)
    try:
        _check_tensors(q, k, v)
        _refuse(dropout_p=dropout_p, attn_mask=attn_mask, alibi_slopes=alibi_slopes, softcap=softcap)
        q, k, v = _autocast(q, k, v)
        if layout is None:
            layout = "thd" if q.dim() == 3 else "bshd"
        _check_shapes(q, k, v, layout, cu_seqlens_q)
        if is_causal is not None:
            mask = "causal" if is_causal else mask
        if seqlen_q is not None and seqlen_k is None:
            seqlen_k = seqlen_q
        sink_kind = None if sink is None else "zero" if isinstance(sink, str) else "learnable"
        sink = _sink(sink, q)
        deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
        grad = torch.is_grad_enabled() and _any_requires_grad(q, k, v, sink)
        problem = _pairs(
            layout=layout,
            mask=mask,
            window=None if window is None else f"{_bound(window[0])},{_bound(window[1])}",
            align=align,
            prefix=prefix or None,
            chunk=chunk or None,
            s_q=None if layout == "thd" else seqlen_q,
            s_k=None if layout == "thd" else seqlen_k,
            scale=scale,
            sink=sink_kind,
            max_logit=1 if return_max_logit else None,
            deterministic=1 if deterministic else None,
            grad=1 if grad else None,
        )
        options = _pairs(
            group=group.name,
            shard=shard,
            chunk_size=chunk_size or None,
            balance_window=balance_window,
            schedule=None if schedule == "auto" else schedule,
            backward_schedule=None if backward_schedule == "auto" else backward_schedule,
            inner=inner,
            kernel=None if kernel == "auto" else kernel,
        )
        lists = [_integers(x) for x in (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, slices)]
    except Exception as error:
        if not torch.compiler.is_compiling():
            group.abort(error)
        raise
    out, lse, max_logit = ops.attention(q, k, v, sink, *lists, problem, options, grad=grad)
    if not return_lse and not return_max_logit:
        return out
    return (out,) + ((lse,) if return_lse else ()) + ((max_logit,) if return_max_logit else ())


def explain(q, k, v, **kwargs):
    """What attention with these arguments does on this rank, as text: the plan, its steps, and why not otherwise.
    Collective, as attention is."""
    with ops.recording() as calls:
        attention(q, k, v, **kwargs)
    return calls[0].explain()


def _check_tensors(q, k, v):
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; wanted: a torch.Tensor")
        dtype = tensor.dtype
        if dtype not in _DTYPES:
            if dtype in _FLOAT8:
                raise _core.UnsupportedError(f"{name} is {dtype}: float8 is not supported")
            raise ValueError(f"{name} is {dtype}; allowed: bfloat16, float16, float32")
        if dtype != q.dtype and not torch.is_autocast_enabled(q.device.type):
            raise ValueError(f"{name} is {dtype} and q is {q.dtype}: q, k and v have one dtype")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device} and q on {q.device}: q, k and v lie on one device")
    if not (q.is_cpu or q.is_cuda):
        raise ValueError(f"q is on {q.device}; allowed: cpu, cuda")


def _check_shapes(q, k, v, layout, cu_seqlens_q):
    if layout not in ops.LAYOUTS:
        raise ValueError(f"layout is '{layout}'; allowed: {', '.join(ops.LAYOUTS)}")
    axes = 3 if layout == "thd" else 4
    shapes = q.shape, k.shape, v.shape
    for name, shape in zip("qkv", shapes):
        if len(shape) != axes:
            raise ValueError(f"{name} has shape {tuple(shape)}; layout {layout} has {axes} axes")
    if layout == "thd" and cu_seqlens_q is None:
        raise ValueError("packed sequences (thd) need cu_seqlens_q, the offsets of the whole batch's sequences")
    (*_, dim_q), (*rows_k, dim_k), (*rows_v, _) = shapes
    if rows_k != rows_v:
        raise ValueError(f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}: they differ in more than the last axis")
    if dim_k != dim_q:
        raise ValueError(f"q has head dim {dim_q} and k {dim_k}: they must be equal")


def _refuse(dropout_p, attn_mask, alibi_slopes, softcap):
    if dropout_p:
        raise _core.UnsupportedError(f"dropout_p={dropout_p}: dropout is not supported; allowed: 0")
    if attn_mask is not None:
        raise _core.UnsupportedError(
            "attn_mask: biases and masks of numbers are not supported; say mask, window, seqused_k or slices instead"
        )
    if alibi_slopes is not None:
        raise _core.UnsupportedError("alibi_slopes: ALiBi is not supported")
    if softcap:
        raise _core.UnsupportedError(f"softcap={softcap}: capped scores are not supported; allowed: 0")


def _autocast(q, k, v):
    kind = q.device.type
    if not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _pairs(**values):
    """key=value for what is not left out."""
    return " ".join([f"{key}={value}" for key, value in values.items() if value is not None])


def _bound(value):
    return "inf" if value is None or value == -1 else value


def _sink(sink, q):
    """The sink's tensor, if it is one."""
    if sink is None:
        return None
    if isinstance(sink, str):
        if sink != "zero":
            raise ValueError(f"sink is '{sink}'; allowed: 'zero', or a tensor of one logit a query head")
        return None
    if sink.dim() != 1 or sink.device != q.device:
        raise ValueError(f"sink has shape {tuple(sink.shape)} on {sink.device}; wanted: [h_q] on {q.device}")
    return sink.to(torch.float32)


def _any_requires_grad(*tensors):
    for tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def _integers(value):
    if value is None or isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.int64)
