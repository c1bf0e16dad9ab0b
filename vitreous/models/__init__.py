"""The model family: what a model is (`architecture`), computes (`vit`, `resnet`), costs; which exist (`zoo`).

Nothing here knows of ranks, compilation, precision or files.
"""
