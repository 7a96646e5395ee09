"""The operators rotunda::attention and rotunda::attention_backward.

Everything about a call that is no tensor travels in two texts of key=value pairs: `problem` (docs/problem.md; shapes,
dtype and lists come from the tensors) and `options`. So a compiled graph holds constants, and whatever the lengths of
packed documents are, it is the same graph.
"""

import contextlib
import functools
import json

import torch
from torch.utils.weak import WeakIdKeyDictionary

from . import _core
from .group import Group, is_capturing

_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_LISTS = "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_q, Tensor? seqused_k, Tensor? slices"
_SLICE_KEYS = ("batch", "q_begin", "q_len", "k_begin", "k_len", "q_pos", "k_pos", "left", "right")
_INFINITY = torch.iinfo(torch.int64).max
# Axes of rows and heads in each layout.
_AXES = {"bshd": (1, 2), "sbhd": (0, 2), "bhsd": (2, 1), "thd": (0, 1)}
LAYOUTS = tuple(_AXES)

_library = torch.library.Library("rotunda", "DEF")
_library.define(
    f"attention(Tensor q, Tensor k, Tensor v, Tensor? sink, {_LISTS}, str problem, str options)"
    " -> (Tensor out, Tensor lse, Tensor max_logit)"
)
_library.define(
    "attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"Tensor? sink, {_LISTS}, str problem, str options) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink)"
)


_recorded = None


@contextlib.contextmanager
def recording():
    """Collects the calls that run, for rotunda.explain and tests."""
    global _recorded
    _recorded = calls = []
    try:
        yield calls
    finally:
        _recorded = None


@functools.lru_cache(maxsize=1024)
def _parse(text):
    """The pairs of a text; callers don't change what they get."""
    return dict(pair.split("=", 1) for pair in text.split())


def _rows_shape(shape, layout):
    """Of row statistics, where q has this shape: [b, h, s], or [h, t]."""
    rows, heads = _AXES[layout]
    if layout == "thd":
        return (shape[heads], shape[rows])
    return (shape[1 if layout == "sbhd" else 0], shape[heads], shape[rows])


class _RefusedInCapture(_core.UnsupportedError):
    """Of what can't be done while a CUDA graph is captured; on every rank alike, since all capture."""


_remembered = WeakIdKeyDictionary()


def _numbers(tensor):
    """The values of a list. Those on a device cost a synchronisation, the first time that this tensor brings them."""
    if tensor is None:
        return None
    return _read(tensor) if tensor.device.type == "cpu" else remember(tensor)


def _read(tensor):
    values = tensor.tolist()
    return tuple(values) if tensor.dim() == 1 else tuple(map(tuple, values))


def remember(tensor):
    """A tensor's values, read again when anything has been written to it (PyTorch counts what its own operators do)."""
    inference = tensor.is_inference()  # these count nothing
    version, values = (None, None) if inference else _remembered.get(tensor, (None, None))
    if inference or version != tensor._version:
        if is_capturing(tensor.device):
            raise _RefusedInCapture(
                f"a list of shape {tuple(tensor.shape)} on {tensor.device} can't be read while a CUDA graph is "
                "captured: pass it as a list or a CPU tensor, or make the same call before the capture"
            )
        values = _read(tensor)
        if not inference:
            _remembered[tensor] = (tensor._version, values)
    return values


def _values(key):
    """The problem of a cache key, with what its tensors say."""
    problem, _, (q, k, v, dtype), (cu_q, cu_k, used_q, used_k, slices), size = key
    values = dict(_parse(problem))
    layout = values["layout"]
    rows, heads = _AXES[layout]
    values |= {"dtype": _DTYPES[dtype], "h_q": q[heads], "h_kv": k[heads], "d": q[-1], "d_v": v[-1]}
    if layout == "thd":
        lists = {"cu_q": cu_q, "cu_k": cu_k, "used_q": used_q, "used_k": used_k}
    else:
        values["b"] = q[1 if layout == "sbhd" else 0]
        values.setdefault("s_q", q[rows] * size)
        values.setdefault("s_k", k[rows] * size)
        lists = {"lens_q": used_q, "lens_k": used_k}
    values |= {name: ",".join(map(str, numbers)) for name, numbers in lists.items() if numbers is not None}
    if slices is not None:
        values["slices"] = slices
    return values


def _text(values):
    """A problem as text, or as JSON where it has slices."""
    if "slices" not in values:
        return " ".join(f"{name}={value}" for name, value in values.items())
    json_values = {name: _number(value) for name, value in values.items() if name not in ("mask", "slices")}
    for name in ("cu_q", "cu_k"):
        if name in values:
            json_values[name] = list(map(int, values[name].split(",")))
    bounded = [[None if value == _INFINITY else value for value in row] for row in values["slices"]]
    json_values["slices"] = [dict(zip(_SLICE_KEYS, row)) for row in bounded]
    return json.dumps(json_values)


def balanced_for(values, window=None):
    """The problem whose work a balanced shard shares out: causal attention within the documents, whatever the mask of
    one layer is, since all layers of a model have the same rows."""
    text = "h_q=1 d=1 mask=causal" + (f" window={window},0" if window else "")
    if values.get("layout") == "thd":
        return f"{text} layout=thd cu_q={values['cu_q']}"
    return f"{text} s_q={values['s_q']}"


