"""Training steps of a model whose sequence is split over all GPUs of a host, beside others in the same run.

    torchrun --nproc-per-node 2 bench/python_model.py --model llama --tokens 65536 --baselines torch_cp
    torchrun --nproc-per-node 2 bench/python_model.py --model gemma4 --tokens 32768 --baselines cp1 --tolerance 9.7e-5

llama: a Llama-like model, 1.2 B parameters at the default width and depth. gemma4: five layers with a sliding window
(head dim 256) to each that sees everything (512). Weights are random, bfloat16; every block is checkpointed.

    cp1        the same with the whole sequence on every GPU, all of them at once
    sdpa       as cp1, with transformers' own attention: another implementation's loss
    torch_cp   PyTorch's context_parallel, the fastest of its ways (llama only: it knows no windows)

A record's both_ms is the median of whole steps (forward and backward, gradients summed), of the slowest rank;
peak_bytes is what PyTorch's allocator held at most beyond the weights. Ranks may share GPUs, for losses to be compared:
no record is kept then. On CPUs (gloo, float32) it proves itself:

    torchrun --nproc-per-node 2 bench/python_model.py --tokens 256 --width 128 --layers 2 --repeat 2 \
        --baselines cp1,sdpa --tolerance 1e-5
"""

import argparse
import faulthandler
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from python_record import describe, keep
from torch.nn import functional as F

import rotunda

GIB = 2**30


class Job:
    """This rank's place, and the time that is left to all."""

    def __init__(self, time_limit):
        self.cuda = torch.cuda.is_available()
        local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        self.shares = self.cuda and int(os.environ["LOCAL_WORLD_SIZE"]) > gpus
        dist.init_process_group("nccl" if self.cuda and not self.shares else "gloo")  # NCCL wants a GPU for each rank
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", local % gpus) if self.cuda else torch.device("cpu")
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        if self.cuda:
            torch.cuda.set_device(self.device)
        self.begin = time.monotonic()
        self.deadline = self.begin + time_limit
        faulthandler.dump_traceback_later(time_limit + 30, exit=True)  # a rank that hangs takes nobody's time for long

    def say(self, text):
        if self.rank == 0:
            print(f"[{time.monotonic() - self.begin:6.1f} s] {text}", file=sys.stderr, flush=True)

    def most(self, value):
        """The largest value of all ranks."""
        tensor = torch.tensor(float(value), device=self.device, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.item()

    def in_time(self):
        return not self.most(time.monotonic() > self.deadline)

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def held(self):
        return torch.cuda.memory_allocated() if self.cuda else 0

    def peak(self):
        return torch.cuda.max_memory_allocated() if self.cuda else 0

    def free(self):
        if self.cuda:
            torch.cuda.empty_cache()
            return torch.cuda.mem_get_info()[0]
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // self.size


def llama(arguments):
    heads = arguments.width // 64
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.width,
        intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        max_position_embeddings=arguments.tokens,
        initializer_range=arguments.width**-0.5,
        attn_implementation="sdpa",
        use_cache=False,
    )


def gemma4(arguments):
    heads = max(2, arguments.width // 256)
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(arguments.layers)]
    kinds[-1] = "full_attention"
    return transformers.Gemma4ForCausalLM, transformers.Gemma4TextConfig(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.width,
        intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=256,
        global_head_dim=512,
        num_global_key_value_heads=max(1, heads // 4),
        sliding_window=arguments.window,
        layer_types=kinds,
        hidden_size_per_layer_input=64,
        vocab_size_per_layer_input=arguments.vocabulary,
        max_position_embeddings=arguments.tokens,
        initializer_range=arguments.width**-0.5,
        attn_implementation="sdpa",
        use_cache=False,
    )


MODELS = {"llama": llama, "gemma4": gemma4}


def make_model(arguments, job):
    torch.manual_seed(0)
    kind, config = MODELS[arguments.model](arguments)
    with job.device:
        model = kind(config).to(job.dtype)
    if arguments.model == "gemma4":  # scores of a trained model's size; with norms of 1 they are in the hundreds
        for layer in model.model.layers:
            layer.self_attn.q_norm.weight.data.mul_(layer.self_attn.head_dim**-0.5)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def needed_bytes(model, arguments, rows):
    """Roughly: gradients, what is kept for each block, one block, and the logits with their gradient in float32."""
    config, size = model.config, model.dtype.itemsize
    gradients = sum(parameter.numel() for parameter in model.parameters()) * size
    blocks = arguments.layers * rows * config.hidden_size * size
    block = 16 * rows * config.intermediate_size * size
    return gradients + blocks + block + rows * config.vocab_size * (2 * size + 2 * 4)


# --- ways to run a step: (job, model, ids, arguments) → (step, undo), where step() gives the whole sequence's loss


def split_over(group):
    def prepare(job, model, ids, arguments):
        split = rotunda.context_parallel(model, group, schedule=arguments.schedule)

        def step():
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            split.reduce_gradients()
            return loss

        return step, split.remove

    return prepare


def alone(job, model, ids, arguments):
    def step():
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss

    return step, lambda: None


def causal_sdpa(module, query, key, value, attention_mask, scaling=None, **_):
    """transformers' attention, without the mask that it makes where positions jump, as they do in a zigzag."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value)) if groups > 1 else (key, value)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).transpose(1, 2), None


def torch_context_parallel(backend, rotation):
    """PyTorch's own: buffers are sharded in place, zigzag, and attention runs on a ring."""

    def prepare(job, model, ids, arguments):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn.attention import sdpa_kernel

        set_rotate_method(rotation)
        transformers.AttentionInterface.register("causal_sdpa", causal_sdpa)
        transformers.AttentionMaskInterface.register("causal_sdpa", lambda **_: None)
        model.set_attn_implementation("causal_sdpa")
        mesh = init_device_mesh(job.device.type, (job.size,))
        shifted = rotunda.shift_labels(ids)

        def step():
            tokens, labels = ids.clone(), shifted.clone()
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
            buffers = [tokens, labels, positions]
            with sdpa_kernel([backend]), context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 1]):
                output = model(
                    input_ids=tokens,
                    position_ids=positions,
                    labels=labels,
                    shift_labels=labels,
                    num_items_in_batch=ids.shape[1] - 1,
                )
                output.loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            loss = output.loss.detach().clone()
            dist.all_reduce(loss)
            return loss

        return step, lambda: model.set_attn_implementation("sdpa")

    return prepare


