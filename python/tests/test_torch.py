"""What PyTorch does to an operator: compilation, checkpointing, autocast, inference."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import rotunda


def inputs(group, s=32, dtype=torch.float32):
    sharding = rotunda.Sharding(s, group)
    q, k, v = torch.randn(3, 2, s, 4, 16).unbind(0)
    return sharding, [sharding.shard(x).to(dtype).requires_grad_() for x in (q, k, v)]


def gradients(out, leaves):
    return torch.autograd.grad(out.float().square().sum(), leaves)


def test_compile_fullgraph(pool):
    pool.run(2, run_compile, "aot_eager")


@pytest.mark.long
def test_compile_inductor(pool):
    pool.run(2, run_compile, "inductor")


def run_compile(group, backend):
    group = rotunda.Group.of(group)
    sink = torch.randn(4, requires_grad=True)

    def layer(q, k, v, sink):
        out, lse = rotunda.attention(
            q * 2, k, v, mask="causal", window=(9, -1), sink=sink, group=group, return_lse=True
        )
        return out + 1, lse

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for s in (32, 48):  # recompiled, or with lengths as symbols
        _, leaves = inputs(group, s)
        want, got = layer(*leaves, sink), compiled(*leaves, sink)
        torch.testing.assert_close(got, want)
        for a, b in zip(*(torch.autograd.grad(x[0].sum() + x[1].sum(), (*leaves, sink)) for x in (got, want))):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_compile_with_groups_as_they_come(pool):
    pool.run(4, run_compile_groups)


def run_compile_groups(group):
    sharding = rotunda.Sharding(32, group)
    q = sharding.shard(torch.randn(1, 32, 4, 16))
    groups = [{"group": each} for each in (group, None, rotunda.Group(group, timeout=9))]
    for keywords in (*groups, {"shard": sharding}):
        want = rotunda.attention(q, q, q, mask="causal", **keywords)

        @torch.compile(fullgraph=True, backend="eager")
        def layer(q):
            return rotunda.attention(q, q, q, mask="causal", **keywords)  # noqa: B023

        torch.testing.assert_close(layer(q), want)


def test_compile_packed_without_recompiling(pool):
    pool.run(2, run_compile_packed)


def run_compile_packed(group):
    """Offsets are tensors: other documents of the same total are the same graph."""
    group = rotunda.Group.of(group)
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, backend=backend)
    def layer(q, k, v, cu_seqlens):
        return rotunda.attention(q, k, v, mask="causal", cu_seqlens_q=cu_seqlens, group=group)

    for offsets in ([0, 7, 24], [0, 16, 24], [0, 1, 24]):
        sharding = rotunda.Sharding(group=group, cu_seqlens=offsets)
        q = sharding.shard(torch.randn(24, 2, 16), 0)
        want = rotunda.attention(q, q, q, mask="causal", cu_seqlens_q=offsets, group=group)
        torch.testing.assert_close(layer(q, q, q, torch.tensor(offsets)), want)
    assert len(graphs) == 1


@pytest.mark.parametrize("reentrant", (False, True))
def test_checkpointing(pool, reentrant):
    pool.run(2, run_checkpoint, reentrant)


def run_checkpoint(group, reentrant):
    sharding, leaves = inputs(group)

    def layer(q, k, v):
        return rotunda.attention(q.sin(), k, v, mask="causal", shard=sharding)

    want = gradients(layer(*leaves), leaves)
    if reentrant:  # has only backward()
        checkpoint(layer, *leaves, use_reentrant=True).float().square().sum().backward()
        got = [x.grad for x in leaves]
    else:
        got = gradients(checkpoint(layer, *leaves, use_reentrant=False), leaves)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)


def test_autocast(pool):
    pool.run(2, run_autocast)


def run_autocast(group):
    sharding, leaves = inputs(group)
    with torch.autocast("cpu", torch.bfloat16):
        out = rotunda.attention(*leaves, mask="causal", shard=sharding)
    assert out.dtype == torch.bfloat16
    want = rotunda.attention(*(x.bfloat16() for x in leaves), mask="causal", shard=sharding)
    assert torch.equal(out, want)
    assert all(x.dtype == torch.float32 for x in gradients(out, leaves))


def test_operator_is_well_behaved(alone):
    """PyTorch's own checks of schema, fake kernel, autograd registration and AOT dispatch."""
    q, k, v = torch.randn(3, 1, 8, 2, 16).unbind(0)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    nothing = (None,) * 5
    problem, options = "layout=bshd mask=causal grad=1", f"group={alone.name} shard=dual_chunk"
    torch.library.opcheck(torch.ops.rotunda.attention, (*leaves, None, *nothing, problem, options))
    sink = torch.randn(2, requires_grad=True)
    problem = "layout=bshd mask=causal sink=learnable max_logit=1 grad=1"
    torch.library.opcheck(torch.ops.rotunda.attention, (*leaves, sink, *nothing, problem, options))


