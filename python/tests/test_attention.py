"""rotunda.attention against float64 autograd: every mask, schedule, shard and layout, forward and backward."""

from dataclasses import dataclass, field

import pytest
import reference
import torch

import rotunda

SCHEDULES = ("p2p", "all_gather", "a2a", "a2a_p2p")


@dataclass
class Case:
    """Shapes of the whole sequence, the arguments of rotunda.attention, and what a row sees."""

    arguments: dict = field(default_factory=dict)
    seen: object = None  # bool [b, s_q, s_k]; None: everything
    b: int = 2
    s_q: int = 48
    s_k: int = 0
    h_q: int = 4
    h_kv: int = 4
    d: int = 16
    d_v: int = 0
    sink: object = None
    dtype: torch.dtype = torch.float32

    def __post_init__(self):
        self.s_k = self.s_k or self.s_q
        self.d_v = self.d_v or self.d
        if self.seen is None:
            self.seen = reference.band(self.s_q, self.s_k)


PREFIX = reference.band(48, 48, right=0) | (torch.arange(48) < 7)
CHUNK = reference.band(48, 48, right=0) & (torch.arange(48)[:, None] // 10 == torch.arange(48) // 10)
PADDED = torch.stack([reference.band(48, 48, right=0)[0], reference.band(48, 48, right=0)[0]])
PADDED[1, 31:] = False
PADDED[1, :, 31:] = False
SLICES = torch.tensor(
    [[0, 0, 20, 0, 20, 0, 0, 2**63 - 1, 0], [0, 20, 20, 8, 40, 0, 0, 5, 9], [1, 3, 40, 0, 48, 3, 0, 9, 9]]
)
SLICED = torch.zeros(2, 48, 48, dtype=torch.bool)
SLICED[0, :20, :20] = reference.band(20, 20, right=0)[0]
SLICED[0, 20:40, 8:] = reference.band(20, 40, left=5, right=9)[0]
SLICED[1, 3:43] = reference.band(40, 48, left=9, right=9, shift=3)[0]

MASKS = {
    "none": Case(),
    "causal": Case({"mask": "causal"}, reference.band(48, 48, right=0)),
    "is_causal": Case({"is_causal": True}, reference.band(48, 48, right=0)),
    "window": Case({"mask": "causal", "window": (9, -1)}, reference.band(48, 48, left=9, right=0)),
    "window_both": Case({"window": (5, 11)}, reference.band(48, 48, left=5, right=11)),
    "bottom_right": Case({"mask": "causal_bottom_right"}, reference.band(30, 48, right=0, shift=18), s_q=30, s_k=48),
    "cross": Case({}, None, s_q=20, s_k=44),
    "prefix": Case({"mask": "causal", "prefix": 7}, PREFIX),
    "chunk": Case({"mask": "causal", "chunk": 10}, CHUNK),
    "padding": Case({"mask": "causal", "seqused_q": [48, 31], "seqused_k": [48, 31]}, PADDED),
    "slices": Case({"slices": SLICES}, SLICED),
    "gqa": Case({"mask": "causal"}, reference.band(48, 48, right=0), h_q=8),
    "narrow_v": Case({"mask": "causal"}, reference.band(48, 48, right=0), d=24, d_v=16),
    "uneven": Case({"mask": "causal", "seqlen_q": 43}, reference.band(43, 43, right=0), s_q=43),
    "scale": Case({"mask": "causal", "scale": 0.7}, reference.band(48, 48, right=0)),
    "sink": Case({"mask": "causal"}, reference.band(48, 48, right=0), sink="learnable"),
    "sink_zero": Case({"mask": "causal", "sink": "zero"}, reference.band(48, 48, right=0), sink="zero"),
    "wide": Case({"mask": "causal", "window": (9, 0)}, reference.band(48, 48, left=9, right=0), d=320, b=1),
}


def make_inputs(case):
    draw = torch.Generator().manual_seed(7)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(case.dtype).double()

    b, s_q, s_k, h_q, h_kv = case.b, case.s_q, case.s_k, case.h_q, case.h_kv
    q, k, v = normal(b, s_q, h_q, case.d), normal(b, s_k, h_kv, case.d), normal(b, s_k, h_kv, case.d_v)
    return q, k, v, normal(b, s_q, h_q, case.d_v), normal(b, h_q, s_q), normal(h_q)


def expected(case):
    """out, lse, and the gradients of q, k, v and the sink, in float64."""
    q, k, v, dout, dlse, sink = make_inputs(case)
    leaves = [x.requires_grad_() for x in (q, k, v, sink)]
    given = {"learnable": sink, "zero": torch.zeros_like(sink), None: None}[case.sink]
    out, lse = reference.attention(q, k, v, case.seen, case.arguments.get("scale"), given)
    visible = torch.isfinite(lse)
    ((out * dout).sum() + (lse[visible] * dlse[visible]).sum()).backward()
    return [out.detach(), lse.detach(), *(x.grad for x in leaves)]


def attend(group, case, **arguments):
    """The same from rotunda, whole again, and the sharding."""
    q, k, v, dout, dlse, sink = make_inputs(case)
    kind = arguments.pop("shard", "dual_chunk")
    of_q = rotunda.Sharding(case.s_q, group, kind=kind)
    of_k = rotunda.Sharding(case.s_k, group, kind=kind)
    local = [of_q.shard(q.to(case.dtype)), of_k.shard(k.to(case.dtype)), of_k.shard(v.to(case.dtype)), sink.float()]
    leaves = [x.detach().clone().requires_grad_() for x in local]
    arguments = case.arguments | arguments
    if case.sink == "learnable":
        arguments["sink"] = leaves[3]
    if case.s_q != case.s_k:
        arguments["seqlen_k"] = case.s_k
        arguments["seqlen_q"] = case.s_q
    out, lse = rotunda.attention(*leaves[:3], group=group, shard=kind, return_lse=True, **arguments)
    loss = (out * of_q.shard(dout.to(case.dtype))).sum()
    visible = torch.isfinite(lse)
    (loss + (lse[visible] * of_q.shard(dlse.float(), 2)[visible]).sum()).backward()
    dsink = leaves[3].grad
    if dsink is not None and of_q.group.size > 1:
        torch.distributed.all_reduce(dsink, group=of_q.group.process_group)  # as any parameter's gradient
    whole = [of_q.unshard(out.detach()), of_q.unshard(lse.detach(), 2), of_q.unshard(leaves[0].grad)]
    return whole + [of_k.unshard(leaves[1].grad), of_k.unshard(leaves[2].grad), dsink]


NAMES = ("out", "lse", "dq", "dk", "dv", "dsink")


def compare(group, case, tolerance=2e-5, **arguments):
    for name, want, got in zip(NAMES, expected(case), attend(group, case, **arguments)):
        if want is None or got is None:
            assert want is None and got is None, name
            continue
        finite = torch.isfinite(want)
        assert torch.equal(finite, torch.isfinite(got)), f"{name}: rows that see nothing differ"
        error = (got.double() - want)[finite].abs().max().item() if finite.any() else 0.0
        bound = tolerance * max(1.0, want[finite].abs().max().item() if finite.any() else 0.0)
        assert error <= bound, f"{name}: error {error:.2e}, allowed {bound:.2e}"


def run_mask(group, name, schedule, **arguments):
    if schedule == "a2a_p2p":
        arguments["inner"] = 2
    compare(group, MASKS[name], schedule=schedule, **arguments)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", MASKS)
def test_masks(pool, name, schedule):
    pool.run(4 if schedule == "a2a_p2p" else 2, run_mask, name, schedule)


@pytest.mark.parametrize("name", MASKS)
def test_masks_on_four_ranks(pool, name):
    pool.run(4, run_mask, name, "auto")


@pytest.mark.parametrize("name", MASKS)
def test_masks_alone(alone, name):
    run_mask("self", name, "auto")


def test_masks_matter():
    """A mask that changed nothing would be tested by nothing."""
    plain = expected(MASKS["none"])[0]
    for name in ("causal", "window", "window_both", "prefix", "chunk", "padding", "slices", "sink_zero"):
        assert (expected(MASKS[name])[0] - plain).abs().max() > 0.1, name


@pytest.mark.parametrize("backward", SCHEDULES[:3])
@pytest.mark.parametrize("forward", SCHEDULES[:3])
def test_mixed_schedules(pool, forward, backward):
    if forward != backward:
        pool.run(2, run_mixed, forward, backward)


def run_mixed(group, forward, backward):
    compare(group, MASKS["window"], schedule=forward, backward_schedule=backward)


@pytest.mark.parametrize("shard", ("contiguous", "striped", "balanced", "dual_chunk_doc"))
@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_shards(pool, ranks, shard):
    pool.run(ranks, run_shard, shard)


def run_shard(group, shard):
    compare(group, MASKS["causal"], shard=shard)


@pytest.mark.parametrize("layout", ("bshd", "sbhd", "bhsd"))
def test_layouts_and_strides(pool, layout):
    pool.run(2, run_layout, layout)


def run_layout(group, layout):
    """Views of a fused projection: nothing of them is contiguous."""
    case = MASKS["causal"]
    q, k, v, dout, _, _ = make_inputs(case)
    axes = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}[layout]
    sharding = rotunda.Sharding(case.s_q, group)
    fused = torch.stack([sharding.shard(x.float()).permute(axes) for x in (q, k, v)], -1)
    leaf = fused.contiguous().requires_grad_()
    out = rotunda.attention(*leaf.unbind(-1), layout=layout, mask="causal", group=group)
    (out.permute(*torch.tensor(axes).argsort().tolist()) * sharding.shard(dout.float())).sum().backward()
    for got, want in zip(leaf.grad.unbind(-1), reference_gradients(case)):
        got = got.permute(*torch.tensor(axes).argsort().tolist())
        torch.testing.assert_close(got.double(), sharding.shard(want), rtol=1e-4, atol=2e-5)


