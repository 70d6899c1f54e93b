"""Function calls and thoughts in answers: grammars and readers."""
