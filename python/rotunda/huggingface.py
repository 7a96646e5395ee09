"""Context parallelism for models of Hugging Face transformers.

The model stays as it is: its attention becomes rotunda.attention (transformers' AttentionInterface), and a hook shards
what goes into it. Everything else in a decoder works on tokens one by one, and so on this rank's tokens alone.
"""

import inspect

import torch
import torch.distributed as dist

from . import _core
from .functional import attention
from .group import Group
from .sharding import Sharding, document_offsets, shift_labels

_NAME = "rotunda"
_INFINITY = torch.iinfo(torch.int64).max
# Inputs with a row for every token: axis 1 is sharded.
_TOKEN_INPUTS = ("input_ids", "inputs_embeds", "token_type_ids", "mm_token_type_ids", "per_layer_inputs")


def context_parallel(
    model,
    group=None,
    *,
    shard="dual_chunk",
    chunk_size=0,
    schedule="auto",
    sliding_schedule="auto",
    backward_schedule=None,
    inner=None,
    kernel="auto",
    deterministic=False,
    reduction="sum",
):
    """Makes a model of transformers work on sequences that are split over the ranks of a group.

    Every rank calls the model with the same, whole batch (input_ids or inputs_embeds, and what goes with them); what
    comes out are this rank's rows, and the whole batch's loss. Padding (attention_mask of 0 and 1) and packed documents
    (position_ids that begin again at 0) are understood. Returns a ContextParallel; its remove() undoes all of it.

    shard, chunk_size: who owns which tokens (rotunda.Sharding).
    schedule, sliding_schedule: of layers that see everything, and of those with a sliding window.
    backward_schedule, inner, kernel, deterministic: as in rotunda.attention.
    reduction: what is done to gradients over the group afterwards. "sum": ContextParallel.reduce_gradients, or a sum of
        your own. "mean": a data-parallel wrapper (DDP, FSDP) that averages over these ranks too.
    """
    options = {"backward_schedule": backward_schedule, "inner": inner, "kernel": kernel, "deterministic": deterministic}
    schedules = {"full": schedule, "sliding": sliding_schedule}
    return ContextParallel(model, Group.of(group), (shard, chunk_size), schedules, options, reduction)


