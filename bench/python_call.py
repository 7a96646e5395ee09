"""What a call of rotunda.attention costs beyond the library's own part: forward, with the plan in the cache.

    PYTHONPATH=build/python/site build/python/venv/bin/python bench/python_call.py
"""

import time

import torch

import rotunda


def microseconds(call, times=2000, rounds=7):
    for _ in range(200):
        call()
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - begin) / times)
    return best * 1e6


def main():
    torch.set_num_threads(1)
    q = torch.randn(1, 1, 2, 16)
    with_gradient = q.clone().requires_grad_()
    with rotunda.ops.recording() as calls:
        rotunda.attention(q, q, q, mask="causal", group="self")
    core, end = calls[0], rotunda.Group.of("self").end(q.device)
    out, lse, workspace = torch.empty_like(q), torch.empty(1, 2, 1), end.workspace(calls[0].workspace_bytes)
    library = microseconds(lambda: core.forward(q, q, q, None, out, lse, None, workspace, 0))
    plain = microseconds(lambda: rotunda.attention(q, q, q, mask="causal", group="self"))
    recorded = microseconds(lambda: rotunda.attention(*(with_gradient,) * 3, mask="causal", group="self"))
    print(f"library {library:.1f} us; Python's part {plain - library:.1f}, with autograd {recorded - library:.1f}")


if __name__ == "__main__":
    main()
