"""Attention over packed documents of very different lengths, whose work is shared out evenly.

    torchrun --nproc-per-node 2 examples/python/packed.py
"""

import torch
import torch.distributed as dist

import rotunda

dist.init_process_group("gloo")
torch.manual_seed(0)
cu_seqlens = [0, 700, 720, 1000, 1024]  # of the whole batch
sharding = rotunda.Sharding(kind="balanced", cu_seqlens=cu_seqlens)

whole = torch.randn(1024, 3, 8, 64)  # [t, qkv, h, d]; in a model every rank makes its own rows alone
q, k, v = sharding.shard(whole, dim=0).requires_grad_().unbind(1)
out, lse = rotunda.attention(q, k, v, mask="causal", shard=sharding, return_lse=True)
out.square().sum().backward()

# What it does: documents one by one, on one rank.
for begin, end in zip(cu_seqlens, cu_seqlens[1:]):
    heads_first = (whole[begin:end, i].transpose(0, 1) for i in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(0, 1)
    error = (sharding.unshard(out.detach(), dim=0)[begin:end] - want).abs().max()
    if dist.get_rank() == 0:
        print(f"document of {end - begin:4} tokens: largest difference {error:.1e}")
    assert error < 1e-4

if dist.get_rank() == 0:
    print(rotunda.explain(q, k, v, mask="causal", shard=sharding).splitlines()[1])
else:
    rotunda.explain(q, k, v, mask="causal", shard=sharding)
dist.destroy_process_group()
