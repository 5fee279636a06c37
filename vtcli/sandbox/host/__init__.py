"""Part of the trainer's process: the pool of episodes, the link to the template, one episode, testing claims.

It may import ``processes`` (how to start the template), ``waits``, ``protocol``, ``replay.plan`` and ``types``. It
must not know how code is confined or what runs beside it, never unpickles, and never decodes or computes on pixels for
a claim."""
