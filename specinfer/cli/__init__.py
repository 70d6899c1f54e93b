"""The `specinfer` command: starts the services as child processes and talks to them over gRPC."""
