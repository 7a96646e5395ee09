"""Wrong calls: one sentence on every rank, at once, and the group works afterwards."""

import subprocess
import sys
import time

import pytest
import torch

import rotunda

Q = torch.randn(1, 8, 4, 16)


@pytest.mark.parametrize(
    "change, kind, says",
    [
        ({"dropout_p": 0.1}, NotImplementedError, "dropout is not supported"),
        ({"attn_mask": torch.zeros(8, 8)}, NotImplementedError, "biases"),
        ({"alibi_slopes": torch.zeros(4)}, NotImplementedError, "ALiBi"),
        ({"softcap": 30.0}, NotImplementedError, "capped scores"),
        ({"mask": "causall"}, ValueError, "causall"),
        ({"schedule": "ring"}, ValueError, "allowed: auto, p2p"),
        ({"kernel": "fast"}, ValueError, "kernel 'fast' is unknown"),
        ({"shard": "zigzag"}, ValueError, "dual_chunk"),
        ({"window": (-5, 0)}, ValueError, "window"),
        ({"sink": torch.zeros(3)}, ValueError, "sink"),
        ({"sink": "one"}, ValueError, "allowed: 'zero'"),
        ({"layout": "hsbd"}, ValueError, "layout is 'hsbd'"),
        ({"layout": "thd"}, ValueError, "3 axes"),
        ({"seqlen_q": 9}, ValueError, "the plan wants"),
        ({"group": "everybody"}, ValueError, "'self'"),
    ],
)
def test_refusals(change, kind, says):
    with pytest.raises(kind, match=says):
        rotunda.attention(Q, Q, Q, **{"group": "self"} | change)
    rotunda.attention(Q, Q, Q, group="self")


def test_tensors_that_do_not_fit():
    for q, k, v, kind, says in (
        (Q, Q.double(), Q, ValueError, "k is torch.float64"),
        (Q, Q.half(), Q, ValueError, "one dtype"),
        (Q, Q[:, :, :3], Q, ValueError, "more than the last axis"),
        (Q, Q[..., :8], Q, ValueError, "head dim"),
        (Q, Q[:, :, :3], Q[:, :, :3], ValueError, "h_q"),
        (Q, Q.to("meta"), Q, ValueError, "one device"),
        (Q[0], Q[0], Q[0], ValueError, "cu_seqlens_q"),
        (Q, None, Q, TypeError, "k is a NoneType"),
        (*(Q.to(torch.float8_e4m3fn),) * 3, NotImplementedError, "float8 is not supported"),
    ):
        with pytest.raises(kind, match=says):
            rotunda.attention(q, k, v, group="self")


@pytest.mark.parametrize(
    "argument, here",
    [
        ({"causal": True}, 'mask="causal"'),
        ({"softmax_scale": 1.0}, "scale"),
        ({"window_size": (3, 0)}, "window"),
        ({"enable_gqa": True}, "not needed"),
        ({"block_table": None}, "no paged caches"),
        ({"smax": 1}, "has no argument 'smax'"),
    ],
)
def test_names_of_others(argument, here):
    with pytest.raises(TypeError, match=here):
        rotunda.attention(Q, Q, Q, group="self", **argument)


def test_errors_are_rotundas_own():
    with pytest.raises(rotunda.Error):
        rotunda.attention(Q, Q, Q, group="self", schedule="ring")
    with pytest.raises(rotunda.BadInputError):
        rotunda.attention(Q, Q, Q, group="self", schedule="ring")


def expect(kind, says, *arguments, **keywords):
    begin = time.monotonic()
    try:
        rotunda.attention(*arguments, **keywords)
    except kind as error:
        assert says in str(error), error
    else:
        raise AssertionError(f"no error; wanted: {says}")
    assert time.monotonic() - begin < 30  # the timeout is longer: nobody has waited for it


def works(group):
    q = torch.randn(1, 8, 4, 16, requires_grad=True)
    rotunda.attention(q, q, q, mask="causal", group=group).sum().backward()
    # An error ends what is under way: all must be through before one of them makes the next mistake.
    if isinstance(group, torch.distributed.ProcessGroup):
        torch.distributed.barrier(group)


def test_ranks_that_differ(pool):
    pool.run(2, run_ranks_that_differ)


def run_ranks_that_differ(group):
    rank = torch.distributed.get_rank()
    q = torch.randn(1, 8, 4, 16)
    works(group)
    # Other words on one rank: both get the same sentence.
    expect(ValueError, "window", q, q, q, mask="causal", window=(rank, 0), group=group)
    works(group)
    # Other shapes, which are new to both.
    mine = torch.randn(1, 10 + 2 * rank, 4, 16)
    expect(ValueError, "s_q", mine, mine, mine, group=group)
    works(group)
    # One rank's tensors are wrong: the others hear of it.
    wrong = q if rank == 0 else q.double()
    expect((ValueError, ConnectionError), "float64", q, wrong, q, mask="causal", group=group)
    works(group)
    expect((NotImplementedError, ConnectionError), "dropout", q, q, q, group=group, dropout_p=0.1 * rank)
    works(group)


