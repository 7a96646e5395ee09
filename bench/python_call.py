"""What a call of rotunda.attention costs the host beyond the library's own part: forward, with the plan in the cache.

    PYTHONPATH=build/python/site build/python/venv/bin/python bench/python_call.py [--json bench/results/python.json]

On a GPU where there is one. A record's fwd_ms is the whole call; library_us is what of it the library takes, python_us
the rest, and autograd_us the rest where gradients are recorded.
"""

import argparse
import time
from pathlib import Path

import torch
from python_record import describe, keep

import rotunda


def microseconds(call, cuda, times=1000, rounds=9):
    """Of the host, a call: the least of some rounds, between which the device catches up."""
    best = float("inf")
    for _ in range(rounds + 1):  # the first one warms up
        begin = time.perf_counter()
        for _ in range(times):
            call()
        elapsed = time.perf_counter() - begin
        if cuda:
            torch.cuda.synchronize()
        best = min(best, elapsed / times)
    return best * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="appends the record to the array in this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cuda = torch.cuda.is_available()
    q = torch.randn(1, 1, 2, 16)
    if cuda:
        q = torch.randn(1, 128, 2, 64, device="cuda", dtype=torch.bfloat16)
    with_gradient = q.clone().requires_grad_()
    with rotunda.ops.recording() as calls:
        rotunda.attention(q, q, q, mask="causal", group="self")
    core, end = calls[0], rotunda.Group.of("self").end(q.device)
    out, lse = torch.empty_like(q), torch.empty(1, 2, q.shape[1], device=q.device)
    workspace, stream = end.workspace(core.workspace_bytes), end.stream(core)
    library = microseconds(lambda: core.forward(q, q, q, None, out, lse, None, workspace, stream), cuda)
    plain = microseconds(lambda: rotunda.attention(q, q, q, mask="causal", group="self"), cuda)
    recorded = microseconds(lambda: rotunda.attention(*(with_gradient,) * 3, mask="causal", group="self"), cuda)
    record = {"name": "a call's host time", **describe(core.problem, 1), "fwd_ms": plain / 1e3, "library_us": library}
    keep(record | {"python_us": plain - library, "autograd_us": recorded - library}, arguments.json)


if __name__ == "__main__":
    main()
