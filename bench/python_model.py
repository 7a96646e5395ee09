"""Training steps of a Llama-like model on all GPUs of a host: rotunda beside PyTorch's context_parallel in one run.

    torchrun --nproc-per-node 2 bench/python_model.py --tokens 65536 --json bench/results/python.json

Weights are random, bfloat16; every block is checkpointed. A record's both_ms is the median of whole steps (forward and
backward, gradients summed), of the slowest rank.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import transformers

import rotunda


def make_model(arguments, device):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=arguments.width,
        intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.width // 64,
        num_key_value_heads=max(1, arguments.width // 256),
        max_position_embeddings=arguments.tokens,
        attn_implementation="sdpa",
        use_cache=False,
    )
    with device:
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def sum_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def rotunda_step(model, ids, arguments):
    split = rotunda.context_parallel(model, schedule=arguments.schedule)

    def step():
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        split.reduce_gradients()
        return loss

    return step, split.remove


def torch_step(model, ids, _):
    """PyTorch's own: buffers are sharded in place, zigzag, and attention runs on a ring."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    shifted = rotunda.shift_labels(ids)

    def step():
        tokens, labels = ids.clone(), shifted.clone()
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        backend = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION])
        with backend, context_parallel(mesh, buffers=[tokens, labels, positions], buffer_seq_dims=[1, 1, 1]):
            count = ids.shape[1] - 1
            output = model(input_ids=tokens, position_ids=positions, labels=labels, shift_labels=labels,
                           num_items_in_batch=count)
            output.loss.backward()
        sum_gradients(model)
        loss = output.loss.detach().clone()
        dist.all_reduce(loss)
        return loss

    return step, lambda: None


def measure(make, model, ids, arguments):
    """(median ms a step of the slowest rank, peak MiB of PyTorch's allocator, loss)"""
    step, undo = make(model, ids, arguments)
    try:
        for _ in range(2):
            model.zero_grad()
            loss = step()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(arguments.repeat):
            model.zero_grad()
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    finally:
        undo()
    slowest = torch.tensor(times, device=ids.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return 1e3 * statistics.median(slowest.tolist()), torch.cuda.max_memory_allocated() / 2**20, loss.item()


def record(arguments, ours, theirs):
    heads = arguments.width // 64
    problem = f"s_q={arguments.tokens} h_q={heads} h_kv={max(1, heads // 4)} d=64 mask=causal grad=1"
    return {
        "name": f"llama, {arguments.layers} layers of {arguments.width}, whole training step",
        "problem": problem,
        "ranks": dist.get_world_size(),
        "gpus": dist.get_world_size(),
        "schedule": arguments.schedule,
        "backward_schedule": arguments.schedule,
        "kernel": "auto",
        "transport": "auto",
        "device": torch.cuda.get_device_name(),
        "versions": {
            "rotunda": rotunda.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "date": time.strftime("%Y-%m-%d"),
        "command": f"torchrun --nproc-per-node {dist.get_world_size()} " + " ".join(sys.argv),
        "both_ms": ours[0],
        "peak_bytes": int(ours[1] * 2**20),
        "tokens_per_second": arguments.tokens / ours[0] * 1e3,
        "loss": ours[2],
        "baselines": {"torch_cp": {"both": theirs[0] / ours[0]}} if theirs else {},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", dist.get_rank())))
    torch.cuda.set_device(device)
    model = make_model(arguments, device)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 32000, (1, arguments.tokens), generator=draw).to(device)
    ours = measure(rotunda_step, model, ids, arguments)
    try:
        theirs = measure(torch_step, model, ids, arguments)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        theirs = None
        print(f"torch_cp did not run: {str(error).splitlines()[0]}", flush=True)
    if dist.get_rank() == 0:
        made = record(arguments, ours, theirs)
        print(json.dumps(made, indent=1))
        if arguments.json:
            known = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
            arguments.json.write_text(json.dumps([*known, made], indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
