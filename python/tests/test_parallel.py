"""Beside other kinds of parallelism: FSDP over the same ranks, tensor parallelism across them."""

import copy

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import rotunda

pytest.importorskip("transformers", reason="transformers is not installed")

from test_huggingface import llama, loss_and_gradients  # noqa: E402


def batches():
    """One for each data-parallel rank."""
    return [torch.randint(0, 128, (1, 40), generator=torch.Generator().manual_seed(i)) for i in range(2)]


def want_gradients(model):
    """The mean over the batches, on one rank."""
    total = {}
    for ids in batches():
        _, gradients = loss_and_gradients(copy.deepcopy(model), input_ids=ids, labels=ids)
        for name, gradient in gradients.items():
            total[name] = total.get(name, 0) + gradient / 2
    return total


def compare(model, want):
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        torch.testing.assert_close(gradient, want[name], rtol=1e-3, atol=1e-5, msg=lambda text: f"{name}: {text}")


def test_fsdp(pool):
    pool.run(4, run_fsdp)


def run_fsdp(_):
    """Parameters sharded over data and context ranks alike, which also averages gradients over them."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    model = llama()
    want = want_gradients(model)
    rotunda.context_parallel(model, mesh["cp"], reduction="mean")
    everyone = mesh._flatten("dp_cp")
    for layer in model.model.layers:
        fully_shard(layer, mesh=everyone)
    fully_shard(model, mesh=everyone)
    ids = batches()[mesh["dp"].get_local_rank()]
    model(input_ids=ids, labels=ids).loss.backward()
    compare(model, want)


def test_tensor_parallel(pool):
    pool.run(4, run_tensor_parallel)


def run_tensor_parallel(_):
    """Every rank has half of the heads of half of the tokens."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    model = llama()
    ids = batches()[0]
    _, want = loss_and_gradients(copy.deepcopy(model), input_ids=ids, labels=ids)
    attention = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    attention["self_attn.o_proj"] = RowwiseParallel()
    mlp = {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer, mesh["tp"], attention | mlp)
    split = rotunda.context_parallel(model, mesh["cp"])
    model(input_ids=ids, labels=ids).loss.backward()
    split.reduce_gradients()
    compare(model, want)
