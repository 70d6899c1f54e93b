"""What this project asks of the machine: processors, directories, processes, log lines, progress."""
