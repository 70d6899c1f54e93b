"""Constraints on text: a JSON schema, regular expression, grammar or choice.

    `Constraint`  the constraint of a request                  data; checked by `Checker` before anything runs
    `Compiler`    tokenizer + constraint -> `Matcher`          in a thread, cached
    `Matcher`     generated tokens -> which may follow them    copies itself, takes tokens back

The parser is llguidance. `Checker` first compiles constraints from outside in a process of its own, because
some constraints make llguidance compile for minutes or overflow its stack, and neither can be stopped in a
process that has other things to do. A service that gets a constraint from a gateway need not check it again.
"""
