"""Use the operating system: processors, directories, processes, log lines, progress."""
