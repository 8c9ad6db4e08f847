"""What may be wrong with a cluster: modules that take what was found as values and yield findings. Nothing is asked."""