def _number(value):
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def _find_call(end, q, k, v, lists, problem, options):
    """The agreed plan for these tensors; a new one is agreed on by all ranks."""
    key = (problem, options, (q.shape, k.shape, v.shape, q.dtype), tuple(map(_numbers, lists)), end.group.size)

    def make():
        if is_capturing(end.device):
            raise _RefusedInCapture(
                "a CUDA graph is being captured, and this call has no plan yet: make the same call, and its backward, "
                "before the capture"
            )
        choices, values = _parse(options), _values(key)
        balanced = choices["shard"] == "balanced"
        return _core.Call(
            end.core,
            _text(values),
            shard_for=balanced_for(values, choices.get("balance_window")) if balanced else "",
            schedule=choices.get("schedule", ""),
            backward_schedule=choices.get("backward_schedule", ""),
            shard=choices["shard"],
            kernel=choices.get("kernel", ""),
            inner=int(choices.get("inner", end.group.inner)),
            chunk_size=int(choices.get("chunk_size", 0)),
            threads=torch.get_num_threads(),
        )

    call = end.call(key, make)
    if _recorded is not None:
        _recorded.append(call)
    return call


def _perform(run, q, k, v, sink, *rest):
    """run(call, inputs, means) with the plan for these tensors. An error of this rank reaches the others, who would
    wait for it."""
    *lists, problem, options = rest
    end = Group.named(_parse(options)["group"]).end(q.device)
    try:
        call = _find_call(end, q, k, v, lists, problem, options)
        means = (end.workspace(call.workspace_bytes), end.stream(call))
        results = run(call, (q, k, v, sink), means)
        end.settle()
        return results
    except _RefusedInCapture:
        raise  # nothing has failed, and a capture allows no memory to be freed
    except Exception as error:
        end.failed(error)
        raise


def _forward(q, k, v, sink, *rest):
    def run(call, inputs, means):
        out, lse, max_logit = results = _forward_results(q, v, rest[-2])
        call.forward(*inputs, out, lse, max_logit if max_logit.numel() else None, *means)
        return results

    return _perform(run, q, k, v, sink, *rest)


def _forward_results(q, v, problem):
    values, shape = _parse(problem), q.shape
    out = q.new_empty((*shape[:-1], v.shape[-1]))
    lse = q.new_empty(_rows_shape(shape, values["layout"]), dtype=torch.float32)
    heads = shape[_AXES[values["layout"]][1]] if "max_logit" in values else 0
    return out, lse, lse.new_empty(heads)


def _backward(dout, dlse, q, k, v, out, lse, sink, *rest):
    def run(call, inputs, means):
        dq, dk, dv, dsink = results = _backward_results(q, k, v, sink)
        minus_dlse = None if dlse is None else -dlse.to(torch.float32)
        given = (*inputs, out, lse, dout, minus_dlse)
        call.backward(*given, dq, dk, dv, dsink if dsink.numel() else None, *means)
        return results

    return _perform(run, q, k, v, sink, *rest)


def _backward_results(q, k, v, sink):
    dsink = q.new_empty(0 if sink is None else sink.shape[0], dtype=torch.float32)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink


for _key in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _key)
    _library.impl("attention_backward", _backward, _key)


@torch.library.register_fake("rotunda::attention", lib=_library)
def _(q, k, v, sink, *rest):
    return _forward_results(q, v, rest[-2])


@torch.library.register_fake("rotunda::attention_backward", lib=_library)
def _(dout, dlse, q, k, v, out, lse, sink, *_):
    return _backward_results(q, k, v, sink)


_attention = torch.ops.rotunda.attention.default
_attention_backward = torch.ops.rotunda.attention_backward.default


def _below_autograd(operator, *arguments):
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def attention(*arguments, grad):
    """The operator. Where no gradient is wanted, its autograd kernel would only call on, and is left out: some
    microseconds less."""
    if grad or torch.compiler.is_compiling():
        return _attention(*arguments)
    return _below_autograd(_attention, *arguments)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        out, lse, max_logit = _below_autograd(_attention, *arguments)
        *tensors, ctx.problem, ctx.options = arguments
        ctx.save_for_backward(out, lse, *tensors)
        ctx.mark_non_differentiable(max_logit)
        ctx.set_materialize_grads(False)
        return out, lse, max_logit

    @staticmethod
    def backward(ctx, dout, dlse, _):
        out, lse, q, k, v, sink, *lists = ctx.saved_tensors
        if dout is None and dlse is None:
            return (None,) * 11
        if dout is None:
            dout = torch.zeros_like(out)
        dq, dk, dv, dsink = _attention_backward(dout, dlse, q, k, v, out, lse, sink, *lists, ctx.problem, ctx.options)
        return dq, dk, dv, None if sink is None else dsink, *(None,) * 7


class _AttentionBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        return _below_autograd(_attention_backward, *arguments)

    @staticmethod
    def backward(ctx, *_):
        raise _core.UnsupportedError("rotunda.attention has no second derivative: double backward is not supported")


# By hand rather than torch.library.register_autograd, which costs five times as much in every call.
def _autograd(function, below):
    def run(*arguments):
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in arguments):
            return function.apply(*arguments)
        return _below_autograd(below, *arguments)

    return run


_library.impl("attention", _autograd(_Attention, _attention), "Autograd")
_library.impl("attention_backward", _autograd(_AttentionBackward, _attention_backward), "Autograd")
