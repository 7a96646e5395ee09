"""Python in README.md and docs/python.md runs as it is printed."""

import re
from pathlib import Path

import pytest
import torch
from test_examples import EXAMPLES

import rotunda

ROOT = Path(__file__).parents[2]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def find(page, word):
    (found,) = [block for block in blocks(page) if word in block]
    return found


def test_the_training_loop_is_the_example():
    loop = find("docs/python.md", "init_process_group")
    assert loop in (EXAMPLES / "train.py").read_text()  # which test_examples runs
    assert len(loop.splitlines()) <= 40


def test_nothing_is_left_out():
    assert len(blocks("README.md")) == 1 and len(blocks("docs/python.md")) == 3


def test_readme(pool):
    pytest.importorskip("transformers", reason="transformers is not installed")
    pool.run(4, run_readme)


def run_readme(_):
    from test_huggingface import llama, tokens

    q, k, v = torch.randn(3, 1, 8, 4, 16).unbind(0)
    given = {"model": llama(), "ids": tokens(1, 40), "q": q, "k": k, "v": v}
    exec(find("README.md", "import rotunda"), given)
    assert given["loss"].isfinite() and given["out"].shape == q.shape


def test_attention(pool):
    pool.run(2, run_attention)


def run_attention(group):
    q, k, v = torch.randn(3, 1, 8192, 1, 8).unbind(0)
    given = {"rotunda": rotunda, "group": group, "q": q, "k": k, "v": v}
    exec(find("docs/python.md", "rotunda.Sharding(seqlen"), given)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True
    ).transpose(1, 2)
    torch.testing.assert_close(given["sharding"].unshard(given["out"]), want, rtol=1e-3, atol=1e-4)


def test_megatron():
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    given = {}
    exec(find("docs/python.md", "rotunda.megatron"), given)
    core_attention = given["spec"].submodules.self_attention.submodules.core_attention
    assert core_attention is rotunda.megatron.DotProductAttention
