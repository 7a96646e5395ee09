"""rotunda.attention on one GPU and on two: head dims, dtypes, schedules, transports, masks, layouts."""

import pytest
import reference
import torch
from cases import Case, attend, check, my_device

import rotunda

SCHEDULES = ("p2p", "all_gather", "a2a")
DIMS = {"64": (64, 64), "96": (96, 96), "128": (128, 128), "192-128": (192, 128), "256": (256, 256), "512": (512, 512)}
FULL = 2**63 - 1

PREFIX = reference.band(512, 512, right=0) | (torch.arange(512) < 70)
CHUNK = reference.band(512, 512, right=0) & (torch.arange(512)[:, None] // 100 == torch.arange(512) // 100)
PADDED = reference.band(512, 512, right=0, batch=2).clone()
PADDED[1, 310:] = False
PADDED[1, :, 310:] = False
SLICES = torch.tensor([[0, 0, 200, 0, 200, 0, 0, FULL, 0], [0, 200, 250, 80, 400, 0, 0, 50, 90]])
SLICED = torch.zeros(1, 512, 512, dtype=torch.bool)
SLICED[0, :200, :200] = reference.band(200, 200, right=0)[0]
SLICED[0, 200:450, 80:480] = reference.band(250, 400, left=50, right=90)[0]

MASKS = {
    "none": Case({}, reference.band(512, 512)),
    "causal": Case(),
    "window": Case({"mask": "causal", "window": (90, -1)}, reference.band(512, 512, left=90, right=0)),
    "window_both": Case({"window": (50, 110)}, reference.band(512, 512, left=50, right=110)),
    "bottom_right": Case(
        {"mask": "causal_bottom_right"}, reference.band(300, 512, right=0, shift=212), s_q=300, s_k=512
    ),
    "cross": Case({}, reference.band(200, 440), s_q=200, s_k=440),
    "prefix": Case({"mask": "causal", "prefix": 70}, PREFIX),
    "chunk": Case({"mask": "causal", "chunk": 100}, CHUNK),
    "padding": Case({"mask": "causal", "seqused_q": [512, 310], "seqused_k": [512, 310]}, PADDED, b=2),
    "slices": Case({"slices": SLICES}, SLICED),
    "mqa": Case(h_q=8, h_kv=1),
    "uneven": Case(s_q=437),
    "scale": Case({"mask": "causal", "scale": 0.2}),
    "sink": Case(sink="learnable"),
    "sink_zero": Case(sink="zero"),
}

PACKED = [0, 130, 131, 400, 640]
PADDING = [130, 1, 200, 240]


@pytest.mark.parametrize("ranks", (1, 2))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=("bf16", "fp16"))
@pytest.mark.parametrize("dims", DIMS)
def test_head_dims(gpus, dims, dtype, ranks):
    d, d_v = DIMS[dims]
    gpus.run(ranks, check, Case(d=d, d_v=d_v, dtype=dtype))


@pytest.mark.parametrize("transport", ("ipc", "nccl"))
@pytest.mark.parametrize("backward", SCHEDULES)
@pytest.mark.parametrize("forward", SCHEDULES)
def test_schedules(gpus, forward, backward, transport):
    gpus.run(2, run_transport, transport, Case(), {"schedule": forward, "backward_schedule": backward})


@pytest.mark.parametrize("inner", (1, 2))
def test_two_dimensions(gpus, inner):
    gpus.run(2, run_transport, "auto", Case(), {"schedule": "a2a_p2p", "inner": inner})


def run_transport(group, transport, case, arguments):
    if my_device().type == "cpu":
        transport = "auto"  # the tests themselves are tried out
    made = rotunda.Group(group, transport=transport)
    check(made, case, **arguments)
    got = made.end(my_device()).core.transport
    assert transport in ("auto", got), got


@pytest.mark.parametrize("ranks", (1, 2))
@pytest.mark.parametrize("name", MASKS)
def test_masks(gpus, name, ranks):
    gpus.run(ranks, check, MASKS[name])


@pytest.mark.parametrize("d", (128, 512))
@pytest.mark.parametrize("used", (None, PADDING), ids=("full", "padded"))
@pytest.mark.parametrize("shard", ("dual_chunk", "dual_chunk_doc", "balanced"))
@pytest.mark.parametrize("ranks", (1, 2))
def test_packed(gpus, ranks, shard, used, d):
    gpus.run(ranks, run_packed, shard, used, d)


def run_packed(group, shard, used, d):
    arguments = {"mask": "causal"}
    if used:
        arguments |= {"seqused_q": torch.tensor(used, device=my_device()), "seqused_k": used}
    seen = reference.documents(PACKED, right=0, used=used)
    check(group, Case(arguments, seen, s_q=PACKED[-1], d=d, cu_seqlens=PACKED), shard=shard)


