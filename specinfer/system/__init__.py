"""Operating system: processors, directories, processes, log lines, progress."""
