"""A model and a parallelize function as torchtitan has them: a mesh with dimensions dp and cp, FSDP over both, a
compiled and checkpointed block, and rotunda where scaled_dot_product_attention was.

    torchrun --nproc-per-node 4 examples/python/titan.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import rotunda


@dataclass
class ModelArgs:
    dim: int = 128
    heads: int = 4
    kv_heads: int = 2
    layers: int = 2
    vocabulary: int = 256
    window: int = 64  # of every second layer


class Attention(nn.Module):
    def __init__(self, args, window):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = args.heads, args.kv_heads, args.dim // args.heads
        self.qkv = nn.Linear(args.dim, (args.heads + 2 * args.kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(args.dim, args.dim, bias=False)
        self.window = window
        self.group = rotunda.Group.of("self")  # parallelize() sets another

    def forward(self, x, cos, sin):
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = rotunda.attention(q, k, v, mask="causal", window=self.window, group=self.group)
        return self.out(out.flatten(-2))


class Block(nn.Module):
    def __init__(self, args, layer):
        super().__init__()
        self.attention = Attention(args, (args.window, 0) if layer % 2 else None)
        self.norms = nn.ModuleList(nn.RMSNorm(args.dim) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(args.dim, 2 * args.dim), nn.SiLU(), nn.Linear(2 * args.dim, args.dim))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norms[0](x), cos, sin)
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embedding = nn.Embedding(args.vocabulary, args.dim)
        self.blocks = nn.ModuleList(Block(args, layer) for layer in range(args.layers))
        self.norm, self.head = nn.RMSNorm(args.dim), nn.Linear(args.dim, args.vocabulary, bias=False)
        self.head_dim = args.dim // args.heads

    def forward(self, tokens, positions):
        frequencies = 1e4 ** -(torch.arange(0, self.head_dim, 2, device=tokens.device) / self.head_dim)
        angles = positions[..., None, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        x = self.embedding(tokens)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False)
        return self.head(self.norm(x))


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def parallelize(model, mesh):
    """Context parallelism within mesh["cp"], parameters sharded over all ranks."""
    group = rotunda.Group.of(mesh["cp"].get_group())
    everyone, cuda = mesh._flatten("dp_cp"), mesh.device_type == "cuda"
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if cuda else None)
    for block in model.blocks:
        block.attention.group = group
        block.compile(fullgraph=True, backend="inductor" if cuda else "aot_eager")
        fully_shard(block, mesh=everyone, mp_policy=policy)
    fully_shard(model, mesh=everyone, mp_policy=policy)
    return model


def main():
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "cp"))
    torch.manual_seed(0)
    model = parallelize(Transformer(ModelArgs()).to(device), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sharding = rotunda.Sharding(256, mesh["cp"].get_group())
    positions = sharding.position_ids(device)
    draw = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    for step in range(10):
        tokens = (torch.randint(0, 256, (2, 1), generator=draw) + torch.arange(256)) % 256
        labels = sharding.shard(rotunda.shift_labels(tokens)).to(device)
        logits = model(sharding.shard(tokens).to(device), positions)
        # The mean over this rank's tokens, of which FSDP makes the mean over ranks: the whole's, as all have as many.
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach_(), op=dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
