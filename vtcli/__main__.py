"""``python -m vtcli`` and ``torchrun --module vtcli``."""

from vtcli.cli import main

main()
