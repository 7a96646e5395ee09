"""The core_attention module of Megatron-Core's layers."""

import pytest
import reference
import torch
import torch.distributed as dist

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from megatron.core import parallel_state  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

import rotunda  # noqa: E402
from rotunda.megatron import DotProductAttention  # noqa: E402

S, B, H, G, D = 32, 2, 4, 2, 16


def make_config(ranks, **options):
    return TransformerConfig(
        num_layers=1,
        hidden_size=H * D,
        num_attention_heads=H,
        num_query_groups=G,
        context_parallel_size=ranks,
        attention_dropout=0.0,
        **options,
    )


def make_module(group, cp_comm_type="p2p", mask=AttnMaskType.causal, layer_number=1, **options):
    alone = isinstance(group, str)
    ranks = 1 if alone else dist.get_world_size(group)
    collection = ProcessGroupCollection(tp=None, cp=None if alone else group)
    if cp_comm_type == "a2a+p2p":
        rank = dist.get_rank()
        collection.hcp = [
            [dist.new_group(pair) for pair in ([0, 1], [2, 3])][rank // 2],
            [dist.new_group(pair) for pair in ([0, 2], [1, 3])][rank % 2],
        ]
    config = make_config(ranks, **options)
    return DotProductAttention(
        config, layer_number, mask, "self", cp_comm_type=cp_comm_type, pg_collection=collection
    )


def make_tensors():
    draw = torch.Generator().manual_seed(5)
    shapes = ((B, S, H, D), (B, S, G, D), (B, S, G, D), (B, S, H, D))
    return [torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes]


def compare(group, module, seen, sink=None):
    q, k, v, dout = make_tensors()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    want, _ = reference.attention(*leaves, seen, sink=sink)
    want.backward(dout)
    sharding = rotunda.Sharding(S, group)
    local = [sharding.shard(x.detach().float()).transpose(0, 1).requires_grad_() for x in (q, k, v)]  # [s, b, h, d]
    out = module(*local, None)
    assert out.shape == (sharding.rows, B, H * D)
    (out.unflatten(-1, (H, D)).transpose(0, 1) * sharding.shard(dout.float())).sum().backward()
    got = sharding.unshard(out.detach().unflatten(-1, (H, D)).transpose(0, 1))
    torch.testing.assert_close(got.double(), want.detach(), rtol=1e-4, atol=2e-5)
    for a, b in zip(local, leaves):
        torch.testing.assert_close(a.grad.transpose(0, 1).double(), sharding.shard(b.grad), rtol=1e-4, atol=2e-5)


CAUSAL = reference.band(S, S, right=0)


@pytest.mark.parametrize("cp_comm_type", ("p2p", "all_gather", "a2a", "a2a+p2p", None))
def test_cp_comm_types(pool, cp_comm_type):
    pool.run(4 if cp_comm_type == "a2a+p2p" else 2, run_comm_type, cp_comm_type)


def run_comm_type(group, cp_comm_type):
    module = make_module(group, cp_comm_type)
    compare(group, module, CAUSAL)


def test_one_rank(pool):
    pool.run(1, run_comm_type, "p2p")


def test_groups_of_parallel_state(pool):
    pool.run(4, run_parallel_state)


def run_parallel_state(group):
    """As a training script makes them, with a hierarchy of two."""
    parallel_state.initialize_model_parallel(
        context_parallel_size=4, hierarchical_context_parallel_sizes=[2, 2], create_gloo_process_groups=False
    )
    try:
        module = DotProductAttention(make_config(4), 1, AttnMaskType.causal, "self", cp_comm_type="a2a+p2p")
        assert module.group.inner == 2
        compare(parallel_state.get_context_parallel_group(), module, CAUSAL)
    finally:
        parallel_state.destroy_model_parallel()


def test_masks_windows_and_sinks(pool):
    pool.run(2, run_masks)


def run_masks(group):
    compare(group, make_module(group, mask=AttnMaskType.no_mask), reference.band(S, S))
    windowed = {"window_size": (7, 0), "window_attn_skip_freq": 2}
    compare(group, make_module(group, **windowed), reference.band(S, S, left=7, right=0))
    compare(group, make_module(group, layer_number=2, **windowed), CAUSAL)  # every second layer sees all
    compare(group, make_module(group, softmax_type="off-by-one"), CAUSAL, sink=torch.zeros(H, dtype=torch.float64))
    module = make_module(group, softmax_type="learnable")
    sink = module.softmax_offset.detach().double().requires_grad_()
    compare(group, module, CAUSAL, sink=sink)
    dist.all_reduce(module.softmax_offset.grad, group=group)
    torch.testing.assert_close(module.softmax_offset.grad.double(), sink.grad, rtol=1e-4, atol=1e-5)


def test_greatest_logits(pool):
    pool.run(2, run_greatest_logits)


def run_greatest_logits(group):
    module = make_module(group, qk_clip=True)
    q, k, v, _ = make_tensors()
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(H // G, 2)) * D**-0.5
    want = scores.masked_fill(~CAUSAL[:, None], -torch.inf).amax((0, 2, 3))
    sharding = rotunda.Sharding(S, group)
    local = [sharding.shard(x.float()).transpose(0, 1) for x in (q, k, v)]
    for scale in (1, 0.5):  # the greatest of both
        module(local[0] * scale, *local[1:], None)
    torch.testing.assert_close(module.current_max_attn_logits.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padded", (False, True))
def test_packed_sequences(pool, padded):
    pool.run(2, run_packed, padded)


def run_packed(group, padded):
    offsets = [0, 8, 20, 32]
    used = [5, 12, 9] if padded else None
    visible = offsets if used is None else [0, 5, 17, 26]
    q, k, v, dout = (x[0] for x in make_tensors())
    want, _ = reference.attention(q[None], k[None], v[None], reference.documents(offsets, right=0, used=used))
    sharding = rotunda.Sharding(group=group, kind="dual_chunk_doc", cu_seqlens=offsets)
    params = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=torch.tensor(visible, dtype=torch.int32),
        cu_seqlens_kv=torch.tensor(visible, dtype=torch.int32),
        cu_seqlens_q_padded=torch.tensor(offsets, dtype=torch.int32) if padded else None,
        cu_seqlens_kv_padded=torch.tensor(offsets, dtype=torch.int32) if padded else None,
    )
    module = make_module(group, mask=AttnMaskType.padding_causal)
    out = module(*(sharding.shard(x.float(), 0) for x in (q, k, v)), None, packed_seq_params=params)
    got = sharding.unshard(out, 0).unflatten(-1, (H, D))
    torch.testing.assert_close(got.double(), want[0], rtol=1e-4, atol=2e-5)
    assert dout.shape == got.shape
    # A batch may bring a group of its own: here none.
    params.local_cp_size = 1
    alone = module(*(x.float() for x in (q, k, v)), None, packed_seq_params=params).unflatten(-1, (H, D))
    torch.testing.assert_close(alone.double(), want[0], rtol=1e-4, atol=2e-5)


def test_a_layer_of_megatron(pool):
    pool.run(4, run_layer)


def run_layer(group):
    """Self-attention as Megatron builds it from a spec, on two ranks (twice, as data parallelism has it) and on one."""
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.identity_op import IdentityOp

    parallel_state.initialize_model_parallel(context_parallel_size=2, create_gloo_process_groups=False)
    try:
        results = []
        hidden = torch.randn(S, 1, H * D, generator=torch.Generator().manual_seed(8))
        for ranks in (1, 2):
            torch.manual_seed(9)
            config = make_config(ranks, use_cpu_initialization=True)
            submodules = SelfAttentionSubmodules(
                linear_qkv=ColumnParallelLinear,
                core_attention=DotProductAttention,
                linear_proj=RowParallelLinear,
                q_layernorm=IdentityOp,
                k_layernorm=IdentityOp,
            )
            layer = SelfAttention(config, submodules, 1, AttnMaskType.causal, cp_comm_type="p2p")
            sharding = rotunda.Sharding(S, parallel_state.get_context_parallel_group() if ranks == 2 else "self")
            out, _ = layer(sharding.shard(hidden, 0), None)
            results.append(sharding.unshard(out.detach(), 0))
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    finally:
        parallel_state.destroy_model_parallel()


def test_refusals(alone):
    with pytest.raises(ValueError, match="a2a\\+p2p"):
        make_module("self", "ring")
    with pytest.raises(NotImplementedError, match="arbitrary"):
        make_module("self", mask=AttnMaskType.arbitrary)(*(torch.zeros(4, 1, 4, 16),) * 3, None)
    with pytest.raises(NotImplementedError, match="attention_bias"):
        make_module("self")(*(torch.zeros(4, 1, 4, 16),) * 3, None, attention_bias=torch.zeros(1))
