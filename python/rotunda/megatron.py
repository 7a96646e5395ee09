"""A core_attention module for Megatron-Core, in the place of TEDotProductAttention.

    spec = get_gpt_layer_local_spec(...)
    spec.submodules.self_attention.submodules.core_attention = rotunda.megatron.DotProductAttention

It takes Megatron's own cp_comm_type names, window_size, softmax_type (with its parameter softmax_offset), packed
sequences, and the context-parallel groups of parallel_state or of a ProcessGroupCollection. Tokens are where Megatron
puts them: zigzag over the sequence, or within each packed document.
"""

import torch

try:
    from megatron.core import parallel_state
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
    from megatron.core.transformer.utils import is_layer_window_attention
except ImportError as error:
    raise ImportError("rotunda.megatron needs Megatron-Core 0.14 or later: pip install megatron-core") from error

from . import _core
from .functional import attention
from .group import Group

_SCHEDULES = {"p2p": "p2p", "all_gather": "all_gather", "a2a": "a2a", "a2a+p2p": "a2a_p2p", None: "p2p", "auto": "auto"}
_MASKS = {
    AttnMaskType.causal: "causal",
    AttnMaskType.padding_causal: "causal",
    AttnMaskType.no_mask: "none",
    AttnMaskType.padding: "none",
    AttnMaskType.causal_bottom_right: "causal_bottom_right",
}


class DotProductAttention(MegatronModule):
    """Attention of [s, b, h, d] (or [t, h, d] with packed_seq_params) over Megatron's context-parallel group."""

    cp_stream = None  # Megatron's second stream for communication: exchanges here have streams of their own

    def __init__(
        self,
        config,
        layer_number,
        attn_mask_type,
        attention_type,
        attention_dropout=None,
        softmax_scale=None,
        k_channels=None,
        v_channels=None,
        cp_comm_type=None,
        pg_collection=None,
        **_,
    ):
        super().__init__(config=config)
        if cp_comm_type not in _SCHEDULES:
            names = ", ".join(name for name in _SCHEDULES if name)
            raise ValueError(f"cp_comm_type is '{cp_comm_type}'; allowed: {names}")
        self.layer_number = max(1, layer_number)
        self.attn_mask_type = attn_mask_type
        self.schedule = _SCHEDULES[cp_comm_type]
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.scale = softmax_scale
        if config.apply_query_key_layer_scaling:
            self.scale = (softmax_scale or (k_channels or config.kv_channels) ** -0.5) / self.layer_number
        self.window = None
        if is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number):
            self.window = tuple(config.window_size)
        self.group = _group_of(config, self.schedule, pg_collection)
        self.tp_group = getattr(pg_collection, "tp", None)
        self.returns_max_logit = bool(config.qk_clip or config.log_max_attention_logit)
        self.current_max_attn_logits = None  # of each head since Megatron last took it
        self._make_sink(config)

    def _make_sink(self, config):
        if config.softmax_type == "vanilla":
            self.softmax_offset = None
        elif config.softmax_type == "learnable":
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            self.register_parameter("softmax_offset", torch.nn.Parameter(torch.empty(heads, dtype=config.params_dtype)))
            if config.perform_initialization:
                config.init_method(self.softmax_offset)
        elif config.softmax_type == "off-by-one":
            self.softmax_offset = "zero"
        else:
            raise ValueError(f"softmax_type is '{config.softmax_type}'; allowed: vanilla, off-by-one, learnable")

    def forward(
        self,
        query,
        key,
        value,
        attention_mask,
        attn_mask_type=None,
        attention_bias=None,
        packed_seq_params=None,
        **_,
    ):
        mask_type = attn_mask_type or self.attn_mask_type
        if mask_type not in _MASKS:
            raise _core.UnsupportedError(f"attn_mask_type {mask_type.name} is not supported")
        if attention_bias is not None:
            raise _core.UnsupportedError("attention_bias is not supported")
        packed = packed_seq_params is not None
        if not packed and mask_type in (AttnMaskType.padding, AttnMaskType.padding_causal):
            raise _core.UnsupportedError(f"attn_mask_type {mask_type.name} is supported for packed sequences alone")
        arguments, group = {"layout": "sbhd", "shard": "dual_chunk"}, self.group
        if packed:
            group = _dynamic_group(packed_seq_params, group)
            arguments = {"layout": "thd", "shard": "dual_chunk_doc", **_documents_of(packed_seq_params)}
            query, key, value = (x.squeeze(1) if x.dim() == 4 else x for x in (query, key, value))
        window = None if self.window is None or mask_type == AttnMaskType.no_mask else self.window
        out = attention(
            query,
            key,
            value,
            mask=_MASKS[mask_type],
            window=window,
            scale=self.scale,
            sink=self.softmax_offset,
            group=group,
            schedule=self.schedule,
            dropout_p=self.dropout if self.training else 0.0,
            deterministic=self.config.deterministic_mode,
            return_max_logit=self.returns_max_logit,
            **arguments,
        )
        if self.returns_max_logit:
            out, max_logit = out
            known = self.current_max_attn_logits
            self.current_max_attn_logits = max_logit if known is None else torch.maximum(known, max_logit)
        return out.flatten(-2)

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        """softmax_offset for distributed checkpoints, split as the heads are."""
        learnable = isinstance(self.softmax_offset, torch.nn.Parameter)
        state = self.state_dict(prefix="", keep_vars=True) if learnable else {}
        return make_sharded_tensors_for_checkpoint(
            state,
            prefix,
            {"softmax_offset": 0},
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=(metadata or {}).get("dp_cp_group"),
        )


def _group_of(config, schedule, pg_collection):
    """The context-parallel group, with the size of its a2a groups where Megatron has a hierarchy of two."""
    if config.context_parallel_size == 1:
        return "self"
    group = getattr(pg_collection, "cp", None) or parallel_state.get_context_parallel_group()
    if schedule != "a2a_p2p":
        return group
    pair = getattr(pg_collection, "hcp", None) or parallel_state.get_hierarchical_context_parallel_groups()
    return Group(group, inner=pair[0].size())


def _dynamic_group(params, group):
    """The group that a packed batch brings (dynamic context parallelism), if it does."""
    if getattr(params, "cp_group", None) is not None:
        return params.cp_group
    return "self" if getattr(params, "local_cp_size", None) == 1 else group


def _documents_of(params):
    """Physical offsets, and visible lengths where there is padding between the documents."""
    arguments = {}
    for side, visible, padded in (
        ("q", params.cu_seqlens_q, params.cu_seqlens_q_padded),
        ("k", params.cu_seqlens_kv, params.cu_seqlens_kv_padded),
    ):
        arguments[f"cu_seqlens_{side}"] = visible if padded is None else padded
        if padded is not None:
            arguments[f"seqused_{side}"] = visible.diff()
    return arguments
