"""Decoder layers that learn an adapter with little memory and few passes over it, on any GPU and on a CPU.

A layer of the usual kind (Llama, Mistral, Qwen 2 and 3) with frozen weights and low-rank adapters is computed by one
autograd function. It keeps the layer's input only, in host memory where that is another memory; its backward pass makes
again what the gradient needs, and no more: the last product of a layer is never made twice. Rows and tokens go through
in slices, so that the workspace does not grow with the batch. Nothing is approximated.
"""