@pytest.mark.parametrize("kernel", ("auto", "mma"))
@pytest.mark.parametrize("ranks", (1, 2))
def test_gradient_of_lse(gpus, ranks, kernel):
    gpus.run(ranks, run_lse, kernel)


def run_lse(group, kernel):
    if my_device().type == "cpu":
        kernel = "auto"
    check(group, Case(lse=True), kernel=kernel)


@pytest.mark.parametrize("ranks", (1, 2))
def test_max_logit(gpus, ranks):
    gpus.run(ranks, run_max_logit)


def run_max_logit(group):
    case = Case()
    q, k, v, *_ = case.inputs()
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) * case.d**-0.5
    want = scores.masked_fill(~case.seen.to(q.device)[:, None], -torch.inf).amax((0, 2, 3))
    sharding = rotunda.Sharding(case.s_q, group)
    local = [sharding.shard(x.to(case.dtype)) for x in (q, k, v)]
    kernel = "auto" if my_device().type == "cpu" else "mma"
    _, got = rotunda.attention(*local, shard=sharding, mask="causal", return_max_logit=True, kernel=kernel)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ranks", (1, 2))
def test_any_subset_of_gradients(gpus, ranks):
    gpus.run(ranks, run_subsets)


def run_subsets(group):
    case = Case()
    q, k, v, dout, *_ = case.inputs()
    sharding = rotunda.Sharding(case.s_q, group)
    want = None
    for wanted in (7, 1, 2, 3, 4, 5, 6):
        leaves = [sharding.shard(x.to(case.dtype)) for x in (q, k, v)]
        for i, leaf in enumerate(leaves):
            leaf.requires_grad_(bool(wanted >> i & 1))
        out = rotunda.attention(*leaves, shard=sharding, mask="causal", deterministic=True)
        out.backward(sharding.shard(dout.to(case.dtype)))
        got = [leaf.grad for leaf in leaves]
        want = want or got
        for i, gradient in enumerate(got):
            assert (gradient is not None) == bool(wanted >> i & 1)
            assert gradient is None or torch.equal(gradient, want[i])


@pytest.mark.parametrize("ranks", (1, 2))
@pytest.mark.parametrize("layout", ("bshd", "sbhd", "bhsd"))
def test_layouts_and_strides(gpus, layout, ranks):
    gpus.run(ranks, run_layout, layout)


def run_layout(group, layout):
    """Views of a fused projection, and one whose rows begin at odd addresses."""
    case = Case(b=2)
    q, k, v, dout, *_ = case.inputs()
    axes = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}[layout]
    back = torch.tensor(axes).argsort().tolist()
    sharding = rotunda.Sharding(case.s_q, group)
    plain = [sharding.shard(x.to(case.dtype)) for x in (q, k, v)]
    want = rotunda.attention(*plain, mask="causal", shard=sharding, deterministic=True)
    leaves = [x.permute(axes).requires_grad_() for x in plain]
    odd = torch.empty(leaves[1].numel() + 1, dtype=case.dtype, device=q.device)[1:].view(leaves[1].shape)
    odd.copy_(leaves[1].detach())
    fused = torch.stack([leaves[2].detach()] * 3, -1)[..., 1]  # stride 3 in the last axis
    wide = torch.nn.functional.pad(leaves[0].detach(), (0, 3))[..., : case.d]  # rows that are not 16 bytes apart
    for given in (leaves, (leaves[0], odd, leaves[2]), (leaves[0], leaves[1], fused), (wide, leaves[1], leaves[2])):
        out = rotunda.attention(*given, layout=layout, mask="causal", shard=sharding, deterministic=True)
        assert torch.equal(out.detach().permute(back), want)
    out = rotunda.attention(*leaves, layout=layout, mask="causal", shard=sharding)
    out.backward(sharding.shard(dout.to(case.dtype)).permute(axes))
    assert all(x.grad.isfinite().all() for x in leaves)


@pytest.mark.parametrize("transport", ("ipc", "nccl"))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_deterministic(gpus, schedule, transport):
    gpus.run(2, run_deterministic, transport, schedule)


def run_deterministic(group, transport, schedule):
    made = rotunda.Group(group, transport="auto" if my_device().type == "cpu" else transport)
    runs = [attend(made, Case(s_q=777), schedule=schedule, deterministic=True) for _ in range(3)]
    for lse, tensors in runs[1:]:
        assert torch.equal(lse, runs[0][0])
        assert all(torch.equal(a, b) for a, b in zip(tensors[:4], runs[0][1]))
