"""The model family: what a model is (`architecture`), how it computes (`vit`, `resnet`), which ones exist (`zoo`).

Nothing here knows of ranks, compilation, precision or files.
"""