class ContextParallel:
    """A model whose sequences are split. Made by rotunda.context_parallel."""

    def __init__(self, model, group, shard, schedules, options, reduction):
        if reduction not in ("sum", "mean"):
            raise ValueError(f"reduction is '{reduction}'; allowed: sum, mean")
        _register()
        self.model, self.group = model, group
        self._shard, self._schedules, self._options, self._reduction = shard, schedules, options, reduction
        self._before = model.config._attn_implementation
        model.set_attn_implementation(_NAME)
        if model.config._attn_implementation != _NAME:
            raise _core.UnsupportedError(
                f"{type(model).__name__} has an attention of its own (it does not use transformers' AttentionInterface)"
            )
        for module in model.modules():
            object.__setattr__(module, "_rotunda", self)
        self._hooks = [
            model.register_forward_pre_hook(self._shard_inputs, with_kwargs=True),
            model.register_forward_hook(self._sum_loss, with_kwargs=True),
        ]
        self.batch = None
        self._known_sharding = (None, None)

    def remove(self):
        """The model as it was."""
        for hook in self._hooks:
            hook.remove()
        for module in self.model.modules():
            if getattr(module, "_rotunda", None) is self:
                object.__delattr__(module, "_rotunda")
        self.model.set_attn_implementation(self._before)

    def __deepcopy__(self, memo):
        return self  # a copy of the model is split over the same ranks

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def unshard(self, tensor, dim=1):
        """The whole tensor from what the last call of the model gave on each rank (collective)."""
        return self.batch.sharding.unshard(tensor, dim)

    def reduce_gradients(self):
        """Sums the parameters' gradients over the group: every rank has those of its own tokens."""
        if self.group.size == 1:
            return
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:  # this rank's tokens had no part in it; the others wait all the same
                    parameter.grad = torch.zeros_like(parameter)
                gradient = parameter.grad
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient  # a DTensor's part
                dist.all_reduce(local, group=self.group.process_group)

    def sharding_of(self, seqlen, cu_seqlens):
        """The sharding of a batch; that of the last one where it was alike."""
        key = (seqlen, None if cu_seqlens is None else tuple(cu_seqlens.tolist()))
        if self._known_sharding[0] != key:
            kind, chunk_size = self._shard
            made = Sharding(seqlen, self.group, kind=kind, cu_seqlens=cu_seqlens, chunk_size=chunk_size)
            self._known_sharding = (key, made)
        return self._known_sharding[1]

    def _shard_inputs(self, model, args, kwargs):
        if args:
            raise ValueError("pass input_ids and the like by name: rotunda shards them by what they are called")
        if kwargs.get("past_key_values") is not None:
            raise _core.UnsupportedError("past_key_values: generation with a cache is not supported")
        whole = kwargs.get("input_ids")
        whole = kwargs.get("inputs_embeds") if whole is None else whole
        if whole is None:
            raise ValueError("the model was called without input_ids and inputs_embeds")
        kwargs = dict(kwargs, use_cache=False)
        kwargs.pop("cache_position", None)
        batch = self.batch = _Batch(self, whole, kwargs)
        for name in _TOKEN_INPUTS:
            if kwargs.get(name) is not None:
                kwargs[name] = batch.sharding.shard(kwargs[name])
        kwargs["attention_mask"] = None
        kwargs["position_ids"] = batch.position_ids
        kwargs["rotunda_batch"] = batch  # travels to the attention layers, into recomputed ones too
        if kwargs.get("labels") is not None:
            self._shard_labels(batch, kwargs)
        return (), kwargs

    def _shard_labels(self, batch, kwargs):
        forward = inspect.unwrap(type(self.model).forward)
        if "loss_function" not in forward.__code__.co_names:
            raise _core.UnsupportedError(
                f"{type(self.model).__name__} has a loss of its own, not transformers' loss_function: call it without "
                "labels, and make the loss from this rank's logits"
            )
        if getattr(self.model.config, "output_router_logits", False):
            raise _core.UnsupportedError("output_router_logits: the loss of routers is not a sum over tokens")
        shifted = kwargs.pop("shift_labels", None)
        shifted = shift_labels(kwargs["labels"]) if shifted is None else shifted
        if kwargs.get("num_items_in_batch") is None:
            kwargs["num_items_in_batch"] = (shifted != -100).sum()
        # The loss of this rank's rows over the count of all: these add up to the whole's mean.
        kwargs["labels"] = kwargs["shift_labels"] = batch.sharding.shard(shifted)

    def _sum_loss(self, model, args, kwargs, output):
        if kwargs.get("labels") is None:
            return output
        scale = self.group.size if self._reduction == "mean" else 1
        if isinstance(output, tuple):
            return (_SumOverGroup.apply(output[0], self.group, scale), *output[1:])
        output["loss"] = _SumOverGroup.apply(output["loss"], self.group, scale)
        return output


class _SumOverGroup(torch.autograd.Function):
    """The sum over a group, whose gradient is that of this rank's part (times `scale`)."""

    @staticmethod
    def forward(ctx, part, group, scale):
        ctx.scale = scale
        whole = part.clone()
        if group.size > 1:
            dist.all_reduce(whole, group=group.process_group)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale, None, None


class _Batch:
    """What the attention layers need to know of one call of the model."""

    def __init__(self, owner, whole, kwargs):
        self.owner = owner
        self.size, seqlen = whole.shape[:2]
        position_ids = kwargs.get("position_ids")
        self._visible = _visible_spans(kwargs.get("attention_mask"), seqlen)
        self._documents = _documents(position_ids, self.size)
        packed = self._documents is not None and self.size == 1 and self._visible is None
        self.packed = packed
        self.sharding = owner.sharding_of(seqlen, self._documents[0] if packed else None)
        if position_ids is None:
            self.position_ids = self.sharding.tokens().unsqueeze(0).to(whole.device)
        else:
            self.position_ids = self.sharding.shard(position_ids, dim=position_ids.dim() - 1)
        self._masks = {}

    def mask(self, causal, left, right):
        """The arguments of rotunda.attention for a layer that sees this much."""
        key = (causal, left, right)
        if key not in self._masks:
            self._masks[key] = self._make_mask(*key)
        return self._masks[key]

    def _make_mask(self, causal, left, right):
        spans = self._visible
        if self.packed or (self._documents is None and (spans is None or all(begin == 0 for begin, _ in spans))):
            arguments = {"mask": "causal" if causal else "none", "window": (left, right)}
            if spans is not None:
                lengths = torch.tensor([end for _, end in spans])
                arguments |= {"seqused_q": lengths, "seqused_k": lengths}
            return arguments
        return {"slices": self._slices(causal, left, right)}

    def _slices(self, causal, left, right):
        """One slice a document of a batch entry; padding is in none."""
        left = _INFINITY if left is None else left
        right = 0 if causal else _INFINITY if right is None else right
        rows = []
        for entry in range(self.size):
            begin, end = self._visible[entry] if self._visible else (0, self.sharding.seqlen)
            offsets = self._documents[entry].tolist() if self._documents else [0, self.sharding.seqlen]
            for first, last in zip(offsets, offsets[1:]):
                first, last = max(first, begin), min(last, end)
                if last > first:
                    rows.append([entry, first, last - first, first, last - first, 0, 0, left, right])
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, 9)


