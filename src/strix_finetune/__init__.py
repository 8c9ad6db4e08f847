"""The host driver: locks, renders, builds, smoke-tests and tags the image layers of strix-finetune."""