def test_a_known_problem_meets_a_new_one(pool):
    pool.run(2, run_known_and_new)


def run_known_and_new(group):
    """One rank has a plan already, the other wants to agree on one: neither waits for the timeout."""
    q = torch.randn(1, 8, 4, 16)
    rotunda.attention(q, q, q, mask="causal", group=group)
    torch.distributed.barrier(group)
    other = {"mask": "causal", "window": (3, 0)} if torch.distributed.get_rank() == 1 else {"mask": "causal"}
    expect(ConnectionError, "rank 1 waits to agree on another problem", q, q, q, group=group, **other)
    works(group)


def test_one_rank_fails_on_the_way_back(pool):
    pool.run(2, run_failing_backward)


def run_failing_backward(group):
    rank = torch.distributed.get_rank()
    q = torch.randn(1, 8, 4, 16, requires_grad=True)
    out = rotunda.attention(q, q, q, mask="causal", group=group)
    torch.distributed.barrier(group)
    results = rotunda.ops._backward_results
    if rank == 1:
        rotunda.ops._backward_results = no_more_memory
    try:
        out.sum().backward()
    except (MemoryError, rotunda.TransportError) as error:
        assert str(error) == ("no more memory" if rank == 1 else "rank 1 failed: no more memory")
    else:
        raise AssertionError("no error")
    finally:
        rotunda.ops._backward_results = results
    works(group)


def no_more_memory(*_):
    raise MemoryError("no more memory")


def test_ranks_that_never_meet(pool):
    pool.run(2, run_never_meet)


def run_never_meet(group):
    """The first call on a group that one rank never makes."""
    lonely = rotunda.Group(group, timeout=0.5)
    if torch.distributed.get_rank() == 0:
        q = torch.randn(1, 8, 4, 16)
        expect(ConnectionError, "rank 0 waited 0.5 s for rank 1", q, q, q, group=lonely)


def test_transports_of_other_devices(pool):
    pool.run(2, run_other_transports)


def run_other_transports(group):
    q = torch.randn(1, 8, 4, 16)
    for transport in ("ipc", "nccl"):
        made = rotunda.Group(group, transport=transport)
        expect(NotImplementedError, f"transport {transport} does not carry tensors on cpu", q, q, q, group=made)
    works(group)


def test_choice_of_a_transport(alone):
    """What all ranks say of themselves decides: the same on each of them."""
    device = torch.device("cuda", 0)

    def choose(**second):
        first = {"kind": "cuda", "host": ["a"], "device": "x", "reaches": ["x", "y"], "shares": True}
        return alone._choose_transport(device, [first, first | {"device": "y"} | second])

    assert choose() == "ipc"
    assert choose(host=["b"]) == "nccl"
    assert choose(shares=False) == "nccl"  # expandable segments, on one rank alone
    assert choose(reaches=["y"]) == "nccl"  # CUDA_VISIBLE_DEVICES hides the other's
    with pytest.raises(rotunda.BadInputError, match="rank 1 has its own on cpu"):
        choose(kind="cpu")
    with pytest.raises(ValueError, match="allowed: auto, ipc, nccl, callback"):
        rotunda.Group("self", transport="smoke")


def test_ranks_that_share_a_device():
    def share(*devices):
        return rotunda.group._share_a_device([{"device": device} for device in devices])

    assert share("x", "x") and share("x", "y", "x")
    assert not share("x", "y")


def test_a_late_rank(pool):
    pool.run(2, run_late_rank)


def run_late_rank(group):
    impatient = rotunda.Group(group, timeout=1)
    works(impatient)
    torch.distributed.barrier(group)
    q = torch.randn(1, 8, 4, 16)
    if torch.distributed.get_rank() == 0:
        expect(ConnectionError, "rank 0 waited 1 s for rank 1", q, q, q, mask="causal", group=impatient)
    else:
        time.sleep(2.5)
        expect(ConnectionError, "rank 0 failed: rank 0 waited 1 s", q, q, q, mask="causal", group=impatient)
    torch.distributed.barrier(group)
    works(impatient)


def test_a_group_of_other_ranks(pool):
    pool.run(4, run_other_group)


def run_other_group(group):
    """Tensors sharded over four ranks, attended to over two: their rows don't add up to the sequence."""
    import torch.distributed as dist

    pair = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][dist.get_rank() // 2]
    sharding = rotunda.Sharding(32, group)
    q = sharding.shard(torch.randn(1, 32, 4, 16))
    expect((ValueError, ConnectionError), "the plan wants", q, q, q, mask="causal", group=pair, seqlen_q=32)


def test_old_torch():
    program = "import torch; del torch.library.register_fake; torch.__version__ = '2.3.1'; import rotunda"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert "rotunda needs PyTorch 2.4 or later, and this is 2.3.1" in result.stderr


def test_without_torch():
    program = "import sys; sys.modules['torch'] = None; import rotunda"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert "rotunda needs PyTorch 2.4 or later" in result.stderr
