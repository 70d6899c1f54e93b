"""The `specinfer` command: start services as child processes, and call them."""

import os

# gRPC reads this variable at its first import. By default gRPC logs every connection that a gateway closes to
# standard error, in the middle of a streamed answer.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
