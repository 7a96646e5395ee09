"""What PyTorch does to an operator on GPUs: streams, its allocator, CUDA graphs, compilation, checkpoints, autocast."""

import gc
import shutil

import pytest
import torch
from cases import Case, my_device
from torch.utils.checkpoint import checkpoint

import rotunda

TRANSPORTS = ("ipc", "nccl")


def run_on(gpus, ranks, transport, case, *arguments):
    """A case(group, …) over one transport, where it needs CUDA: the tests can't be tried out on CPUs."""
    gpus.run(ranks, on_transport, transport, case, arguments)


def on_transport(group, transport, case, arguments):
    if my_device().type == "cpu":
        return  # nothing to try out: streams and graphs are CUDA's
    case(rotunda.Group(group, transport=transport), *arguments)


def local_inputs(group, case=None):
    """This rank's q, k, v (leaves) and dout, and the sharding."""
    case = case or Case()
    q, k, v, dout, *_ = case.inputs()
    sharding = rotunda.Sharding(case.s_q, group)
    *leaves, dout = (sharding.shard(x.to(case.dtype)) for x in (q, k, v, dout))
    return [x.requires_grad_() for x in leaves], dout, sharding


def both_passes(leaves, dout, sharding, **arguments):
    """[out, dq, dk, dv], the same bits every time."""
    out = rotunda.attention(*leaves, mask="causal", shard=sharding, deterministic=True, **arguments)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def delay(milliseconds):
    """Keeps the current stream busy, so that what should wait for it, and doesn't, is seen."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))  # cycles


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", (1, 2))
def test_current_stream(gpus, ranks, transport):
    run_on(gpus, ranks, transport, run_streams)


def run_streams(group):
    """Calls on other streams, one after the other with no synchronisation in between."""
    leaves, dout, sharding = local_inputs(group)
    want = both_passes(leaves, dout, sharding)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for i in range(9):
        stream = streams[i % 3]
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            delay(5 * ((i + group.rank) % 2))
            results.append(both_passes(leaves, dout, sharding))
    torch.cuda.synchronize()
    assert all(same(result, want) for result in results)
    # What a stream has not made yet is waited for.
    with torch.cuda.stream(streams[0]):
        delay(20)
        late = [x.detach().clone().requires_grad_() for x in leaves]
        got = both_passes(late, dout, sharding)
    streams[0].synchronize()
    assert same(got, want)


def test_ranks_that_share_a_gpu(gpus):
    if not gpus.share:
        pytest.skip("each rank has a GPU of its own")
    run_on(gpus, 2, "ipc", run_turns)


def run_turns(group):
    """They take turns on it: a call ends when the GPU has run it."""
    leaves, dout, sharding = local_inputs(group)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            delay(20 * group.rank)
            rotunda.attention(*(x.detach() for x in leaves), mask="causal", shard=sharding)
            assert stream.query()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("schedule", ("p2p", "all_gather", "a2a"))
def test_allocator(gpus, schedule, transport):
    run_on(gpus, 2, transport, run_allocator, schedule)


def run_allocator(group, schedule):
    """Memory that PyTorch has taken back, and given out again, while a peer might still read it."""
    leaves, dout, sharding = local_inputs(group, Case(s_q=4096))
    want = both_passes(leaves, dout, sharding, schedule=schedule)
    for i in range(20):
        delay(3 * ((i + group.rank) % 2))  # one rank lags behind, then the other
        mine = [x.detach().clone().requires_grad_() for x in leaves]
        gradient = dout.clone()
        out = rotunda.attention(*mine, mask="causal", shard=sharding, deterministic=True, schedule=schedule)
        got = [out.detach(), *torch.autograd.grad(out, mine, gradient)]
        del mine, gradient, out
        junk = [torch.full_like(x, torch.nan) for x in (*leaves, dout)]
        assert same(got, want), i
        del got, junk


def test_memory_comes_back(gpus):
    run_on(gpus, 2, "ipc", run_memory)


def run_memory(group):
    """Neither plans nor exchanges hold on to a caller's tensors; segments that PyTorch gives back are no stale map."""
    leaves, dout, sharding = local_inputs(group, Case(s_q=4096))
    want = both_passes(leaves, dout, sharding)
    gc.collect()  # what earlier tests have left in cycles may go at any time
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        got = both_passes([x.detach().clone().requires_grad_() for x in leaves], dout.clone(), sharding)
        assert same(got, want)
        del got
        torch.cuda.empty_cache()  # the next segments may lie at the same addresses
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", (1, 2))
def test_cuda_graph(gpus, ranks, transport):
    run_on(gpus, ranks, transport, run_graph)


