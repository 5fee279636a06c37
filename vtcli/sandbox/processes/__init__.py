"""The processes below the trainer, one file each: template (with its fork server), guard (with one run), worker.

It may import ``confinement``, ``protocol`` and, for the worker, ``harness``. It must not know what images or operations
are: a guard looks at a reply's outline and hands the bytes on.
"""
