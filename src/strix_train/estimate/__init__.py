"""What a run will take, from config.json alone: memory by part, time per step, and what to change where it is too much.

Nothing here imports torch. Counts are of the layers that the libraries compute; `measured` holds what was measured.
"""