def _visible_spans(attention_mask, seqlen):
    """[begin, end) of the visible tokens of each batch entry, or None where all are."""
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.dim() != 2:
        raise _core.UnsupportedError("attention_mask: only masks of 0 and 1 for each token [b, s] are supported")
    if attention_mask.shape[1] != seqlen:
        raise ValueError(f"attention_mask has shape {tuple(attention_mask.shape)} for sequences of {seqlen} tokens")
    mask = attention_mask.cpu().bool()
    if mask.all():
        return None
    spans = []
    for entry, row in enumerate(mask):
        tokens = torch.nonzero(row).flatten().tolist()
        begin, end = (tokens[0], tokens[-1] + 1) if tokens else (0, 0)
        if end - begin != len(tokens):
            raise _core.UnsupportedError(f"attention_mask: the visible tokens of batch entry {entry} have a gap")
        spans.append((begin, end))
    return spans


def _documents(position_ids, size):
    """Offsets of the documents of each batch entry, or None where each is one document."""
    if position_ids is None or position_ids.dim() != 2:
        return None
    all_offsets = [document_offsets(row) for row in position_ids.expand(size, -1)]
    return all_offsets if any(len(offsets) > 2 for offsets in all_offsets) else None


class _LayerMask:
    """What transformers' mask functions say, in our words; given to attention layers in place of a mask."""

    def __init__(self, causal, left, right):
        self.causal, self.left, self.right = causal, left, right


def _make_layer_mask(*, mask_function, **_):
    """Registered as transformers' mask interface: translates, or refuses by name, what a layer may see."""
    found = {"causal": False, "left": None, "right": None}
    _translate(mask_function, found)
    return _LayerMask(**found)


def _translate(function, found):
    name = function.__qualname__
    cells = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
    if name == "and_masks.<locals>.and_mask":
        for each in cells["mask_functions"]:
            _translate(each, found)
    elif name == "causal_mask_function":
        found["causal"] = True
    elif name == "sliding_window_overlay.<locals>.inner_mask":
        found["left"] = int(cells["sliding_window"]) - 1
    elif name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
        found["left"] = found["right"] = int(cells["sliding_window"])
    elif name not in ("bidirectional_mask_function", "packed_sequence_mask_function.<locals>.inner_mask"):
        raise _core.UnsupportedError(f"the model's mask ({name.split('.')[0]}) is not supported")


def _attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Registered as transformers' attention: [b, h, s, d] in, [b, s, h, d] out."""
    owner = getattr(module, "_rotunda", None)
    if owner is None:
        raise ValueError("attn_implementation is 'rotunda', but the model did not go through rotunda.context_parallel")
    batch = kwargs.get("rotunda_batch") or owner.batch
    if attention_mask is not None and not isinstance(attention_mask, _LayerMask):
        raise _core.UnsupportedError("attention_mask: a mask of the model's own making is not supported")
    seen = attention_mask or _seen_by(module, kwargs)
    windowed = seen.left is not None or seen.right is not None
    arguments = dict(batch.mask(seen.causal, seen.left, seen.right))
    arguments |= owner._options | {"schedule": owner._schedules["sliding" if windowed else "full"]}
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    packed = batch.packed
    if packed:
        query, key, value = query[0], key[0], value[0]
    out = attention(
        query,
        key,
        value,
        scale=scaling,
        sink=kwargs.get("s_aux"),
        softcap=kwargs.get("softcap") or 0.0,
        dropout_p=dropout,
        shard=batch.sharding,
        **arguments,
    )
    return (out.unsqueeze(0) if packed else out), None


def _seen_by(module, kwargs):
    """Where a model makes no mask: as its layer says."""
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window = kwargs.get("sliding_window")
    return _LayerMask(causal, None if window is None else window - 1, None)


def _register():
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        text = "rotunda.context_parallel needs transformers 4.56 or later: pip install transformers"
        raise ImportError(text) from error
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _make_layer_mask)
