"""The kernel's layers around untrusted code (namespaces, Landlock, seccomp, limits), and how each is proved.

It imports the standard library, ``types`` and ``waits`` only, so that a light process can probe. It must not know what
is confined. ``confine`` has the doors that template, guard and worker pass; ``probes`` finds the strongest tier by
trying ``attempts``."""
