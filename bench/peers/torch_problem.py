"""What the peers that time PyTorch share: the problem as scaled_dot_product_attention can be told, and its tensors."""

import argparse
import json
import math
import os
import statistics
import sys

INFINITE = (math.inf, 2**63 - 1)


def refuse(reason: str) -> None:
    print(f"{os.path.basename(sys.argv[0])}: {reason}", file=sys.stderr)
    sys.exit(3)


def parse(text: str) -> dict:
    """The problem as a dict of strings, from `key=value` text, a JSON object or @file."""
    if text.startswith("@"):
        with open(text[1:], encoding="utf-8") as file:
            text = file.read()
    if text.lstrip().startswith("{"):
        values = json.loads(text)
        plain = lambda v: str(int(v) if isinstance(v, bool) else v)
        return {key: "json" if key == "slices" else ",".join(map(plain, value)) if isinstance(value, list)
                else plain(value) for key, value in values.items()}
    pairs = [word.partition("=") for word in text.split()]
    if not all(equals for _, equals, _ in pairs):
        print(f"the problem '{text}' is not key=value text", file=sys.stderr)
        sys.exit(2)
    return {key: value for key, _, value in pairs}


class Problem:
    """What scaled_dot_product_attention can be told: shapes, dtype, scale, and causal or not."""

    def __init__(self, p: dict):
        number = lambda key, default=0: int(p.get(key, default))
        self.layout = p.get("layout", "bshd")
        if self.layout == "thd":
            refuse("packed sequences (layout=thd) are not among scaled_dot_product_attention's inputs")
        self.dtype = p.get("dtype", "bf16")
        self.b, self.s_q = number("b", 1), number("s_q")
        self.s_k = number("s_k", self.s_q)
        self.h_q = number("h_q")
        self.h_kv = number("h_kv") or self.h_q
        self.d = number("d")
        self.d_v = number("d_v") or self.d
        self.scale = float(p["scale"]) if "scale" in p else 1 / math.sqrt(self.d)
        self.grad = p.get("grad", "0") in ("1", "true")
        self.causal = self.read_mask(p)

    def read_mask(self, p: dict) -> bool:
        for key in ("prefix", "chunk", "slices"):
            if p.get(key, "0") not in ("0", "off"):
                refuse(f"{key} needs a mask tensor; scaled_dot_product_attention has a flag for causal masks only")
        for key, full in (("lens_q", self.s_q), ("lens_k", self.s_k)):
            if key in p and any(int(length) != full for length in p[key].split(",")):
                refuse(f"padding ({key}={p[key]}) needs a mask tensor")
        if p.get("sink", "none") != "none":
            refuse("scaled_dot_product_attention has no attention sink")
        if p.get("max_logit", "0") in ("1", "true"):
            refuse("scaled_dot_product_attention does not return the greatest logit")
        mask = p.get("mask", "none")
        left, right = (float(x) for x in p.get("window", "inf,inf").split(","))
        causal = mask != "none" or right == 0
        if left not in INFINITE or not (causal or right in INFINITE):
            refuse(f"a sliding window (window={p['window']}) needs a mask tensor")
        bottom_right = mask == "causal_bottom_right" or p.get("align") == "bottom_right"
        if causal and bottom_right and self.s_q != self.s_k:
            refuse("is_causal starts its diagonal at the top left; bottom_right of a rectangle needs a mask tensor")
        return causal


# What PyTorch wants is [b, h, s, d]: users of other layouts pass transposed views.
ORDER = {"bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3), "bhsd": (0, 1, 2, 3)}


def make_tensors(torch, problem: Problem, device: str = "cpu"):
    """q, k, v, dout in the problem's layout, random."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[problem.dtype]

    def make(s, h, d):
        shape = {"bshd": (problem.b, s, h, d), "sbhd": (s, problem.b, h, d), "bhsd": (problem.b, h, s, d)}
        return torch.randn(shape[problem.layout], generator=generator, device=device).to(dtype)

    generator = torch.Generator(device).manual_seed(0)
    q = make(problem.s_q, problem.h_q, problem.d)
    k = make(problem.s_k, problem.h_kv, problem.d)
    v = make(problem.s_k, problem.h_kv, problem.d_v)
    dout = make(problem.s_q, problem.h_q, problem.d_v)
    return q, k, v, dout


def attention(torch, problem: Problem, q, k, v):
    """scaled_dot_product_attention of [b, h, s, d]."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=problem.causal, scale=problem.scale,
                                                            enable_gqa=problem.h_q != problem.h_kv)


def arguments(description: str):
    """The command line that every peer has, as (problem, arguments)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", required=True)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0, help="of a CPU peer; 0: its default")
    parser.add_argument("--ranks", type=int, default=1, help="of a peer that splits the sequence")
    args, _ = parser.parse_known_args()
    args.repeat = max(1, args.repeat)
    return Problem(parse(args.problem)), args


def import_torch():
    try:
        import torch
    except ImportError as error:
        refuse(f"PyTorch does not load in {sys.executable}: {error}")
    return torch


def cuda_times(torch, forward, inputs, dout, grad: bool, repeat: int) -> dict:
    """Medians on the current CUDA device, back to back."""

    def events(n):
        return [torch.cuda.Event(enable_timing=True) for _ in range(n)]

    fwd, bwd, both = [], [], []
    for i in range(repeat + 3):
        begin, middle, end = events(3)
        begin.record()
        out = forward()
        middle.record()
        if grad:
            torch.autograd.grad(out, inputs, dout)
        end.record()
        torch.cuda.synchronize()
        if i >= 3:  # three to warm up
            fwd.append(begin.elapsed_time(middle))
            bwd.append(middle.elapsed_time(end))
            both.append(begin.elapsed_time(end))
    median = statistics.median
    return {"fwd_ms": median(fwd), "bwd_ms": median(bwd) if grad else None, "both_ms": median(both) if grad else None}