class Seen(TorchDispatchMode):
    """The operators that are called while it is on."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        self.operators.append(operator)
        return operator(*arguments, **(keywords or {}))


@pytest.mark.parametrize("grad", (False, True))
def test_modes_see_the_operator(alone, grad):
    q = torch.randn(1, 8, 2, 16, requires_grad=grad)
    with Seen() as seen:
        out = rotunda.attention(q, q, q, group=alone)
    assert out.requires_grad == grad
    assert torch.ops.rotunda.attention.default in seen.operators


def test_results_live_as_long_as_they_are_needed(alone):
    """Memory of a run is used again by the next: no result may lie in it."""
    q, k, v = torch.randn(3, 1, 64, 2, 16).unbind(0)
    first = rotunda.attention(q, k, v, mask="causal", group=alone)
    kept = first.clone()
    for _ in range(3):
        rotunda.attention(v, q, k, group=alone)
    assert torch.equal(first, kept)


class Plain(torch.Tensor):
    """As tensors were before PyTorch 2.10: capsules alone."""

    __dlpack_c_exchange_api__ = None


def test_tensors_of_older_versions(alone):
    q, k, v = torch.randn(3, 1, 64, 2, 16).unbind(0)
    with rotunda.ops.recording() as calls:
        want = rotunda.attention(q, k, v, mask="causal", group=alone)
    out, lse = torch.zeros_like(q), torch.zeros(1, 2, 64)
    plain = [x.as_subclass(Plain) for x in (q, k, v, out, lse)]
    calls[0].forward(*plain[:3], None, *plain[3:], None, None, 0)
    assert torch.equal(out, want)


def test_offsets_that_change_in_place():
    """What is remembered of offsets on a device is never stale."""
    offsets = torch.tensor([0, 3, 8])
    assert rotunda.ops.remember(offsets) == (0, 3, 8)
    offsets[1] = 5
    assert rotunda.ops.remember(offsets) == (0, 5, 8)
    assert rotunda.ops.remember(offsets) == (0, 5, 8)
    assert rotunda.ops.remember(offsets[:2]) == (0, 5)


def test_inference_mode(alone):
    q = torch.randn(1, 8, 2, 16, requires_grad=True)
    with torch.inference_mode():
        assert not rotunda.attention(q, q, q, group=alone).requires_grad
    with torch.no_grad():
        assert not rotunda.attention(q, q, q, group=alone).requires_grad


def test_no_double_backward(alone):
    q = torch.randn(1, 8, 2, 16, requires_grad=True)
    out = rotunda.attention(q, q, q, group=alone)
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(rotunda.UnsupportedError, match="double backward"):
        gradient.sum().backward()


def test_gradients_that_are_views(alone):
    """out.sum() hands down a gradient of stride 0."""
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 8, 2, 16).unbind(0))
    rotunda.attention(q, k, v, mask="causal", group=alone).sum().backward()
    got = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    out = rotunda.attention(q, k, v, mask="causal", group=alone)
    out.backward(torch.ones_like(out))
    for x, want in zip((q, k, v), got):
        assert torch.equal(x.grad, want)
