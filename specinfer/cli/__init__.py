"""The `specinfer` command: starts services as child processes, and calls them."""

import os

# gRPC reads it when it is first imported. Unset, it writes a line to standard error for every connection that
# a gateway closes, between the words of an answer.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
