"""What does not work on GPUs says so on every rank, at once, and the group works afterwards."""

import time

import pytest
import torch
from cases import my_device
from test_errors import no_more_memory

import rotunda


def inputs(**options):
    return torch.randn(1, 64, 4, 64, **{"device": my_device(), "dtype": torch.bfloat16} | options)


def meet(group):
    """A barrier of the group."""
    group = rotunda.Group.of(group)
    if group.size > 1:
        torch.distributed.barrier(group.process_group)


def works(group):
    q = inputs().requires_grad_()
    rotunda.attention(q, q, q, mask="causal", group=group).sum().backward()
    meet(group)


def expect(kinds, says, *tensors, **arguments):
    begin = time.monotonic()
    try:
        rotunda.attention(*tensors, mask="causal", **arguments)
    except kinds as error:
        assert says in str(error), error
    else:
        raise AssertionError(f"no error; wanted: {says}")
    assert time.monotonic() - begin < 10  # nobody has waited for a timeout
    meet(arguments["group"])


def tried_out():
    """On CPUs, where there is nothing to refuse."""
    return my_device().type == "cpu"


@pytest.mark.parametrize("transport", ("ipc", "nccl"))
def test_wrong_devices(gpus, transport):
    gpus.run(2, run_wrong_devices, transport)


def run_wrong_devices(group, transport):
    if tried_out():
        return
    made = rotunda.Group(group, transport=transport)
    q, host = inputs(), inputs(device="cpu")
    works(made)
    expect(ValueError, "one device", q, host, q, group=made)
    works(made)
    expect(NotImplementedError, f"transport {transport} does not carry tensors on cpu", host, host, host, group=made)
    works(made)
    carried = rotunda.Group(group, transport="callback")
    expect(NotImplementedError, "callback does not carry tensors on cuda", q, q, q, group=carried)
    expect(ValueError, "sink", q, q, q, group=made, sink=torch.zeros(4))
    works(made)
    # One rank's alone: the other hears of it.
    mine = (q, host, q) if torch.distributed.get_rank() == 1 else (q, q, q)
    expect((ValueError, ConnectionError), "one device", *mine, group=made)
    works(made)


def test_ranks_on_different_devices(gpus):
    gpus.run(2, run_different_devices)


def run_different_devices(group):
    if tried_out():
        return
    made = rotunda.Group(group, timeout=19)
    q = inputs(device="cpu") if torch.distributed.get_rank() == 1 else inputs()
    expect(ValueError, "and rank", q, q, q, group=made)
    works(made)


def test_below_the_front(gpus):
    """The operator itself, called past all checks: no pointer of one device is used on another."""
    gpus.run(1, run_below)


def run_below(_):
    if tried_out():
        return
    q, host = inputs(), inputs(device="cpu")
    name = rotunda.Group.of("self").name
    problem, options = "layout=bshd mask=causal", f"group={name} shard=dual_chunk"
    with pytest.raises(ValueError, match="lies on c"):
        torch.ops.rotunda.attention(q, host, q, None, *(None,) * 5, problem, options)


@pytest.mark.parametrize("ranks", (1, 2))
def test_dtypes(gpus, ranks):
    gpus.run(ranks, run_dtypes)


def run_dtypes(group):
    if tried_out():
        return
    wide = inputs(dtype=torch.float32)
    expect(NotImplementedError, "fp32", wide, wide, wide, group=group)
    got = rotunda.attention(wide, wide, wide, mask="causal", group=group, kernel="reference")
    assert got.dtype == torch.float32 and got.isfinite().all()
    meet(group)
    narrow = inputs().to(torch.float8_e4m3fn)
    expect(NotImplementedError, "float8 is not supported", narrow, narrow, narrow, group=group)
    odd = inputs()[..., :60]
    expect(NotImplementedError, "d", odd, odd, odd, group=group)
    works(group)


def test_one_rank_has_no_memory(gpus):
    gpus.run(2, run_no_memory)


def run_no_memory(group):
    q = inputs().requires_grad_()
    out = rotunda.attention(q, q, q, mask="causal", group=group)
    meet(group)
    results, failed = rotunda.ops._backward_results, None
    if torch.distributed.get_rank() == 1:
        rotunda.ops._backward_results = no_more_memory
    try:
        out.sum().backward()
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        works(group)  # where the streams alone have waited, the next call says it
    except (MemoryError, rotunda.TransportError) as error:
        failed = str(error)
    finally:
        rotunda.ops._backward_results = results
    assert failed and "no more memory" in failed, failed
    meet(group)
    works(group)
