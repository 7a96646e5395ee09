"""Trains a small Llama whose sequences are split over all ranks.

    torchrun --nproc-per-node 2 examples/python/train.py
"""

import torch
import torch.distributed as dist
import transformers

import rotunda

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)

torch.manual_seed(0)  # the same model and the same batches on every rank
config = transformers.LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
)
model = transformers.LlamaForCausalLM(config).to(device, torch.bfloat16 if cuda else torch.float32)
split = rotunda.context_parallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step in range(20):
    start = torch.randint(0, 256, (1, 1))
    input_ids = ((start + torch.arange(512)) % 256).to(device)  # counting: what is to be learned
    loss = model(input_ids=input_ids, labels=input_ids).loss  # the whole sequence's, on every rank
    loss.backward()
    split.reduce_gradients()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)

dist.destroy_process_group()
