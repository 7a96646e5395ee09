"""Models of transformers: the same loss and gradients on any number of ranks as transformers' own attention on one."""

import copy

import pytest
import torch

import rotunda

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def gemma(layers=4):
    """Sliding layers with head_dim 256, global ones with 512, grouped queries: Gemma 4's hybrid, weights random."""
    torch.manual_seed(0)
    config = transformers.Gemma4TextConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=256,
        global_head_dim=512,
        num_global_key_value_heads=1,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=128,
        attn_implementation="eager",
    )
    model = transformers.Gemma4ForCausalLM(config).float()
    for layer in model.model.layers:  # scores of a trained model's size; with norms of 1 they are in the hundreds
        layer.self_attn.q_norm.weight.data.mul_(layer.self_attn.head_dim**-0.5)
    return model


def llama(**options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
        **options,
    )
    return transformers.LlamaForCausalLM(config).float()


def gpt_oss():
    """Attention sinks in every layer, and windows in half of them."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        attn_implementation="eager",
    )
    model = transformers.GptOssForCausalLM(config).float()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


MODELS = {"gemma4": gemma, "llama": llama, "gpt_oss": gpt_oss}


def loss_and_gradients(model, **batch):
    model.zero_grad()
    output = model(use_cache=False, **batch)  # with a cache transformers takes packed documents for one
    output.loss.backward()
    return output, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def compare(group, model, batch, loss_tolerance=1e-5, gradient_tolerance=1e-4, **options):
    """transformers' own attention on the whole batch against rotunda's on parts of it."""
    plain = copy.deepcopy(model)
    want, want_gradients = loss_and_gradients(plain, **batch)
    with rotunda.context_parallel(model, group, **options) as split:
        got, _ = loss_and_gradients(model, **batch)
        split.reduce_gradients()
        logits = split.unshard(got.logits.detach())
    assert abs(got.loss.item() - want.loss.item()) <= loss_tolerance
    visible = batch["attention_mask"].bool() if "attention_mask" in batch else torch.ones(logits.shape[:2]).bool()
    torch.testing.assert_close(logits[visible], want.logits.detach()[visible], rtol=1e-3, atol=1e-3)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for name, gradient in want_gradients.items():
        error = (gradients[name] - gradient).norm() / gradient.norm().clamp_min(1e-8)
        assert error <= gradient_tolerance, f"{name}: {error:.1e}"


def tokens(b, s):
    return torch.randint(0, 128, (b, s), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("ranks", (1, 2, 4))
@pytest.mark.parametrize("name", MODELS)
def test_models(pool, name, ranks):
    pool.run(ranks, run_model, name)


def run_model(group, name):
    ids = tokens(2, 83)
    compare(group, MODELS[name](), {"input_ids": ids, "labels": ids})


@pytest.mark.parametrize("shard", ("contiguous", "balanced"))
def test_other_shards_and_schedules(pool, shard):
    pool.run(2, run_shard, shard)


def run_shard(group, shard):
    ids = tokens(1, 64)
    batch = {"input_ids": ids, "labels": ids}
    compare(group, gemma(), batch, shard=shard, schedule="all_gather", sliding_schedule="p2p", backward_schedule="p2p")


@pytest.mark.parametrize("ranks", (2, 4))
@pytest.mark.parametrize("name", ("gemma4", "llama"))
@pytest.mark.parametrize("entries", (1, 2))
def test_packed_batches(pool, name, entries, ranks):
    pool.run(ranks, run_packed, name, entries)


def run_packed(group, name, entries):
    """Positions that begin again at 0 are new documents; two batch entries have documents of their own."""
    lengths = [[20, 1, 30, 13], [40, 24]][:entries]
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    ids = tokens(entries, 64)
    labels = ids.masked_fill(positions == 0, -100)
    batch = {"input_ids": ids, "labels": labels, "position_ids": positions}
    for shard in ("dual_chunk", "dual_chunk_doc", "balanced") if entries == 1 else ("dual_chunk",):
        compare(group, MODELS[name](), batch, shard=shard)
    # Documents matter: as one sequence the logits are others.
    plain = MODELS[name]()
    one, many = (plain(**inputs, use_cache=False).logits for inputs in ({"input_ids": ids}, batch))
    assert (one - many).abs().max() > 1e-3


@pytest.mark.parametrize("side", ("right", "left"))
def test_padding(pool, side):
    pool.run(2, run_padding, side)


def run_padding(group, side):
    ids, mask = tokens(3, 40), torch.ones(3, 40, dtype=torch.int64)
    for entry, visible in enumerate((40, 17, 1)):
        (mask[entry, visible:] if side == "right" else mask[entry, : 40 - visible]).zero_()
    # Nothing is asked of padding, not even the first word after it.
    asked = mask.bool() & torch.nn.functional.pad(mask, (1, 0))[:, :-1].bool()
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(~asked, -100)}
    compare(group, llama(), batch)


@pytest.mark.parametrize("ranks", (2, 4))
def test_training(pool, ranks):
    pool.run(ranks, run_training)


def run_training(group):
    """Twenty steps of AdamW, packed and plain batches by turns, stay together."""
    plain, split = gemma(2), gemma(2)
    handle = rotunda.context_parallel(split, group)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4) for model in (plain, split)]
    positions = torch.cat([torch.arange(25), torch.arange(39)])[None]
    losses = []
    for step in range(20):
        ids = torch.randint(0, 128, (1, 64), generator=torch.Generator().manual_seed(step % 4))
        batch = {"input_ids": ids, "labels": ids} | ({"position_ids": positions} if step % 2 else {})
        pair = []
        for model, optimizer in zip((plain, split), optimizers):
            output, _ = loss_and_gradients(model, **batch)
            if model is split:
                handle.reduce_gradients()
            optimizer.step()
            pair.append(output.loss.item())
        losses.append(pair)
    assert losses[-1][0] < losses[0][0] - 0.5  # it learns
    assert max(abs(a - b) for a, b in losses) < 2e-3, losses


def test_checkpointing(pool):
    pool.run(2, run_checkpointing)


def run_checkpointing(group):
    model, ids = llama(), tokens(1, 32)
    model.train()
    model.gradient_checkpointing_enable()
    compare(group, model, {"input_ids": ids, "labels": ids})


def test_mean_reduction(pool):
    pool.run(2, run_mean)


def run_mean(group):
    """What DistributedDataParallel, which averages, makes of it."""
    model, ids = llama(), tokens(1, 32)
    _, want = loss_and_gradients(copy.deepcopy(model), input_ids=ids, labels=ids)
    rotunda.context_parallel(model, group, reduction="mean")
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    parallel(input_ids=ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, want[name], rtol=1e-3, atol=1e-5)


def test_remove():
    model, ids = llama(), tokens(1, 16)
    want = model(input_ids=ids).logits
    handle = rotunda.context_parallel(model, "self")
    torch.testing.assert_close(model(input_ids=ids).logits, want, rtol=1e-3, atol=1e-4)
    handle.remove()
    assert torch.equal(model(input_ids=ids).logits, want)
    assert model.config._attn_implementation == "eager"


def test_refusals():
    model, ids = llama(), tokens(1, 16)
    rotunda.context_parallel(model, "self")
    with pytest.raises(ValueError, match="by name"):
        model(ids)
    with pytest.raises(NotImplementedError, match="attention_mask"):
        model(input_ids=ids, attention_mask=torch.ones(1, 1, 16, 16))
    with pytest.raises(NotImplementedError, match="gap"):
        model(input_ids=ids, attention_mask=torch.arange(16)[None] % 3)
    with pytest.raises(NotImplementedError, match="past_key_values"):
        model(input_ids=ids, past_key_values=transformers.DynamicCache())
    model = llama(attention_dropout=0.5).train()
    rotunda.context_parallel(model, "self")
    with pytest.raises(NotImplementedError, match="dropout is not supported"):
        model(input_ids=ids)
    with pytest.raises(ValueError, match="sum, mean"):
        rotunda.context_parallel(llama(), "self", reduction="max")


def test_losses_that_are_no_sum_over_tokens():
    model = gpt_oss()
    model.config.output_router_logits = True
    rotunda.context_parallel(model, "self")
    with pytest.raises(NotImplementedError, match="output_router_logits"):
        model(input_ids=tokens(1, 16), labels=tokens(1, 16))


def test_copies_of_a_model():
    model, ids = llama(), tokens(1, 16)
    rotunda.context_parallel(model, "self")
    torch.testing.assert_close(copy.deepcopy(model)(input_ids=ids).logits, model(input_ids=ids).logits)


def test_softcap_is_refused():
    config = transformers.Gemma2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    model = transformers.Gemma2ForCausalLM(config)
    rotunda.context_parallel(model, "self")
    with pytest.raises(NotImplementedError, match="softcap"):
        model(input_ids=tokens(1, 16))
