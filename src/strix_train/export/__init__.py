"""What is made of a trained model so that it can be used elsewhere: an adapter, a merged model, a GGUF file.

Every export appears whole or not at all, and is loaded again and compared with the trained model before it does.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["adapter", "merged", "gguf"]
Quantization = Literal["f16", "q8_0", "q4_k_m"]
KINDS: tuple[Kind, ...] = ("adapter", "merged", "gguf")
QUANTIZATIONS: tuple[Quantization, ...] = ("f16", "q8_0", "q4_k_m")
