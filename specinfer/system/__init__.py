"""The machine: processors, directories, processes, log lines, progress."""