def run_graph(group):
    leaves, dout, sharding = local_inputs(group)
    others = [x.detach().flip(0, 1).clone() for x in leaves]
    want = both_passes(leaves, dout, sharding)
    want_others = both_passes([x.clone().requires_grad_() for x in others], dout, sharding)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # as PyTorch's documentation warms up
        for _ in range(3):
            both_passes(leaves, dout, sharding)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both_passes(leaves, dout, sharding)
    firsts = [x.detach().clone() for x in leaves]
    for new, expected in ((others, want_others), (firsts, want), (others, want_others)):
        with torch.no_grad():
            for leaf, value in zip(leaves, new):
                leaf.copy_(value)
        for result in captured:
            result.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert same(captured, expected)
    # A call outside, on the same group, between replays.
    assert same(both_passes([x.requires_grad_() for x in firsts], dout, sharding), want)
    graph.replay()
    torch.cuda.synchronize()
    assert same(captured, want_others)
    del graph


def test_graph_outlives_plans(gpus):
    run_on(gpus, 1, "auto", run_outliving_graph)


def run_outliving_graph(group):
    """A failed call, and new problems in large numbers, take nothing from a graph."""
    leaves, dout, sharding = local_inputs(group)
    want = both_passes(leaves, dout, sharding)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both_passes(leaves, dout, sharding)
    with pytest.raises(ValueError, match="window"):
        both_passes(leaves, dout, sharding, window=(-5, 0))
    for left in range(1, 80):
        rotunda.attention(*leaves, mask="causal", shard=sharding, window=(left, 0))
    junk = [torch.full((1 << 20,), -1, dtype=torch.int32, device=my_device()) for _ in range(8)]
    torch.cuda.empty_cache()
    graph.replay()
    torch.cuda.synchronize()
    assert same(captured, want)
    del junk, graph


@pytest.mark.parametrize("ranks", (1, 2))
def test_graph_of_a_call_that_is_new(gpus, ranks):
    run_on(gpus, ranks, "auto", run_new_in_graph)


def run_new_in_graph(group):
    """Refused, with what to do; everything works afterwards."""
    leaves, dout, sharding = local_inputs(group)
    both_passes(leaves, dout, sharding)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            both_passes(leaves, dout, sharding, window=(33, 0))
    except rotunda.UnsupportedError as error:
        assert "before the capture" in str(error), error
    else:
        raise AssertionError("no error")
    torch.cuda.synchronize()
    both_passes(leaves, dout, sharding, window=(33, 0))


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
@pytest.mark.parametrize("ranks", (1, 2))
def test_compile(gpus, ranks, backend):
    if backend == "inductor" and not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("inductor needs a C compiler on GPUs")
    gpus.run(ranks, run_compile, backend if torch.cuda.device_count() else "aot_eager")


def run_compile(group, backend):
    leaves, dout, sharding = local_inputs(group)

    def layer(q, k, v):
        return rotunda.attention(q * 2, k, v, mask="causal", shard=sharding, deterministic=True) + 1

    want, got = layer(*leaves), torch.compile(layer, fullgraph=True, backend=backend)(*leaves)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got, leaves, dout), torch.autograd.grad(want, leaves, dout)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("reentrant", (False, True))
@pytest.mark.parametrize("ranks", (1, 2))
def test_checkpointing(gpus, ranks, reentrant):
    gpus.run(ranks, run_checkpoint, reentrant)


def run_checkpoint(group, reentrant):
    leaves, dout, sharding = local_inputs(group)

    def layer(q, k, v):
        return rotunda.attention(q * 2, k, v, mask="causal", shard=sharding, deterministic=True)

    want = torch.autograd.grad(layer(*leaves), leaves, dout)
    checkpoint(layer, *leaves, use_reentrant=reentrant).backward(dout)
    assert same([x.grad for x in leaves], want)


def test_autocast(gpus):
    gpus.run(2, run_autocast)


def run_autocast(group):
    leaves, dout, sharding = local_inputs(group)
    wide = [x.detach().float().requires_grad_() for x in leaves]
    with torch.autocast(my_device().type, torch.bfloat16):
        out = rotunda.attention(*wide, mask="causal", shard=sharding, deterministic=True)
    assert out.dtype == torch.bfloat16
    gradients = torch.autograd.grad(out, wide, dout)
    want = both_passes(leaves, dout, sharding)
    assert same([out.detach(), *(x.bfloat16() for x in gradients)], want)
    assert all(x.dtype == torch.float32 for x in gradients)


def test_another_device_than_the_current(gpus):
    if torch.cuda.device_count() < 2:
        pytest.skip("2 GPUs are needed")
    run_on(gpus, 2, "auto", run_other_device)


def run_other_device(group):
    """Alone on the device that is not current, which stays what it was."""
    other = torch.device("cuda", 1 - group.rank)
    q = torch.randn(1, 256, 4, 64, device=other, dtype=torch.bfloat16, requires_grad=True)
    out = rotunda.attention(q, q, q, mask="causal", group="self")
    out.sum().backward()
    assert torch.cuda.current_device() == group.rank and out.device == q.grad.device == other
    here = q.detach().to(my_device()).requires_grad_()
    torch.testing.assert_close(rotunda.attention(here, here, here, mask="causal", group="self").to(other), out)
    assert q.grad.isfinite().all()
