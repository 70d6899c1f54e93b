"""Constraints on generated text: a JSON schema, a regular expression, a grammar or a choice of texts.

    `Constraint`  the constraint of a request                  data; checked by `Checker` before anything runs
    `Compiler`    tokenizer + constraint -> `Matcher`          in a thread, cached
    `Matcher`     generated tokens -> which may follow them    copies itself, takes tokens back

The parser is llguidance. `Checker` compiles what comes from outside in a process of its own first, because
some constraints make llguidance compile for minutes or overflow its stack, and neither can be stopped in a
process that has other things to do. A service that gets a constraint from a gateway need not check it again.
"""
