"""Function calls and reasoning in answers: grammars and parsers."""
