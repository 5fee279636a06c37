"""All patches of the libraries that code uses, installed once in the template."""

from __future__ import annotations

from vtcli.sandbox.harness import figures
from vtcli.sandbox.provenance import patch_arrays, patch_cv2, patch_pil


def install() -> None:
    """Installs the recorder's patches and the captures. Inert until a harness is prepared."""
    patch_pil.install()
    patch_arrays.install()
    patch_cv2.install()
    figures.install()
