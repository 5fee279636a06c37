"""Operations of the code on images, recorded by patches of PIL, OpenCV, NumPy and SciPy: a claim, never a proof.

It may import ``video`` and ``types``. It must not know how images leave the process. ``trace`` is pure arithmetic on
coordinates, which ``replay`` shares.
"""
