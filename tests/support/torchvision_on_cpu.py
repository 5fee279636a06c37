"""A start-up hook of the development environment with vLLM on a CPU (`make setup-vllm`); nothing else uses it.

The package index serves torchvision built for CUDA, whose C++ extension does not load beside a CPU torch, so that
`import torchvision` fails on the missing operator `torchvision::nms`. Declaring the operators is enough to import it:
what is in Python works, and calling such an operator still fails. A `.pth` file beside the copy of this file in
site-packages imports it in every process, vLLM's own included; torch is imported only when torchvision is.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

OPERATORS = ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
kept: list[Any] = []


class Finder(importlib.abc.MetaPathFinder):
    """Declares the operators when torchvision is first looked for, and leaves finding it to the others."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname != "torchvision" or self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        import torch

        library = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS:
            library.define(f"{name}(Tensor x) -> Tensor")
            if name not in ("nms", "qnms"):
                library.define(f"_{name}_backward(Tensor x) -> Tensor")
        kept.append(library)


sys.meta_path.insert(0, Finder())
