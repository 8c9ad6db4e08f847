#!/opt/venv/bin/python
"""Unsloth really trains: LoRA on a tiny random model, on the CPU, without a network."""

import math
import os
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["STRIX_SMOKE"], "lib")))
import guard

if stub := guard.stand_in(guard.installed(Path(sysconfig.get_path("purelib")))):
    print(f"not shown: {stub} is a stub that computes nothing")
    sys.exit(77)
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1", UNSLOTH_FORCE_CPU="1")
work = tempfile.TemporaryDirectory(prefix="strix-lora-")
os.environ["HF_HOME"] = f"{work.name}/hf"
os.chdir(work.name)

started = time.monotonic()
import unsloth  # noqa: E402
from unsloth import FastLanguageModel  # noqa: E402

took = time.monotonic() - started
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

STEPS = 6


def make_model(folder: str) -> None:
    """Write a Llama of 0.1 M random parameters with a byte tokenizer."""
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    alphabet = [*special.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(alphabet), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


make_model("model")
model, tokenizer = FastLanguageModel.from_pretrained(
    "model", max_seq_length=64, load_in_4bit=False, dtype=torch.float32, local_files_only=True
)
model = FastLanguageModel.get_peft_model(model, r=8, lora_alpha=16, target_modules="all-linear")
frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
config = SFTConfig(
    output_dir="run", max_steps=STEPS, per_device_train_batch_size=4, learning_rate=5e-3, logging_steps=1,
    lr_scheduler_type="constant", report_to="none", save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True,
    dataset_num_proc=1, max_length=64,
)  # fmt: skip
rows = Dataset.from_list([{"text": f"The port of the service is {7341 + i % 2}.</s>"} for i in range(4 * STEPS)])
trainer = SFTTrainer(model=model, processing_class=tokenizer, train_dataset=rows, args=config)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
model.save_pretrained("adapter")


def check(true: bool, message: str) -> None:
    if not true:
        sys.exit(f"lora: {message}")


check(len(losses) == STEPS and all(math.isfinite(loss) for loss in losses), f"losses {losses}")
check(max(losses[-2:]) < losses[0] - 0.1, f"the loss does not fall: {losses}")
now = dict(model.named_parameters())
check(all(torch.equal(now[name], value) for name, value in frozen.items()), "a frozen weight has changed")
adapter = load_file("adapter/adapter_model.safetensors")
check(bool(adapter) and all(value.any() for name, value in adapter.items() if "lora_B" in name), "the adapter is empty")
check(not Path("/root/.unsloth").exists(), "Unsloth has installed something")
print(
    f"unsloth {unsloth.__version__} on {model.device}: loss {losses[0]:.2f} to {losses[-1]:.2f} in {STEPS} LoRA steps,"
    f" import {took:.0f} s, all {time.monotonic() - started:.0f} s"
)
