"""Lets torchvision be imported beside a CPU build of torch.

The wheel of torchvision on the usual index is built for CUDA. Its compiled part
cannot load here, and torchvision then fails on the operators missing from it.
Declaring them is enough: SGLang imports torchvision and calls none of this. The
``.pth`` file of the same name imports this module whenever Python starts.
"""

from __future__ import annotations

import importlib.abc
import sys

SCHEMAS = tuple(
    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")
)
_kept: list[object] = []
"""The operator library, which must outlive the declaration."""


class _DeclareBeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing; declares the operators when torchvision is first looked for, then steps aside."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for schema in SCHEMAS:
                library.define(schema)
            _kept.append(library)


sys.meta_path.insert(0, _DeclareBeforeTorchvision())