def ways(job, arguments):
    """(what, its ways {name: how}, whether the sequence is split) of all that is to be measured."""
    from torch.nn.attention import SDPBackend

    yield "rotunda", {"rotunda": split_over(None)}, True
    for name in filter(None, arguments.baselines.split(",")):
        if name != "torch_cp":
            yield name, {name: {"cp1": split_over("self"), "sdpa": alone}[name]}, False
        elif arguments.model != "llama":
            job.say("torch_cp: not for a model with windows")
        else:
            backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
            pairs = [(backend, rotation) for backend in backends for rotation in ("alltoall", "allgather")]
            yield name, {" ".join(pair): torch_context_parallel(backends[pair[0]], pair[1]) for pair in pairs}, True


def measure(job, name, prepare, model, ids, arguments, repeat):
    """{ms, repeats, peak, loss}, or nothing where it does not run; all ranks alike."""
    job.say(f"{name}: warming up")
    result, failure, undo = {}, "", lambda: None
    try:
        step, undo = prepare(job, model, ids, arguments)
        model.zero_grad()
        before = job.held()
        for _ in range(2):
            loss = step().item()
            model.zero_grad()
        if job.cuda:
            torch.cuda.reset_peak_memory_stats()
        times = []
        while len(times) < repeat and (job.in_time() or not times):
            dist.barrier()
            job.synchronize()
            begin = time.perf_counter()
            step()
            job.synchronize()
            times.append(job.most(time.perf_counter() - begin))
            model.zero_grad()
        result = {"ms": 1e3 * statistics.median(times), "repeats": len(times), "loss": loss}
        result["peak"] = job.peak() - before
    except (RuntimeError, NotImplementedError, ValueError, AssertionError, ImportError) as error:
        failure = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        undo()
    if job.most(bool(failure)):
        print(f"{name} did not run on rank {job.rank}: {failure or 'another rank failed'}", file=sys.stderr, flush=True)
        model.zero_grad()
        return None
    rate = arguments.tokens / result["ms"] * 1e3
    job.say(
        f"{name}: {result['ms']:.1f} ms a step (median of {result['repeats']}), {rate:.0f} tokens/s, peak "
        f"{result['peak'] / GIB:.2f} GiB, loss {result['loss']:.6f}"
    )
    return result


def measure_all(job, model, ids, arguments):
    """Results by what was measured, each in its fastest way; and the names of those ways."""
    results, fastest = {}, {}
    for what, candidates, split in ways(job, arguments):
        rows = arguments.tokens // job.size if split else arguments.tokens
        needed, free = needed_bytes(model, arguments, rows), job.free()
        if job.most(needed > 0.95 * free):
            job.say(f"{what}: left out, it needs about {needed / GIB:.1f} GiB and {free / GIB:.1f} are free")
            continue
        if not job.in_time():
            job.say(f"{what}: left out, the time is up")
            continue

        def run(way, repeat, what=what, candidates=candidates):
            title = what if way == what else f"{what} {way}"
            return measure(job, title, candidates[way], model, ids, arguments, repeat)

        names = list(candidates)
        if len(names) > 1:
            trials = {way: run(way, 2) for way in names}
            served = {way: trial["ms"] for way, trial in trials.items() if trial}
            names = sorted(served, key=served.get)[:1]
        for way in names:
            result = run(way, arguments.repeat)
            if result:
                results[what], fastest[what] = result, way
    return results, fastest


