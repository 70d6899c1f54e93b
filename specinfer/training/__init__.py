"""Train speculators: corpus, labels and hidden states of the target, students."""
