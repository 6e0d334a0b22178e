"""What must be done before SGLang and torchvision are imported on a machine without a GPU.

The ``.pth`` file of the same name imports this module whenever Python of this environment starts.

SGLang asks once, while it is imported, whether the processor has AMX tiles, and takes its backend
intel_amx, the only one that speculates on a CPU, away where it has none. The kernels that stand in
for that backend here need none, so the answer is yes on every processor.

The wheel of torchvision on the usual index is built for CUDA. Its compiled part cannot load here, and
torchvision then fails on the operators missing from it. Declaring them is enough: SGLang imports
torchvision and calls none of this.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable

SCHEMAS = tuple(
    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")
)
_kept: list[object] = []
"""The operator library, which must outlive the declaration."""


def claim_amx_tiles() -> None:
    import torch

    torch.cpu._is_amx_tile_supported = lambda: True


def declare_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    _kept.append(library)


class _Before(importlib.abc.MetaPathFinder):
    """Finds nothing; acts when the package is first looked for, then steps aside."""

    def __init__(self, package: str, act: Callable[[], None]) -> None:
        self.package, self.act = package, act

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == self.package:
            sys.meta_path.remove(self)
            self.act()


sys.meta_path.insert(0, _Before("sglang", claim_amx_tiles))
sys.meta_path.insert(0, _Before("torchvision", declare_operators))
