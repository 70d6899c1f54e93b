"""`specinfer run`: the command, its conversation, and answers in colours."""
