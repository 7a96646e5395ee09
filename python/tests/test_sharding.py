"""Shards, position ids and labels."""

import pytest
import torch

import rotunda


@pytest.mark.parametrize("kind", ("contiguous", "dual_chunk", "striped", "balanced"))
@pytest.mark.parametrize("seqlen", (0, 1, 7, 64))
def test_there_and_back(pool, kind, seqlen):
    pool.run(3, run_there_and_back, kind, seqlen)


def run_there_and_back(group, kind, seqlen):
    sharding = rotunda.Sharding(seqlen, group, kind=kind)
    for dim in (0, 1, -1):
        shape = [2, 3, 4]
        shape[dim] = seqlen
        whole = torch.arange(torch.Size(shape).numel(), dtype=torch.int64).reshape(shape)
        assert torch.equal(sharding.unshard(sharding.shard(whole, dim), dim), whole)
    everything = torch.cat([sharding.tokens(rank) for rank in range(3)])
    assert torch.equal(everything.sort().values, torch.arange(seqlen))


def test_dual_chunk_is_zigzag(pool):
    pool.run(2, run_zigzag)


def run_zigzag(group):
    rank = torch.distributed.get_rank()
    tokens = rotunda.shard(torch.arange(16)[None], group=group)
    want = [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]][rank]
    assert tokens[0].tolist() == want
    assert torch.equal(rotunda.unshard(tokens, 16, group=group)[0], torch.arange(16))


def test_positions_and_documents(pool):
    pool.run(2, run_positions)


def run_positions(group):
    whole = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0, 0, 1]])
    offsets = rotunda.document_offsets(whole)
    assert offsets.tolist() == [0, 3, 8, 9, 11]
    for kind in ("dual_chunk", "dual_chunk_doc", "balanced"):
        sharding = rotunda.Sharding(group=group, kind=kind, cu_seqlens=offsets)
        assert torch.equal(sharding.position_ids(), sharding.shard(whole))
        assert torch.equal(sharding.unshard(sharding.position_ids()), whole)


def test_gradients_of_shard_and_unshard(pool):
    pool.run(2, run_gradients)


def run_gradients(group):
    sharding = rotunda.Sharding(10, group)
    whole = torch.randn(2, 10, 3, requires_grad=True)
    weights = torch.randn(2, 10, 3)
    (sharding.shard(whole) * sharding.shard(weights)).sum().backward()
    mine = torch.zeros(10, dtype=torch.bool)
    mine[sharding.tokens()] = True
    assert torch.equal(whole.grad[:, mine], weights[:, mine]) and not whole.grad[:, ~mine].any()
    local = sharding.shard(whole.detach()).requires_grad_()
    (sharding.unshard(local) * weights).sum().backward()
    assert torch.equal(local.grad, sharding.shard(weights))


def test_labels():
    labels = torch.tensor([[5, 6, 7, 8, 9]])
    assert rotunda.shift_labels(labels).tolist() == [[6, 7, 8, 9, -100]]
    assert rotunda.shift_labels(labels, [0, 2, 5]).tolist() == [[6, -100, 8, 9, -100]]


def test_wrong_lengths():
    sharding = rotunda.Sharding(10, "self")
    with pytest.raises(ValueError, match="9 rows in axis 1; the sharding is of 10"):
        sharding.shard(torch.zeros(1, 9))
    with pytest.raises(ValueError, match="rank 0 owns 10"):
        sharding.unshard(torch.zeros(1, 9))
    with pytest.raises(ValueError, match="needs seqlen"):
        rotunda.Sharding()