def reference_gradients(case):
    q, k, v, dout, _, _ = make_inputs(case)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    reference.attention(*leaves, case.seen)[0].backward(dout)
    return [x.grad for x in leaves]


PACKED = [0, 5, 5, 17, 18, 40, 60]  # an empty document, and one of a single token
PACKED_MASKS = {
    "none": ({}, reference.documents(PACKED)),
    "causal": ({"mask": "causal"}, reference.documents(PACKED, right=0)),
    "window": ({"mask": "causal", "window": (4, 0)}, reference.documents(PACKED, left=4, right=0)),
    "used": (
        {"mask": "causal", "seqused_q": [3, 0, 12, 1, 20, 9], "seqused_k": [3, 0, 12, 1, 20, 9]},
        reference.documents(PACKED, right=0, used=[3, 0, 12, 1, 20, 9]),
    ),
}


@pytest.mark.parametrize("shard", ("dual_chunk", "dual_chunk_doc", "balanced"))
@pytest.mark.parametrize("name", PACKED_MASKS)
@pytest.mark.parametrize("ranks", (1, 2, 4))
def test_packed(pool, ranks, name, shard):
    pool.run(ranks, run_packed, name, shard)


def run_packed(group, name, shard):
    arguments, seen = PACKED_MASKS[name]
    case = Case({}, seen, b=1, s_q=60)
    q, k, v, dout, _, _ = make_inputs(case)
    out, lse = reference.attention(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), seen)
    out.backward(dout)
    sharding = rotunda.Sharding(group=group, kind=shard, cu_seqlens=PACKED)
    leaves = [sharding.shard(x[0].detach().float(), 0).requires_grad_() for x in (q, k, v)]
    got, got_lse = rotunda.attention(*leaves, shard=sharding, return_lse=True, **arguments)
    got.backward(sharding.shard(dout[0].float(), 0))
    for a, b in ((got, out[0]), *((x.grad, y.grad[0]) for x, y in zip(leaves, (q, k, v)))):
        torch.testing.assert_close(a.double(), sharding.shard(b.detach(), 0), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(got_lse.double(), sharding.shard(lse[0].detach(), 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("ranks", (2, 4))
def test_sixteen_bits(pool, ranks, dtype):
    pool.run(ranks, run_sixteen_bits, dtype)


def run_sixteen_bits(group, dtype):
    """The project's bar: at most twice the error of naive attention in the same dtype."""
    case = Case({"mask": "causal"}, reference.band(96, 96, right=0), s_q=96, d=32, dtype=dtype)
    q, k, v, dout, _, _ = make_inputs(case)
    naive = reference.naive_error(q, k, v, dout, case.seen, dtype)
    want = [reference.attention(q, k, v, case.seen)[0], *reference_gradients(case)]
    sharding = rotunda.Sharding(case.s_q, group)
    leaves = [sharding.shard(x.detach().to(dtype)).requires_grad_() for x in (q, k, v)]
    out = rotunda.attention(*leaves, shard=sharding, mask="causal")
    assert out.dtype == dtype
    out.backward(sharding.shard(dout.to(dtype)))
    for name, allowed, a, b in zip(("out", "dq", "dk", "dv"), naive, (out, *(x.grad for x in leaves)), want):
        error = (sharding.unshard(a.detach()).double() - b.detach()).abs().max().item()
        assert error <= 2 * allowed, f"{name}: {error:.3e}, naive {allowed:.3e}"


def test_any_subset_of_gradients(pool):
    pool.run(2, run_subsets)


def run_subsets(group):
    case = MASKS["causal"]
    q, k, v, dout, _, _ = make_inputs(case)
    sharding = rotunda.Sharding(case.s_q, group)
    want = reference_gradients(case)
    for wanted in range(1, 8):
        leaves = [sharding.shard(x.detach().float()) for x in (q, k, v)]
        for i, leaf in enumerate(leaves):
            leaf.requires_grad_(bool(wanted >> i & 1))
        rotunda.attention(*leaves, shard=sharding, mask="causal").backward(sharding.shard(dout.float()))
        for i, leaf in enumerate(leaves):
            assert (leaf.grad is not None) == bool(wanted >> i & 1)
            if leaf.grad is not None:
                torch.testing.assert_close(leaf.grad.double(), sharding.shard(want[i]), rtol=1e-4, atol=2e-5)
    frozen = [sharding.shard(x.detach().float()) for x in (q, k, v)]
    assert not rotunda.attention(*frozen, shard=sharding, mask="causal").requires_grad


def test_gradient_of_lse_alone(pool):
    pool.run(2, run_lse_alone)


def run_lse_alone(group):
    case = MASKS["causal"]
    q, k, v, _, dlse, _ = make_inputs(case)
    reference.attention(q.requires_grad_(), k.requires_grad_(), v, case.seen)[1].backward(dlse)
    sharding = rotunda.Sharding(case.s_q, group)
    leaves = [sharding.shard(x.detach().float()).requires_grad_() for x in (q, k, v)]
    _, lse = rotunda.attention(*leaves, shard=sharding, mask="causal", return_lse=True)
    lse.backward(sharding.shard(dlse.float(), 2))
    for leaf, want in zip(leaves, (q.grad, k.grad, torch.zeros_like(v))):
        torch.testing.assert_close(leaf.grad.double(), sharding.shard(want), rtol=1e-4, atol=2e-5)


def test_max_logit(pool):
    pool.run(2, run_max_logit)


def run_max_logit(group):
    case = MASKS["causal"]
    q, k, v, *_ = make_inputs(case)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * case.d**-0.5
    want = scores.masked_fill(~case.seen[:, None], -torch.inf).amax((0, 2, 3))
    sharding = rotunda.Sharding(case.s_q, group)
    local = [sharding.shard(x.float()) for x in (q, k, v)]
    _, got = rotunda.attention(*local, shard=sharding, mask="causal", return_max_logit=True)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_deterministic(pool):
    pool.run(2, run_deterministic)


def run_deterministic(group):
    runs = [attend(group, MASKS["causal"], deterministic=True, schedule="p2p") for _ in range(2)]
    for a, b in zip(*runs):
        assert a is None or torch.equal(a, b)


def test_pair_of_groups_and_meshes(pool):
    pool.run(4, run_pairs)


def run_pairs(group):
    """a2a_p2p over the groups that Megatron passes, and over a mesh."""
    import torch.distributed as dist

    rank = dist.get_rank()
    inner = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    outer = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][rank % 2]
    mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("p2p", "a2a"))
    for pair in ((inner, outer), mesh):
        made = rotunda.Group(pair)
        assert (made.size, made.rank, made.inner) == (4, rank, 2)
        compare(made, MASKS["causal"], schedule="a2a_p2p")
    flat = torch.distributed.init_device_mesh("cpu", (4,))
    compare(rotunda.Group(flat), MASKS["causal"], schedule="p2p")


def test_explain(alone):
    q = torch.randn(1, 8, 2, 16)
    text = rotunda.explain(q, q, q, mask="causal", group="self")
    assert "mask=causal" in text and "forward" in text
