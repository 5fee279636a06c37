"""Python written by a model, run in confinement.

    trainer ── host.pool ──► processes.template ──► processes.guard ──► processes.worker: harness + the model's code
               (asyncio)     one, warm, forks        one an episode      confined by seccomp, Landlock, namespaces

Rooms are named for the process that their lines run in, or for what they are about:

- ``host``: in the trainer. Imports nothing that the model's code could reach.
- ``protocol``: bytes between processes, in one encoding.
- ``processes``: template, guard and worker, and every wait with its limit.
- ``confinement``: the kernel's layers, and how each is proved.
- ``harness``: beside the model's code: its names, its output, what it showed.
- ``provenance``: what the code did to images: a claim.
- ``video``: the frames of a video, for the code.
- ``replay``: doing a claim again.

``types`` is the face that the rest of the package sees, with ``host.pool``. The attacks are in ``tests/attacks``.
"""
