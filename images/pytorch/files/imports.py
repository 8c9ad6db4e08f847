"""Import what a training run needs of PyTorch, so that just these modules get byte code."""

import torch
import torch._dynamo
import torch.distributed.elastic.multiprocessing
import torch.distributed.fsdp
import torch.distributed.run
import torch.optim.lr_scheduler
import torch.utils.checkpoint
import torch.utils.data.distributed

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