def attention_problem(config, arguments):
    """The attention of the layers that see everything."""
    d = getattr(config, "global_head_dim", None) or config.hidden_size // config.num_attention_heads
    kv = getattr(config, "num_global_key_value_heads", None) or config.num_key_value_heads
    dtype = "bf16" if torch.cuda.is_available() else "fp32"
    return f"dtype={dtype} s_q={arguments.tokens} h_q={config.num_attention_heads} h_kv={kv} d={d} mask=causal grad=1"


def record(job, model, arguments, results, fastest, plans):
    ours = results["rotunda"]
    others = {name: result for name, result in results.items() if name != "rotunda"}
    versions = {"transformers": transformers.__version__}
    versions |= {what: way for what, way in fastest.items() if what != way}
    return {
        "name": f"{arguments.model}, {arguments.layers} layers of {arguments.width}, whole training step",
        **describe(attention_problem(model.config, arguments), job.size, **versions),
        **plans,
        "both_ms": ours["ms"],
        "repeats": ours["repeats"],
        "peak_bytes": ours["peak"],
        "tokens_per_second": arguments.tokens / ours["ms"] * 1e3,
        "loss": ours["loss"],
        "baselines": {name: {"both": result["ms"] / ours["ms"]} for name, result in others.items()},
        "baseline_peak_bytes": {name: result["peak"] for name, result in others.items()},
        "baseline_losses": {name: result["loss"] for name, result in others.items()},
    }


def plans_of(job, model, ids, arguments):
    """What the first full layer's call was planned to be."""
    with rotunda.ops.recording() as calls, rotunda.context_parallel(model, schedule=arguments.schedule):
        model(input_ids=ids, labels=ids)
    full = [call for call in calls if "window" not in call.problem][-1]
    *schedules, _, kernel, transport = full.summary.split(", ")
    forward, _, backward = ", ".join(schedules).partition(" / ")
    return {
        "schedule": forward,
        "backward_schedule": backward or forward,
        "kernel": kernel,
        "transport": transport,
    }


def loss_of_halves(model, ids):
    """The loss where the second half does not see the first: how much of it attention makes."""
    half = (ids.shape[1] + 1) // 2
    positions = torch.arange(ids.shape[1], device=ids.device)[None] % half
    with torch.no_grad(), rotunda.context_parallel(model):
        return model(input_ids=ids, labels=ids, position_ids=positions).loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--window", type=int, default=1024, help="of gemma4's sliding layers")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--baselines", default="", help="cp1, sdpa, torch_cp, comma-separated")
    parser.add_argument("--tolerance", type=float, help="fails where a baseline's loss is further away than this")
    parser.add_argument("--time-limit", type=float, default=400, help="seconds; then steps are no longer repeated")
    parser.add_argument("--json", type=Path, help="appends the record to the array in this file")
    arguments = parser.parse_args()
    unknown = set(filter(None, arguments.baselines.split(","))) - {"cp1", "sdpa", "torch_cp"}
    if unknown:
        parser.error(f"--baselines: {', '.join(sorted(unknown))} is unknown; allowed: cp1, sdpa, torch_cp")
    job = Job(arguments.time_limit)
    if job.shares and arguments.json:
        parser.error("--json: these ranks share GPUs, and their times say nothing")
    model = make_model(arguments, job)
    job.say(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} B parameters, {arguments.tokens} tokens")
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, arguments.vocabulary, (1, arguments.tokens), generator=draw).to(job.device)
    results, fastest = measure_all(job, model, ids, arguments)
    if "rotunda" not in results:
        sys.exit("rotunda's own steps did not run")
    made = record(job, model, arguments, results, fastest, plans_of(job, model, ids, arguments))
    made["loss_of_halves"] = loss_of_halves(model, ids)
    if job.rank == 0:
        keep(made, arguments.json)
    differences = {name: abs(loss - made["loss"]) for name, loss in made["baseline_losses"].items()}
    differences = differences | {"two halves": abs(made["loss_of_halves"] - made["loss"])}
    job.say("losses differ from ours: " + ", ".join(f"{name} {value:.1e}" for name, value in differences.items()))
    dist.destroy_process_group()
    if arguments.tolerance is None:
        return
    if differences.pop("two halves") <= arguments.tolerance:
        sys.exit(f"the loss hardly depends on attention, and a tolerance of {arguments.tolerance} tells nothing")
    if not all(value <= arguments.tolerance for value in differences.values()):
        sys.exit(f"the losses differ by more than {arguments.tolerance}: {differences}")


if __name__ == "__main__":
    main()
