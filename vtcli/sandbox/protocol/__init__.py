"""Bytes between processes: frames of JSON and blobs, replies and answers, pixels in shared memory files.

It may import ``types``. It must not know which process reads or writes. Whatever a worker wrote is untrusted: each way
in which it can be wrong is a ``ProtocolError``."""
