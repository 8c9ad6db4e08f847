"""The host driver: locks, renders, builds, smoke-tests and tags the image layers of strix-finetune."""

__version__ = "0.1.0"
