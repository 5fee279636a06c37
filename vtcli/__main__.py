"""``python -m vtcli`` and ``torchrun --module vtcli``."""

from vtcli.cli.main import main

main()
