"""Constraints on text: a JSON schema, regular expression, grammar or choice.

    `Constraint`  the constraint of a request                  data; checked by `Checker` before anything runs
    `Compiler`    tokenizer + constraint -> `Matcher`          in a thread, cached
    `Matcher`     generated tokens -> mask of next tokens        can be copied and rolled back

The parser is llguidance. `Checker` first compiles a caller's constraint in a separate process: some constraints make
llguidance compile for minutes or overflow its stack, which only ending a process can stop. Services need not check
constraints from a gateway again.
"""
