"""One way to check rotunda.attention on GPUs: against float64 on the same device, with at most twice the error of naive
attention in the same dtype. Everything here is run by every rank of a group alike."""

import zlib
from dataclasses import dataclass, field

import reference
import test_attention
import torch

import rotunda

NAMES = ("out", "dq", "dk", "dv", "dsink")


def my_device():
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


@dataclass
class Case(test_attention.Case):
    """As there, of sizes that fill a GPU's tiles; causal where nothing else is said."""

    arguments: dict = field(default_factory=lambda: {"mask": "causal"})
    b: int = 1
    s_q: int = 512
    h_kv: int = 2
    d: int = 128
    dtype: torch.dtype = torch.bfloat16
    cu_seqlens: list = None  # packed
    lse: bool = False  # differentiate it too

    def __post_init__(self):
        if self.seen is None:
            self.seen = reference.band(self.s_q, self.s_k or self.s_q, right=0)
        super().__post_init__()

    def inputs(self):
        """q, k, v, dout [b, s, h, d], dlse [b, h, s], sink [h]: the same on every rank; in float64, but values of the
        dtype."""
        device = my_device()
        shapes = [(self.s_q, self.h_q, self.d), (self.s_k, self.h_kv, self.d), (self.s_k, self.h_kv, self.d_v)]
        shapes.append((self.s_q, self.h_q, self.d_v))
        seed = zlib.crc32(repr((self.arguments.keys(), shapes, str(self.dtype))).encode())
        draw = torch.Generator(device).manual_seed(seed)
        make = lambda *shape: torch.randn(*shape, generator=draw, device=device, dtype=torch.float64)  # noqa: E731
        tensors = [make(self.b, *shape).to(self.dtype).double() for shape in shapes]
        return [*tensors, make(self.b, self.h_q, self.s_q).float().double(), make(self.h_q).float().double()]


def reference_pass(case, dtype):
    """(lse, [out, dq, dk, dv, dsink]) of the plain algorithm in a dtype."""
    q, k, v, dout, dlse, sink = (x.to(dtype) for x in case.inputs())
    leaves = [x.requires_grad_() for x in (q, k, v, sink)]
    given = {"learnable": sink, "zero": torch.zeros_like(sink), None: None}[case.sink]
    out, lse = reference.attention(q, k, v, case.seen.to(q.device), case.arguments.get("scale"), given)
    loss = (out * dout).sum()
    if case.lse:
        visible = torch.isfinite(lse)
        loss = loss + (lse[visible] * dlse[visible]).sum()
    loss.backward()
    return lse.detach(), [out.detach(), *(x.grad for x in leaves)]


def poison():
    """NaN in the memory that PyTorch gives out next: what nobody writes shows."""
    for elements in (1 << 17, 1 << 24):  # of its small and its large blocks
        torch.full((elements,), torch.nan, device=my_device())


def attend(group, case, leaves=None, **more):
    """(lse, [out, dq, dk, dv, dsink]) of rotunda, whole again."""
    q, k, v, dout, dlse, sink = case.inputs()
    kind = more.pop("shard", "dual_chunk")
    of_q = rotunda.Sharding(case.s_q, group, kind=kind, cu_seqlens=case.cu_seqlens)
    of_k = of_q if case.s_k == case.s_q else rotunda.Sharding(case.s_k, group, kind=kind)
    packed = case.cu_seqlens is not None
    if packed:
        q, k, v, dout, dlse = q[0], k[0], v[0], dout[0], dlse[0]
    rows = 0 if packed else 1
    local = [s.shard(x.to(case.dtype), rows) for s, x in ((of_q, q), (of_k, k), (of_k, v))]
    leaves = [x.detach().clone().requires_grad_() for x in (*local, sink.float())]
    arguments = case.arguments | {"sink": {"learnable": leaves[3], "zero": "zero", None: None}[case.sink]} | more
    if not packed:
        arguments |= {"seqlen_q": case.s_q, "seqlen_k": case.s_k}
    poison()
    out, lse = rotunda.attention(*leaves[:3], shard=of_q, return_lse=True, **arguments)
    loss = (out.float() * of_q.shard(dout.float(), rows)).sum()
    if case.lse:
        visible = torch.isfinite(lse)
        loss = loss + (lse[visible] * of_q.shard(dlse.float(), lse.dim() - 1)[visible]).sum()
    loss.backward()
    dsink = leaves[3].grad
    if dsink is not None and of_q.group.size > 1:
        torch.distributed.all_reduce(dsink, group=of_q.group.process_group)
    whole = [of_q.unshard(out.detach(), rows), of_q.unshard(leaves[0].grad, rows)]
    whole += [of_k.unshard(leaves[1].grad, rows), of_k.unshard(leaves[2].grad, rows)]
    lse = of_q.unshard(lse.detach(), lse.dim() - 1)
    if packed:
        whole, lse = [x[None] for x in whole], lse[None]
    return lse, [*whole, dsink]


def grade(case, got):
    """Raises for what is not right enough."""
    want_lse, want = reference_pass(case, torch.float64)
    _, naive = reference_pass(case, case.dtype)
    lse, tensors = got
    finite = torch.isfinite(want_lse)
    assert torch.equal(finite, torch.isfinite(lse)), "lse: rows that see nothing differ"
    error = ((lse.double() - want_lse).abs() / want_lse.abs().clamp_min(1))[finite].max().item()
    problems = [] if error <= 1e-5 else [f"lse: error {error:.2e}, allowed 1e-5"]
    for name, a, b, plain in zip(NAMES, tensors, want, naive):
        if a is None or b is None:
            assert a is None and b is None, name
            continue
        # Where naive is exact, a few roundings of fp32 remain.
        allowed = 2 * (plain.double() - b).abs().max().item() + 1e-6 * b.abs().max().item()
        error = (a.double() - b).abs().max().item()
        if not error <= allowed:  # NaN too
            problems.append(f"{name}: error {error:.3e}, allowed {allowed:.3e}")
    assert not problems, "; ".join(problems)


def check(group, case, **more):
    grade(case, attend(group, case, **more))
